"""Mutated messages at a controller, in virtual time, while an honest job forms, starts and runs beside them.

70,000 messages with the tests, and as many as FANIN_FUZZ_MESSAGES says in the soak profile (`make fuzz-control`:
10,000,000). Held to invariants: nothing raises, what the switch holds is bounded, no honest rank is refused or told
anything that is not so, and nobody else's message moves the honest job.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sys
import typing
from typing import Any

import pytest

from fanin.protocol import control
from fanin.protocol.control import Join, Seal
from fanin.protocol.conversation import UnknownKey
from fanin.protocol.events import WorkerJoined, WorkerLeft
from fanin.protocol.seal import OPEN, Credentials, tag
from fanin.switch.controller import gate, resources
from fanin.switch.controller.leaf import LeafController
from tests.hostile.channel import OPERATOR, Channel, Client, LeafChannel, of_job
from tests.support.controllers import join
from tests.support.thorough import thorough

_GIVEN = os.environ.get("FANIN_FUZZ_MESSAGES")
MESSAGES: dict[type[Channel], int] = {Channel: int(_GIVEN or 100_000) // 2, LeafChannel: int(_GIVEN or 40_000) // 2}
"""For each kind of switch. Before a leaf has no honest job to disturb, fewer show as much."""
ROUND = 1000
"""Messages between two looks at the honest job; virtual time passes meanwhile."""
MAX_HELD_BLOCKS = 1_500_000
"""Bound on blocks of Python's memory beyond those before the run: about a hundred for each rank that may wait."""
STRANGERS = [OPEN, *(Credentials.of_job(f"stranger {number}") for number in range(5))]
NAMES = ["j", "k", "", "job 0 of an earlier controller", "x" * 200, "x" * 201, "\u2028", "a\nb"]
NUMBERS = [-(2**64), -1, 0, 1, 2, 3, 31, 32, 33, 255, 777, 1024, 1025, 65_535, 65_536, 2**31, 2**63, 2**64 - 1, 2**64]
FRACTIONS = [-1.0, 0.0, 0.001, 4.0, 120.0, 1e9, 1e300]
JUNK: list[object] = [None, True, "", "x", [], {}, [[]], {"a": 1}, 1.5, -0.0, "\u0000", [0] * 100, "y" * 600]


