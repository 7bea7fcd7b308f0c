"""Take over the jobs that an earlier controller left running on a device.

The device knows a job's parameters and its workers' addresses. It does not know tokens, so that a worker of an adopted
job is recognized by its registered address, and a rank that never registered can no longer join. Nor does it know the
token of a leaf at its parent, so that the parent would soon count the leaf as lost: such a job is ended here, and its
workers are told that it is unknown.
"""

from __future__ import annotations

from fanin.errors import ConfigurationError
from fanin.formats.frames import Endpoint
from fanin.protocol.job import JobSpec
from fanin.switch.p4runtime.controller.job_control import JobControl
from fanin.switch.p4runtime.controller.links import Link
from fanin.switch.p4runtime.controller.placed_job import BARE_INSTANCE, GROUPS_PER_JOB, PlacedJob, Worker
from fanin.switch.p4runtime.controller.vocabulary import DELETE, Vocabulary


def adopt(control: JobControl, link: Link, vocabulary: Vocabulary, liveness_timeout_s: float, now: float) -> list[int]:
    """Give `control` the jobs that are on the device; return their indices in ascending order."""
    jobs = {}
    for entity in link.read([vocabulary.all_entries("jobs")]):
        if not entity.table_entry.is_default_action:
            match, _, facts = vocabulary.read_entry("jobs", entity.table_entry)
            jobs[match["job"]] = _read_job(match["job"], facts, liveness_timeout_s, now)
    for leaf in _leaves(link, vocabulary, jobs):
        del jobs[leaf]
    groups = _groups(link, vocabulary)
    for job in jobs.values():
        job.groups = {number for number in groups if job.group <= number < job.group + GROUPS_PER_JOB}
    for entity in link.read([vocabulary.all_entries("workers")]):
        if entity.table_entry.is_default_action:
            continue
        match, _, ends = vocabulary.read_entry("workers", entity.table_entry)
        if match["instance"] >= BARE_INSTANCE or match["job"] not in jobs:
            continue
        rank, job = match["instance"] - 1, jobs[match["job"]]
        port = _port(groups, job.group, rank + 1)
        if port is None:  # the worker has left; only in a job with staleness does another group still have its port
            job.left |= 1 << rank
            port = _port(groups, job.group + 1 + rank, BARE_INSTANCE + rank) or 0
        job.workers[rank] = Worker(Endpoint(ends["mac"].to_bytes(6, "big"), ends["address"], ends["port"]), port)
    control.take_over(jobs.values())
    return sorted(jobs)


def _port(groups: dict[int, list[tuple[int, int]]], group: int, instance: int) -> int | None:
    """Port of the replica with that instance in a multicast group; None without one."""
    return next((port for port, each in groups.get(group, ()) if each == instance), None)


def _leaves(link: Link, vocabulary: Vocabulary, jobs: dict[int, PlacedJob]) -> list[int]:
    """Remove the jobs whose rounds close at a parent from the device; return their indices."""
    if not vocabulary.has_table("uplinks"):
        return []
    ended, updates = [], []
    for table in filter(vocabulary.has_table, ("parents", "descents")):
        for entity in link.read([vocabulary.all_entries(table)]):
            entry = entity.table_entry
            if not entry.is_default_action:
                match, _, _ = vocabulary.read_entry(table, entry)
                updates.append(vocabulary.entry(DELETE, table, match, priority=entry.priority))
    for entity in link.read([vocabulary.all_entries("uplinks")]):
        if not entity.table_entry.is_default_action:
            match, _, _ = vocabulary.read_entry("uplinks", entity.table_entry)
            updates.append(vocabulary.entry(DELETE, "uplinks", match))
            if match["job"] in jobs:
                updates.append(vocabulary.entry(DELETE, "jobs", match))
                ended.append(match["job"])
    link.write(updates)
    return ended


def _read_job(index: int, facts: dict[str, int], liveness_timeout_s: float, now: float) -> PlacedJob:
    largest = facts.get("history", facts["staleness"] + 2) - 2
    try:
        spec = JobSpec(
            job=index,
            generation=facts["generation"],
            workers=facts["workers"],
            quorum=facts["quorum"],
            staleness=facts["staleness"],
            max_staleness=largest,
            slots=facts["slots"],
            words_per_packet=facts["words"],
            codes_per_packet=facts["codes"],
            tokens=(0,) * facts["workers"],
            liveness_timeout_s=liveness_timeout_s,
            checksum=bool(facts.get("checksum", 0)),
            branches=bool(facts.get("branches", 0)),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"the device has an entry for job {index} that is none of ours: {error}") from None
    return PlacedJob(
        spec,
        facts["row"],
        facts["first_slot"],
        facts.get("first_entry", 0),
        facts["live"],
        facts["quorum"],
        facts["staleness"],
        [None] * spec.workers,
        [now] * spec.workers,
        facts["lost"],
        facts["left"],
        adopted=True,
    )


def _groups(link: Link, vocabulary: Vocabulary) -> dict[int, list[tuple[int, int]]]:
    groups = {}
    for entity in link.read([vocabulary.all_groups()]):
        entry = entity.packet_replication_engine_entry.multicast_group_entry
        groups[entry.multicast_group_id] = [(each.egress_port, each.instance) for each in entry.replicas]
    return groups
