"""What a program can do and has room for, as its P4Info says."""

from __future__ import annotations

from dataclasses import dataclass

from fanin.errors import ConfigurationError
from fanin.job import JobSpec
from fanin.switch.p4runtime.vocabulary import Vocabulary

BLOCK_BITS = 2048
"""Register cells of this width hold 64 words each (p4/v1model/types.p4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Room of one program, and which jobs it is for."""

    jobs: int
    slots: int
    entries: int
    """Ring entries, of all slots together."""
    words_per_packet: int
    deep: bool
    """Whether a job's entry says how deep its rings are, or S alone does."""
    checksums: bool
    """Whether it verifies and computes our checksums."""
    root: bool
    """Whether it adds up how many contributions each of its own holds: a tree's root must."""
    leaf: bool
    """Whether it contributes complete rounds to a parent."""

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Capacity:
        """Read from tables and registers; ProgramError when they are not those of a program of ours."""
        parameters = vocabulary.parameters("jobs", "job")
        return cls(
            jobs=vocabulary.size("jobs") - 1,
            slots=vocabulary.register_size("open_round"),
            entries=vocabulary.register_size("arrived_tag"),
            words_per_packet=vocabulary.register_bits.count(BLOCK_BITS) * (BLOCK_BITS // 32),
            deep="history" in parameters,
            checksums="checksum" in parameters,
            root="branches" in parameters,
            leaf=vocabulary.has_table("uplinks"),
        )

    def check(self, spec: JobSpec, *, at_leaf: bool) -> None:
        """ConfigurationError for a job that this program can never take."""
        if spec.checksum and not self.checksums:
            raise ConfigurationError("this program computes no checksums over payloads: FANIN_CHECKSUM=0")
        if spec.survives_loss:
            raise ConfigurationError("jobs that survive the loss of workers need the software switch")
        if spec.largest_staleness != spec.staleness and not self.deep:
            raise ConfigurationError(
                f"max_staleness = {spec.largest_staleness}; this program's rings are as deep as staleness = "
                f"{spec.staleness} needs, for good"
            )
        if (spec.branches and not self.root) or (at_leaf and not self.leaf):
            raise ConfigurationError("this program takes no part in trees of switches")
        if spec.words_per_packet > self.words_per_packet:
            raise ConfigurationError(
                f"words_per_packet = {spec.words_per_packet}; the program parses {self.words_per_packet}"
            )
