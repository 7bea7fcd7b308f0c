"""Decide whether a worker may join: every reason for a refusal stands here, with its remedy.

These functions are pure: they judge one Join, alone or beside the others of its job. The state of jobs is kept in
switch/controller/lifecycle.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from fanin.protocol.control import Join, Refusal, Refused, Tune, one_line
from fanin.protocol.job import MAX_STALENESS, MAX_TREE_WORKERS, Agreed, AskedRounds, JobSpec
from fanin.protocol.strict import MAX_TEXT_CHARACTERS
from fanin.protocol.tag_algorithm import TagAlgorithm, preferred
from fanin.protocol.window import IP_UDP_HEADER_BYTES, MAX_SHARDS
from fanin.protocol.wire import MAX_WORKERS
from fanin.protocol.wire import VERSION as WIRE_VERSION
from fanin.schemes import either, scheme_of

MIN_PATH_MTU = 576
"""MTU that every IPv4 host must accept (RFC 791); a path that reports less is misread."""
MIN_SLOTS = 1
MAX_NAME_CHARACTERS = 200
"""Longest name of a job; bounded because messages that quote it are bounded (MAX_TEXT_CHARACTERS)."""
assert 2 * MAX_NAME_CHARACTERS < MAX_TEXT_CHARACTERS

ADD_DATA = f"start the switch with --data {either(joint=',')}"
"""Remedy for a rank whose scheme the switch does not serve."""
AGREED = tuple(each.name for kind in (AskedRounds, Agreed) for each in dataclasses.fields(kind))
"""Names of the fields of Join that must be equal on all ranks of a job."""
UNLIKE_TAGS = "leave FANIN_TAG unset on every rank, or set siphash"
"""Remedy when a rank or the switch lacks the tag algorithm that the others use."""


def refuse(code: Refusal, reason: str, remedy: str, ranks: Collection[int] = ()) -> Refused:
    """A refusal whose texts are shortened to one line, so that it fits a control message."""
    return Refused(code=code.value, reason=one_line(reason), remedy=one_line(remedy), ranks=tuple(sorted(ranks)))


def in_words(ranks: Collection[int]) -> str:
    """These ranks for a message: `rank 3`, `ranks 1, 2 and 5`, or `no rank`."""
    names = [str(rank) for rank in sorted(ranks)]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}" if names else "no rank"


def judge_alone(join: Join, schemes: Collection[str], *, tree: bool = False) -> Refused | None:
    """The objection to a Join that holds whatever the other ranks ask for; None without one.

    `schemes`: those that this switch serves. `tree`: the Join came through a leaf.
    """
    largest_size = MAX_TREE_WORKERS if tree else MAX_WORKERS
    quorum = join.size if join.quorum is None else join.quorum
    if join.wire_version != WIRE_VERSION:
        return refuse(
            Refusal.VERSION,
            f"the worker (fanin {join.software}) speaks packet version {join.wire_version}, the switch {WIRE_VERSION}",
            "install the same fanin version on workers and switch",
        )
    if not 0 < len(join.job) <= MAX_NAME_CHARACTERS:
        return refuse(
            Refusal.MALFORMED, f"a job's name has 1..{MAX_NAME_CHARACTERS} characters", "choose a shorter job name"
        )
    if join.size > largest_size:
        return refuse(
            Refusal.TOO_MANY_WORKERS,
            f"{join.size} workers; {'a tree of switches' if tree else 'one switch'} aggregates at most {largest_size}",
            f"use at most {largest_size} ranks per group{'' if tree else ', or leaves below this switch (--parent)'}",
        )
    if not 0 <= join.rank < join.size:
        return refuse(
            Refusal.RANK, f"rank {join.rank} of {join.size} workers does not exist", "ranks count from 0 to size - 1"
        )
    if not 1 <= quorum <= join.size:
        return refuse(
            Refusal.QUORUM, f"quorum {quorum} of {join.size} workers", f"the quorum must be in 1..{join.size}"
        )
    largest = join.largest_staleness
    if not 0 <= join.staleness <= largest <= MAX_STALENESS:
        return refuse(
            Refusal.STALENESS,
            f"staleness {join.staleness}, at most {largest}",
            f"the staleness must be in 0..max_staleness, and that at most {MAX_STALENESS}",
        )
    if join.scheme not in schemes:
        served = " and ".join(f"{scheme}://" for scheme in sorted(schemes))
        return refuse(
            Refusal.SCHEME,
            f"this switch does not serve {join.scheme}://",
            f"use an address that begins with {served}, or {ADD_DATA}",
        )
    words, slots = join.words_per_packet, join.slots
    if (words is not None and (words < 8 or words % 8)) or (slots is not None and slots < MIN_SLOTS):
        return refuse(
            Refusal.SHAPE,
            f"words_per_packet {words} or slots {slots} is illegal",
            "words_per_packet must be a positive multiple of 8, and slots at least 1",
        )
    if join.succeeds is not None and len(join.succeeds.ranks) != join.size:
        text = f"{len(join.succeeds.ranks)} ranks of job {join.succeeds.job!r} go on as {join.size}"
        return refuse(Refusal.MALFORMED, text, "report this: Regrouped says who goes on")
    if not 1 <= join.shards <= MAX_SHARDS:
        return refuse(Refusal.SHAPE, f"a job over {join.shards} shards", f"a job has 1 to {MAX_SHARDS} shards")
    if not 0 < join.share <= 1:
        return refuse(Refusal.SHAPE, f"a share of {join.share:g} of each sum", "a share is above 0 and at most 1")
    if join.path_mtu < MIN_PATH_MTU:
        return refuse(
            Refusal.SHAPE, f"path MTU {join.path_mtu} bytes", f"every IP path carries at least {MIN_PATH_MTU} bytes"
        )
    return None


def judge_accumulators(join: Join, *, able: bool) -> Refused | None:
    """The objection to a rank that requires an accumulator for each lane of a switch that is not `able`; else None."""
    if able or not join.accumulators:
        return None
    return refuse(
        Refusal.SHAPE,
        "lanes of bits up / bits down (or a codec with such lanes): this switch's pipeline adds whole words and keeps "
        "no accumulator for each lane",
        "take packed lanes (FANIN_LANES=32, 16, 8 or 4), or a software switch",
    )


def judge_tags(join: Join, *, able: Collection[TagAlgorithm]) -> Refused | None:
    """The objection to a rank whose keyed tags this switch cannot compute; None without one.

    `able`: tag algorithms that the data plane computes.
    """
    if join.tags and able and join.authenticate is not False and preferred([join.tags, able]) is None:
        reason = (
            f"rank {join.rank} takes keyed tags by {' or '.join(join.tags)}; this switch computes {' or '.join(able)}"
        )
        return refuse(Refusal.SHAPE, reason, UNLIKE_TAGS)
    if join.authenticate and not able:
        reason = f"rank {join.rank} asks for keyed tags, and this switch's pipeline computes none"
        return refuse(Refusal.SHAPE, reason, "leave FANIN_AUTHENTICATE unset, or use a software switch")
    return None


def judge_secret(join: Join, *, open_job: bool) -> Refused | None:
    """The objection to a rank that asks for keyed tags in an `open_job`, whose key everybody has; None without one."""
    if not (join.authenticate and open_job):
        return None
    reason = f"rank {join.rank} asks for keyed tags in a job without a secret: anybody could make them"
    return refuse(Refusal.KEY, reason, "give every rank FANIN_SECRET, or leave FANIN_AUTHENTICATE unset")


def tag_of(joins: Sequence[Join], *, open_job: bool, able: Collection[TagAlgorithm]) -> TagAlgorithm | None:
    """Algorithm of the tags of a job's packets; None if they carry no tags.

    `joins` have passed `judge_tags` one by one, and `judge_unlike_tags` together.
    """
    wanted = joins[0].authenticate
    if wanted is None:
        wanted = not open_job and any(join.exposed for join in joins)
    return preferred([able, *(join.tags for join in joins)]) if wanted else None


def judge_unlike_tags(joins: Sequence[Join], *, able: Collection[TagAlgorithm]) -> Refused | None:
    """The objection to ranks that all compute keyed tags, but share no algorithm; None if they share one.

    Without this objection such a job would run, and its packets would carry no tags.
    """
    parties = [able, *(join.tags for join in joins)]
    if joins[0].authenticate is False or not all(parties) or preferred(parties) is not None:
        return None
    wishes = ", ".join(f"rank {join.rank} {' or '.join(join.tags)}" for join in joins)
    return refuse(Refusal.DISAGREEMENT, f"no algorithm of keyed tags is taken by all: {wishes}", UNLIKE_TAGS)


def judge_beside(join: Join, first: Join) -> Refused | None:
    """The objection to a Join beside the first one of its job; None when they agree."""
    if join.size != first.size:
        return refuse(
            Refusal.SIZE,
            f"rank {join.rank} says that job {join.job!r} has {join.size} workers, but rank {first.rank} "
            f"({first.process}) opened it with {first.size}",
            "start every rank with the same world size, or give the two jobs different names",
        )
    if join.scheme != first.scheme:
        return refuse(
            Refusal.DISAGREEMENT,
            f"rank {join.rank} uses {join.scheme}://, rank {first.rank} uses {first.scheme}://",
            "give every rank the same switch address",
        )
    for name in (*AGREED, "authenticate", "succeeds"):
        if getattr(join, name) != getattr(first, name):
            return refuse(
                Refusal.DISAGREEMENT,
                f"rank {join.rank} asks for {name} {getattr(join, name)}, rank {first.rank} for {getattr(first, name)}",
                "give every rank the same options",
            )
    return None


def judge_newcomer(join: Join, spec: JobSpec) -> Refused | None:
    """The objection to a rank that joins the running job `spec` in a free place; None without one."""
    if spec.data_key and spec.tag not in join.tags:
        takes = " or ".join(join.tags) or "nothing"
        reason = f"rank {join.rank} takes keyed tags by {takes}; those of the running job are by {spec.tag}"
        return refuse(Refusal.SHAPE, reason, "join from a machine whose processor has it, or start the job again")
    needed = spec.packet_bytes + IP_UDP_HEADER_BYTES
    if scheme_of(join.scheme).packets_are_datagrams and join.path_mtu < needed:
        return refuse(
            Refusal.SHAPE,
            f"the path of rank {join.rank} carries {join.path_mtu} bytes, the running job's packets have {needed}",
            "join from a machine with the same MTU, or start the job again",
        )
    return None


def judge_tune(tune: Tune, spec: JobSpec | None) -> Refused | None:
    """The objection to a new K or S of the job `spec` (None: no such job runs); None without one."""
    if spec is None:
        return refuse(
            Refusal.UNKNOWN_JOB,
            f"no job {tune.job!r} runs at this switch that this key may change",
            "`fanin stats` names the jobs that run; changing one that is not one's own takes the switch's --key-file",
        )
    if tune.quorum is not None and not 1 <= tune.quorum <= spec.workers:
        return refuse(
            Refusal.QUORUM,
            f"quorum {tune.quorum} of {spec.workers} workers",
            f"the quorum must be in 1..{spec.workers}",
        )
    if tune.staleness is not None and not 0 <= tune.staleness <= spec.max_staleness:
        return refuse(
            Refusal.STALENESS,
            f"staleness {tune.staleness}; the job was admitted for at most {spec.max_staleness}",
            f"choose 0..{spec.max_staleness}, or start the job with a larger max_staleness",
        )
    return None


def peer_refused(join: Join, refused: Refused) -> Refused:
    """The refusal for the other ranks of a job that cannot form because the rank of `join` was `refused`."""
    return refuse(
        Refusal.MEMBER_LOST,
        f"job {join.job!r} cannot form: rank {join.rank} ({join.process}) was refused ({refused.reason})",
        f"as for that rank: {refused.remedy}",
        [join.rank],
    )


def rank_taken(join: Join, holder: Join, running: bool, free_after_s: float) -> Refused:
    """The refusal for `join` because another process, `holder`, has the rank."""
    state = "runs" if running else "is waiting"
    return refuse(
        Refusal.RANK_TAKEN,
        f"rank {join.rank} of job {join.job!r} is taken: {holder.process} {state} with it",
        f"give the job another name; if that process is dead, its place is free after {free_after_s:g} s",
        [join.rank],
    )


def no_memory(needed_bytes: int, free_bytes: int, slots: int, jobs: int) -> Refused:
    """The refusal of a job that needs more memory than is free. `jobs`: how many jobs hold memory."""
    holders = f"; {jobs} job{'s' * (jobs > 1)} hold{'s' * (jobs == 1)} the rest" if jobs else ""
    return refuse(
        Refusal.MEMORY,
        f"{needed_bytes:,} bytes of switch memory needed, {free_bytes:,} free{holders}",
        f"start the switch with more --memory, or set FANIN_SLOTS below {slots}",
    )