class Fuzzer:
    """Makes messages: legal ones of strangers, legal ones with fields changed, bytes changed, and bytes of no kind."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.seen: list[bytes] = []
        """Messages of honest ranks, as an observer of packets sees them."""
        self.challenges: dict[bytes, str] = {}
        self.numbers = 0

    def number(self) -> int:
        return self.dice.choice(NUMBERS) if self.dice.random() < 0.3 else self.dice.randrange(4)

    def join(self) -> Join:
        dice = self.dice
        changes: dict[str, Any] = {"job": dice.choice(NAMES[:2]), "nonce": f"nonce-{dice.randrange(4)}"}
        for name, values in (
            ("slots", [None, 0, 1, 4, 64, 65_536, 2**64 - 1]), ("words_per_packet", [None, 0, 8, 12, 256, 2**63]),
            ("path_mtu", [0, 576, 1500, 65_536, 2**64 - 1]), ("receive_buffer_bytes", [-1, 0, 1, 1 << 20, 2**64 - 1]),
            ("quorum", [None, 0, 1, 2, 2**63]), ("staleness", [-1, 0, 1, 1024, 2**63]), ("max_staleness", [None, 0, 4]),
            ("on_worker_loss", ["raise", "continue"]), ("join_timeout_s", FRACTIONS), ("scheme", ["udp", "zmq"]),
            ("job", NAMES), ("wire_version", [0, 1, 2]), ("checksum", [True]),
        ):  # fmt: skip
            if dice.random() < 0.1:
                changes[name] = dice.choice(values)
        size = dice.choice([1, 1, 2, 2, 3, self.number()])
        return join(dice.choice([0, 0, 1, self.number()]), size, **changes)

    def request(self) -> control.Request:
        dice, name = self.dice, self.dice.choice(NAMES)
        kind = dice.randrange(13)
        if kind < 5:
            return self.join()
        if kind < 7:
            return control.Enlist(leaf=str(dice.randrange(6)), address="udp://leaf:1", join=self.join())
        if kind < 9:
            reason = dice.choice(["", "is lost"])
            return control.Leave(job=name, rank=self.number(), nonce=f"nonce-{dice.randrange(4)}", reason=reason)
        if kind == 9:
            return control.Explain(job=name, generation=self.number())
        if kind == 10:
            return control.Tune(
                job=name,
                quorum=dice.choice([None, self.number()]),
                staleness=dice.choice([None, self.number()]),
                index=dice.choice([None, self.number()]),
            )
        if kind == 11:
            spending = control.Spending(
                age_us=self.number(), communicating_us=self.number(), quantizing_us=0, sending_us=0, decoding_us=0
            )
            nonce = f"nonce-{dice.randrange(4)}"
            return control.Spent(job=name, rank=self.number(), nonce=nonce, spending=spending)
        return control.Ask()

    def message(self, route: bytes) -> bytes:
        dice, fate = self.dice, self.dice.random()
        if fate < 0.05:
            return dice.randbytes(dice.randrange(200))
        if fate < 0.12 and self.seen:
            return self._overheard()
        credentials = dice.choice(STRANGERS)
        challenge = self.challenges.get(route, "") if dice.random() < 0.95 else "00" * 16
        disclosed = credentials.key.hex() if dice.random() < 0.9 else dice.choice([None, "00", "00" * 32])
        name = credentials.name if dice.random() < 0.95 else dice.choice(["", of_job().name, OPERATOR.name])
        self.numbers += 1 if dice.random() < 0.95 else -3
        seal = Seal(key=name, challenge=challenge, number=self.numbers, disclosed=disclosed)
        data = control.to_bytes(self.request(), seal=seal, key=credentials.key)
        if fate < 0.25:
            return self._damaged(data)
        return self._reworded(data, credentials) if fate < 0.4 else data

    def _overheard(self) -> bytes:
        """A message of another rank, unchanged or damaged."""
        data = self.dice.choice(self.seen)
        return self._damaged(data) if self.dice.random() < 0.7 else data

    def _damaged(self, data: bytes) -> bytes:
        """Bytes changed, left out, doubled or added."""
        out = bytearray(data)
        for _ in range(self.dice.randrange(1, 4)):
            at, end = sorted((self.dice.randrange(len(out) + 1), self.dice.randrange(len(out) + 1)))
            fate = self.dice.randrange(4)
            if fate == 0 and at < len(out):
                out[at] ^= 1 << self.dice.randrange(8)
            elif fate == 1:
                del out[at:end]
            elif fate == 2:
                out[at:at] = out[at:end]
            else:
                out[at:at] = self.dice.randbytes(self.dice.randrange(8))
        return bytes(out)

    def _reworded(self, data: bytes, credentials: Credentials) -> bytes:
        """Another JSON object, with a tag that holds: what a stranger with a program of his own can say."""
        body = json.loads(data)
        del body["tag"]
        part = body
        while isinstance(part, dict) and part and self.dice.random() < 0.8:
            key = self.dice.choice(list(part))
            if isinstance(part[key], dict) and self.dice.random() < 0.7:
                part = part[key]
                continue
            part[key] = self.dice.choice([*JUNK, *NUMBERS, *FRACTIONS])
            break
        covered = json.dumps(body, separators=(",", ":")).encode()[:-1]
        sealed = tag(credentials.key, covered, reply=False).hex().encode()
        return covered + b',"tag":"' + sealed + b'"}'


class Honest:
    """Two ranks that join, run for a while, leave and begin anew, whatever the strangers do."""

    def __init__(self, channel: Channel, fuzzer: Fuzzer) -> None:
        self.channel, self.fuzzer = channel, fuzzer
        self.lives = self.runs = 0
        self._begin()

    def _begin(self) -> None:
        self.lives += 1
        self.clients = [Client(self.channel, f"rank {rank}", of_job(), source="10.0.0.2") for rank in range(2)]
        self.joins = [join(rank, 2, slots=4, nonce=f"life {self.lives} of {rank}") for rank in range(2)]
        self.index = -1

    def go_on(self) -> None:
        """One step more. Asks as real ranks do: what they are told must be about the present."""
        told = [client.say(request) for client, request in zip(self.clients, self.joins, strict=True)]
        assert not any(isinstance(reply, control.Refused | UnknownKey) for reply in told), told
        for client in self.clients:
            self.fuzzer.seen += client.sent[-2:]
            client.sent.clear()
        del self.fuzzer.seen[:-50]
        if isinstance(told[1], control.Admitted):
            self.index = told[1].index
            spec = self.channel.server.specs[self.index]
            assert (spec.workers, spec.tokens[1], spec.generation) == (2, told[1].token, told[1].generation)
            for rank in range(2):
                self.channel.controller.handle_event(WorkerJoined(self.index, rank), self.channel.now)
            self.channel.collect()
            assert all(isinstance(client.hear(), control.Started) for client in self.clients)
        elif isinstance(told[1], control.Started):
            self.runs += 1
            assert not self.channel.server.tuned, "nobody changes K or S of somebody else's job"
            if self.fuzzer.dice.random() < 0.2:
                for rank in range(2):
                    self.channel.controller.handle_event(WorkerLeft(self.index, rank), self.channel.now)
                self._begin()


def held(channel: Channel) -> dict[str, tuple[int, int]]:
    """The quantities that the switch holds, each beside its bound."""
    table = channel.controller._table
    jobs = [*table.open.values(), *table.placed.values()]
    return {
        "jobs": (len({id(job) for job in jobs}), resources.MAX_JOBS),
        "ranks": (sum(len(job.members) for job in jobs), 2 * resources.MAX_WAITING_PER_SOURCE * SOURCES),
        "connections": (len(channel.gate._connections), gate.MAX_CONNECTIONS),
        "keys": (len(channel.gate._learned), gate.MAX_KEYS),
        "memory": (sum(job.memory_bytes for job in table.placed.values()), 1 << 26),
    }


SOURCES, ROUTES = 3, 64


def serve(channel: Channel, fuzzer: Fuzzer, messages: int) -> None:
    """Strangers speak; what is answered tells them the challenge."""
    for _ in range(messages):
        number = fuzzer.dice.randrange(ROUTES)
        route = b"stranger %d" % number
        channel.bring(route, fuzzer.message(route), f"10.6.6.{number % SOURCES}")
        answers = channel.answers.pop(route, [])
        if answers and b'"type":"challenge"' in answers[-1]:
            fuzzer.challenges[route] = json.loads(answers[-1])["challenge"]


@pytest.mark.parametrize("kind", [Channel, thorough(LeafChannel)])
def test_mutated_messages_neither_end_the_switch_nor_disturb_an_honest_job(kind: type[Channel]) -> None:
    seed = int(os.environ.get("FANIN_FUZZ_SEED", "10"))
    print(f"FANIN_FUZZ_SEED={seed}")
    channel, fuzzer = kind(), Fuzzer(seed)
    honest = Honest(channel, fuzzer) if kind is Channel else None
    before = sys.getallocatedblocks()
    for number in range(max(MESSAGES[kind] // ROUND, 1)):
        serve(channel, fuzzer, ROUND)
        if isinstance(channel, LeafChannel):
            leaf_hears(channel, fuzzer)
        if honest is not None:
            honest.go_on()
        channel.advance(fuzzer.dice.choice([0.1, 0.5, 1.0, 3.0]))
        over = {what: found for what, found in held(channel).items() if found[0] > found[1]}
        assert not over, f"after {number * ROUND:,} messages: {over}"
        blocks = sys.getallocatedblocks() - before
        assert blocks < MAX_HELD_BLOCKS, f"{blocks:,} blocks after {number * ROUND:,} messages"
    if honest is not None:
        assert honest.runs > 0
        assert honest.lives > 1 or MESSAGES[kind] < 50_000
    stats = Client(channel, "the operator", OPERATOR).say(control.Ask())
    assert isinstance(stats, control.Stats)
    assert stats.refused, "strangers were refused"


def leaf_hears(channel: LeafChannel, fuzzer: Fuzzer) -> None:
    """The parent's answers: it is honest, and may be of another mind than the leaf by now."""
    leaf = channel.controller
    assert isinstance(leaf, LeafController)
    for key, request in leaf.messages_to_parent()[-50:]:
        if not isinstance(request, control.Enlist):
            continue
        rank, job = request.join.rank, request.join.job
        placed = control.Placed(
            index=0,
            generation=fuzzer.dice.randrange(2**32),
            branch=0,
            token=1,
            ranks=fuzzer.dice.choice([(rank,), (0,), (0, 1), (rank, 0, 1)]),
            size=3,
            slots=4,
            words_per_packet=64,
            codes_per_packet=1,
            checksum=False,
            liveness_timeout_s=5.0,
            ports=(4919,),
        )
        answer = fuzzer.dice.choice(
            [
                {"waiting": control.Waiting(job=job, missing=(1,))},
                {"placed": placed},
                {"started": control.Started(job=job, processes=("a:1",))},
                {"refused": control.Refused(code="rank", reason="no", remedy="none")},
            ]
        )
        relayed = control.Relayed(job=job, rank=rank, **typing.cast("dict[str, Any]", answer))
        leaf.receive_from_parent(relayed, channel.now, key)
    channel.collect()


def test_the_fuzz_would_notice_a_switch_that_takes_requests_without_looking_at_the_seal() -> None:
    """The canary: a gate that lets everything in, and gives everybody the honest job's key."""
    channel, fuzzer = Channel(), Fuzzer(1)
    honest = Honest(channel, fuzzer)
    enter = channel.gate.enter

    def careless(route: bytes, data: bytes, source: str = "") -> gate.Entered | control.Reply:
        entered = enter(route, data, source)
        if isinstance(entered, gate.Entered):
            return dataclasses.replace(entered, caller=dataclasses.replace(entered.caller, key=of_job().name))
        return entered

    channel.gate.enter = careless  # type: ignore[method-assign]

    def everything() -> None:
        for _ in range(20):
            serve(channel, fuzzer, 500)
            honest.go_on()
            channel.advance(0.5)

    with pytest.raises((AssertionError, KeyError)):
        everything()
