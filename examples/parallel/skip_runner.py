"""Runs one stage of a pipeline whose microbatches take different paths, over point-to-point messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fanin.examples.parallel.skip_planner import Path, Visit

Data = list[tuple[Tensor, Tensor]]
"""By microbatch, inputs of the embedding, and targets of the head."""


class Runner:
    """This rank's stage in its replica's pipeline."""

    def __init__(
        self, stage: int, first: int, module: Any, paths: list[Path], order: list[Visit], shape: Sequence[int]
    ) -> None:
        """`first`: rank of the replica's stage 0. `shape`: that of a microbatch's activations."""
        self.shape = tuple(shape)
        self.stage, self.first, self.module, self.paths, self.order = stage, first, module, paths, order
        self.sleep_s = 0.0
        """Seconds to sleep per unit of time, in emulated iterations."""

    def iteration(self, microbatches: Data) -> None:
        """Go forward and backward with all microbatches; gradients are of the mean loss over this replica's."""
        came: dict[tuple[int, int], Tensor] = {}
        made: dict[tuple[int, int], Tensor] = {}
        leaving: list[Any] = []
        for visit in self.order:
            path, place = self.paths[visit.microbatch], (visit.microbatch, visit.index)
            route, last = (0, *path, 0), visit.index == len(path) + 1
            time.sleep(self.sleep_s * visit.time(path))
            if visit.backward:
                gradient = self.receive(route[visit.index + 1], visit)
                made.pop(place).backward(gradient)
            elif visit.index == 0:
                made[place] = self.module.bytes(microbatches[visit.microbatch][0])
            else:
                came[place] = self.receive(route[visit.index - 1], visit).requires_grad_()
                if last:
                    loss = self.module.loss(came[place], microbatches[visit.microbatch][1])
                    (loss / len(self.paths)).backward()
                else:
                    made[place] = self.module(came[place])
            if visit.backward or last:
                if visit.index > 0:
                    leaving.append(
                        self.send(came.pop(place).grad, route[visit.index - 1], visit.microbatch + len(self.paths))
                    )
            else:
                leaving.append(self.send(made[place].detach(), route[visit.index + 1], visit.microbatch))
        for work in leaving:
            work.wait()

    def receive(self, source: int, visit: Visit) -> Tensor:
        """Receive a visit's activations, or their gradient if it is a backward one."""
        found = torch.empty(self.shape)
        dist.recv(found, self.first + source, tag=visit.microbatch + len(self.paths) * visit.backward)
        return found

    def send(self, tensor: Tensor | None, target: int, tag: int) -> Any:
        """Start to send a message; returns its work handle."""
        assert tensor is not None
        return dist.isend(tensor.contiguous(), self.first + target, tag=tag)
