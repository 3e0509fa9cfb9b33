"""Shards: how the work on one micro-batch is split over GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.plans.columns import Bools, Columns, Floats, Ints


@dataclass(frozen=True)
class Shards(Columns):
    """The columns on which one GPU's share of a layer depends."""

    tp: Ints
    cp: Ints
    ep: Ints
    micro_batch: Ints
    sequence_parallel: Bools

    def tokens(self, seq_len: int) -> Floats:
        """Return the tokens of a micro-batch that a tensor-parallel group sees."""
        result: Floats = self.micro_batch * seq_len / self.cp
        return result

    @property
    def sequence_shards(self) -> Ints:
        """Return over how many GPUs those tokens are split between matmuls."""
        result: Ints = 1 + (self.tp - 1) * self.sequence_parallel
        return result
