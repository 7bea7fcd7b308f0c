"""Digests between P4Runtime messages and the emulator: their configurations, and their data as P4Data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from p4.v1 import p4runtime_pb2

from fanin.switch.p4runtime.server.digests import DigestConfig, DigestList, DigestStreams
from fanin.switch.p4runtime.server.p4info import Described
from fanin.switch.p4runtime.server.status import Code, StatusError
from fanin.switch.p4runtime.server.table_entries import DELETE, INSERT


class DigestEntries:
    """The digests of one program."""

    def __init__(self, described: Described) -> None:
        self._described = described
        self.streams = DigestStreams()

    def write(self, kind: int, entry: Any) -> None:
        """Insert, modify or delete the configuration of a digest."""
        self._check(entry.digest_id)
        there = entry.digest_id in self.streams.configs
        if kind == INSERT and there:
            raise StatusError(Code.ALREADY_EXISTS, f"digest {entry.digest_id:#x} is configured already")
        if kind != INSERT and not there:
            raise StatusError(Code.NOT_FOUND, f"digest {entry.digest_id:#x} is not configured")
        given = entry.config
        if min(given.max_timeout_ns, given.max_list_size, given.ack_timeout_ns) < 0:
            raise StatusError(Code.INVALID_ARGUMENT, "timeouts and sizes of a digest are not negative")
        config = DigestConfig(given.max_timeout_ns, given.max_list_size, given.ack_timeout_ns)
        self.streams.configure(entry.digest_id, None if kind == DELETE else config)

    def read(self, wanted: Any) -> Iterator[Any]:
        """Entities with the configurations; digest id 0 asks for all."""
        if wanted.digest_id:
            self._check(wanted.digest_id)
        for digest_id, config in self.streams.configs.items():
            if wanted.digest_id in (0, digest_id):
                entity = p4runtime_pb2.Entity()
                entity.digest_entry.digest_id = digest_id
                entity.digest_entry.config.max_timeout_ns = config.max_timeout_ns
                entity.digest_entry.config.max_list_size = config.max_list_size
                entity.digest_entry.config.ack_timeout_ns = config.ack_timeout_ns
                yield entity

    def learn(self, learned: list[tuple[int, tuple[int, ...]]], now: float) -> list[Any]:
        """Add the program's messages, as (learn list, values); return the DigestLists to send now."""
        lists = [
            each
            for number, values in learned
            for each in self.streams.learn(self._described.digest_ids[number], values, now)
        ]
        return [self._message(each, now) for each in lists]

    def due(self, now: float) -> list[Any]:
        """DigestLists that are due by now."""
        return [self._message(each, now) for each in self.streams.due(now)]

    def _check(self, digest_id: int) -> None:
        if digest_id not in (*self._described.digests, *self._described.removed):
            raise StatusError(Code.NOT_FOUND, f"there is no digest with id {digest_id:#x}")
        self._described.known(self._described.digests, digest_id, "digest")

    def _message(self, made: DigestList, now: float) -> Any:
        message = p4runtime_pb2.StreamMessageResponse()
        digest = message.digest
        digest.digest_id, digest.list_id, digest.timestamp = made.digest_id, made.list_id, int(now * 1e9)
        info = self._described.digests[made.digest_id]
        kind, types = info.type_spec.WhichOneof("type_spec"), self._types(info.type_spec)
        for values in made.messages:
            data = digest.data.add()
            parts = [data]
            if kind in ("struct", "tuple"):
                parts = [getattr(data, kind).members.add() for _ in values]
            for part, value, named in zip(parts, values, types, strict=False):
                part.bitstring = self._described.values.of_type(value, named)
        return message

    def _types(self, spec: Any) -> Iterator[str]:
        """Names of the types of a digest's fields, in order; "" for fields without a named type."""
        kind = spec.WhichOneof("type_spec")
        parts = [spec]
        if kind == "struct":
            parts = [each.type_spec for each in self._described.info.type_info.structs[spec.struct.name].members]
        elif kind == "tuple":
            parts = list(spec.tuple.members)
        return itertools.chain((each.new_type.name for each in parts), itertools.repeat(""))
