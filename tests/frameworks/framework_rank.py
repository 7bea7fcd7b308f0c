"""A rank of a framework's, which trains a few steps and prints its losses: framework_rank.py FRAMEWORK BACKEND.

Started by torchrun, but for Lightning, which starts the other rank itself.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 4


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))


def batches(size: int) -> torch.utils.data.DataLoader[Any]:
    """The same data on every rank, which the framework shares out."""
    drawn = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(64, 32, generator=drawn), torch.randint(0, 4, (64,), generator=drawn)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), size)


def lightning_ddp(backend: str) -> list[float]:
    from lightning.pytorch.strategies import DDPStrategy

    return _lightning(DDPStrategy(process_group_backend=backend), sharded=False)


def lightning_fsdp2(backend: str) -> list[float]:
    from lightning.pytorch.strategies import ModelParallelStrategy

    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend=backend)
    return _lightning(strategy, sharded=True)


def _lightning(strategy: Any, *, sharded: bool) -> list[float]:
    import lightning
    from torch.distributed.fsdp import fully_shard

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = model()
            self.losses: list[float] = []
            self.is_sharded = False

        def configure_model(self) -> None:
            if sharded and not self.is_sharded:
                self.is_sharded = True
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, sync_dist=True)
            self.losses.append(self.all_gather(loss.detach()).mean().item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-2)

    trained = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_steps=STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(trained, batches(8))
    return trained.losses


def accelerate(backend: str) -> list[float]:
    from accelerate import Accelerator

    dist.init_process_group(backend)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = model()
    net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 1e-2), batches(8))
    losses = []
    for inputs, labels in loader:
        with accelerator.accumulate(net):
            loss = nn.functional.cross_entropy(net(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    return losses


def accelerate_by_argument(backend: str) -> list[float]:
    """Never returns with fanin: Accelerate takes the backends of its own list."""
    from accelerate import Accelerator, InitProcessGroupKwargs

    Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend=backend)])
    return []


def trainer(backend: str) -> list[float]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    dist.init_process_group(backend)
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
    net = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    tokens = torch.randint(0, 64, (64, 16), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, use_cpu=True, per_device_train_batch_size=4, max_steps=STEPS, logging_steps=1,
            report_to=[], save_strategy="no", seed=0, disable_tqdm=True,
        )  # fmt: skip
        taught = Trainer(net, arguments, train_dataset=[{"input_ids": each, "labels": each} for each in tokens])
        taught.train()
    return [each["loss"] for each in taught.state.log_history if "loss" in each]


def deepspeed_zero(backend: str) -> list[float]:
    """ZeRO's stages 0 to 3, one after another."""
    import deepspeed

    deepspeed.init_distributed(dist_backend=backend)
    losses = []
    for stage in range(4):
        net = model()
        engine, *_ = deepspeed.initialize(
            model=net,
            optimizer=torch.optim.AdamW(net.parameters(), 1e-2),
            config={
                "train_micro_batch_size_per_gpu": 8,
                "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,
            },
        )
        for step in range(STEPS):
            drawn = torch.Generator().manual_seed(step * 2 + dist.get_rank())
            inputs, labels = torch.randn(8, 32, generator=drawn), torch.randint(0, 4, (8,), generator=drawn)
            loss = nn.functional.cross_entropy(engine(inputs), labels)
            engine.backward(loss)
            engine.step()
            mean = loss.detach().clone().float()
            dist.all_reduce(mean)
            losses.append(mean.item() / dist.get_world_size())
    return losses


def composer(backend: str) -> list[float]:
    """Composer takes the backend's name from its device."""
    try:
        import torchvision  # noqa: F401 - Composer imports it
    except RuntimeError:
        # A torchvision for another torch than this one (CUDA's) lacks its operators, which nothing here calls.
        left_out = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            left_out.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from composer import Callback, Trainer
    from composer.devices import DeviceCPU
    from composer.models import ComposerClassifier
    from composer.utils import dist as composer_dist

    DeviceCPU.dist_backend = backend
    losses: list[float] = []

    class Noted(Callback):  # type: ignore[misc]
        """Keeps the mean of each step's losses."""

        def batch_end(self, state: Any, logger: Any) -> None:
            mean = state.loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(mean.item() / dist.get_world_size())

    composer_dist.initialize_dist("cpu")
    loader = batches(8)
    shared_out = torch.utils.data.DataLoader(
        loader.dataset, 8, sampler=composer_dist.get_sampler(loader.dataset, shuffle=False)
    )
    net = model()
    trained = Trainer(
        model=ComposerClassifier(net, num_classes=4), train_dataloader=shared_out, max_duration=f"{STEPS}ba",
        optimizers=torch.optim.AdamW(net.parameters(), 1e-2), device="cpu", callbacks=[Noted()], progress_bar=False,
    )  # fmt: skip
    trained.fit()
    return losses


FRAMEWORKS: dict[str, Callable[[str], list[float]]] = {
    each.__name__: each
    for each in (
        lightning_ddp,
        lightning_fsdp2,
        accelerate,
        accelerate_by_argument,
        trainer,
        deepspeed_zero,
        composer,
    )
}


def main() -> None:
    torch.set_num_threads(1)
    name, backend = sys.argv[1:]
    losses = FRAMEWORKS[name](backend)
    if os.environ.get("RANK", "0") == "0" and os.environ.get("LOCAL_RANK", "0") == "0":
        print("RESULT", json.dumps({"backend": dist.get_backend(), "losses": losses}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
