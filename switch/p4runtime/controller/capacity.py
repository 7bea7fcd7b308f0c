"""Abilities and capacity of a program, read from its P4Info.

There are two kinds of programs. v1model's allocates each job's rings from one pool, with the depth that the job asks
for. Tofino's has rings of one depth, whose index is the low bits of a base, a register for each word of a packet or for
each pair of words, and one scale code per packet.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanin.errors import ConfigurationError, ProgramError
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import MAX_CODES
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary

BLOCK_BITS = 2048
"""Register cells of this width hold 64 words each (p4/v1model/types.p4)."""
WORDS_STEP = 8
"""Packets have a multiple of this number of words (fanin.protocol.job.JobSpec)."""
RECIRCULATION_PORT = 68
"""Recirculation port of each pipe of a Tofino (p4/tna/types.p4): it leads back into the pipe, and no worker is behind
it.
"""
SYNCHRONOUS_DEPTH = 2
"""Depth of the rings of a program for S = 0, which keeps no open rounds because they follow from the bases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Capacity of one program, and the kinds of jobs that it can run."""

    jobs: int
    slots: int
    entries: int
    """Ring entries of all slots together."""
    words_per_packet: int
    codes_per_packet: int
    depth: int | None
    """Entries of every ring; None if each job's table entry sets the depth of its rings."""
    checksums: bool
    """Whether it verifies and computes the checksums of packets."""
    root: bool
    """Whether it adds up the contributor counts of its contributions, as the root of a tree must."""
    leaf: bool
    """Whether it contributes complete rounds to a parent."""
    pokes: bool
    """Whether a packet of the controller can poke a slot; otherwise only workers' repetitions close rounds."""
    cleans: bool
    """Whether the controller must clean slots by packets for a new job, because entries do not tell jobs apart."""
    two_passes: bool
    """Whether packets with a round's words pass a pipe twice, through its port RECIRCULATION_PORT."""

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Capacity:
        """Derive the capacity from tables and registers. ProgramError if they are not those of our programs."""
        parameters, metadata = vocabulary.parameters("jobs", "job"), vocabulary.packet_out_metadata
        deep = "history" in parameters
        entries = vocabulary.register_size("arrived_tag" if deep else "facts")
        pairs = 0
        if deep:
            slots, depth, codes = vocabulary.register_size("open_round"), None, MAX_CODES
            words = vocabulary.register_bits.count(BLOCK_BITS) * (BLOCK_BITS // 32)
        else:
            stale = vocabulary.has_register("floors")
            slots = vocabulary.register_size("floors") if stale else entries // SYNCHRONOUS_DEPTH
            depth, codes = entries // slots, 1
            pairs = vocabulary.register_count("pairs") + vocabulary.register_count("pairs_low")
            words = (vocabulary.register_count("sums") + 2 * pairs) // WORDS_STEP * WORDS_STEP
        if not words:
            raise ProgramError(
                f"the program adds fewer than {WORDS_STEP} words per packet: it is for no host of ours. "
                "Remedy: load fanin's program of this version on the device"
            )
        return cls(
            jobs=vocabulary.size("jobs") - 1,
            slots=slots,
            entries=entries,
            words_per_packet=words,
            codes_per_packet=codes,
            depth=depth,
            checksums="checksum" in parameters,
            root="branches" in parameters,
            leaf=vocabulary.has_table("uplinks"),
            pokes="poke" in metadata,
            cleans="clean" in metadata,
            two_passes=pairs > 0,
        )

    def check(self, spec: JobSpec, *, at_leaf: bool) -> None:
        """Raise ConfigurationError for a job that this program can never run."""
        if spec.data_key:
            raise ConfigurationError("this program computes no keyed tags: leave FANIN_AUTHENTICATE unset")
        if spec.checksum and not self.checksums:
            raise ConfigurationError("this program computes no checksums over payloads: FANIN_CHECKSUM=0")
        if spec.survives_loss:
            raise ConfigurationError("jobs that survive the loss of workers need the software switch")
        if self.depth is not None and spec.max_staleness != spec.staleness:
            raise ConfigurationError(
                f"max_staleness = {spec.max_staleness}; in this program staleness = {spec.staleness} is for good"
            )
        if self.depth is not None and spec.history > self.depth:
            raise ConfigurationError(
                f"staleness = {spec.staleness}; this program's rings of {self.depth} entries take {self.depth - 2}"
            )
        if spec.branches and not self.root:
            raise ConfigurationError("this program is no root of trees of switches: its workers must be hosts")
        if at_leaf and not self.leaf:
            raise ConfigurationError("this program is no leaf of trees of switches: it has no way to a parent")
        if spec.accumulators:
            raise ConfigurationError(
                "this program adds whole words: it keeps no accumulators for lanes (lanes = 8/8, 4/8 ...)"
            )
        if spec.words_per_packet > self.words_per_packet:
            raise ConfigurationError(
                f"words_per_packet = {spec.words_per_packet}; the program parses {self.words_per_packet}"
            )
        if spec.codes_per_packet > self.codes_per_packet:
            raise ConfigurationError(
                f"codes_per_packet = {spec.codes_per_packet}; the program parses {self.codes_per_packet}"
            )
