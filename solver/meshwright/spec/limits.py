"""The `limits` section."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, model_validator

from meshwright.spec.base import Margin, Problem, Risk, Share, SpecModel, refuse
from meshwright.spec.card import card_gib
from meshwright.spec.memory_spread import MemorySpread
from meshwright.spec.units import GBPerS, GiB

DEFAULT_OOM_RISK = 0.05
"""The risk of running out of memory that a plan may take where none is given."""


class Limits(SpecModel):
    """Hard constraints on every plan."""

    oom_risk: Risk | None = Field(
        None,
        description="How likely a plan that fills the usable memory may run out of "
        f"memory: default {DEFAULT_OOM_RISK:g}. The errors of predicted memory turn it "
        "into usable memory.",
    )
    memory_margin: Margin | None = Field(
        None,
        description="Share of GPU memory that a plan leaves free; replaces the risk.",
    )
    memory_gib: GiB | None = Field(
        None, description="Usable memory per GPU; replaces the risk and the margin."
    )
    host_memory_margin: Margin = Field(
        0.03, description="Share of host memory, or of its drives, left free."
    )
    max_link_utilisation: Share | None = Field(
        None, description="Share of the step for which any link may carry traffic."
    )
    tp_min_link_gb_s: GBPerS | None = Field(
        None, description="Least bandwidth per GPU for tensor-parallel groups."
    )

    @model_validator(mode="after")
    def _check_one_limit_on_memory(self) -> Limits:
        refuse(self._given_beside_risk())
        return self

    def _given_beside_risk(self) -> Iterator[Problem]:
        """Yield the limits on memory that say something else than a given risk."""
        if self.oom_risk is None:
            return
        for name in ("memory_margin", "memory_gib"):
            value = getattr(self, name)
            if value is not None:
                sentence = "given beside limits.oom_risk; accepted: one of the two, "
                sentence += "since each says how much memory a plan may use"
                yield Problem((name,), value, sentence)

    @property
    def risk(self) -> float:
        """Return how likely a plan that fills the usable memory may run out of it."""
        return DEFAULT_OOM_RISK if self.oom_risk is None else self.oom_risk

    @property
    def is_by_risk(self) -> bool:
        """Return whether the risk decides the usable memory, and nothing else does."""
        return self.memory_gib is None and self.memory_margin is None

    def usable_gib(self, whole_gib: float, spread: MemorySpread) -> float:
        """Return the memory of a GPU that a plan may use, GiB, given all its memory.

        `spread` is how far predicted memory is from what runs need. A margin is a share
        of the nominal memory, a risk one of what CUDA reports of it.
        """
        if self.memory_gib is not None:
            return self.memory_gib
        if self.memory_margin is not None:
            return whole_gib * (1 - self.memory_margin)
        return spread.usable_gib(card_gib(whole_gib), self.risk)
