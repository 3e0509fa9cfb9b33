"""What was chosen where a spec leaves machines or sequences open, and what was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

from pydantic import Field

from meshwright.spec.base import SpecModel

Verdict = Literal["solved", "bounded", "none_fits", "undecided"]


class Choice(SpecModel):
    """One way to decide what a spec leaves open, and what is proven of it."""

    number: int = Field(description="Its place among the choices of the spec, from 0.")
    machine: str = Field(description="The topology.")
    count: int = Field(description="How many of it.")
    gpus: int
    global_batch: int
    verdict: Verdict = Field(
        description="solved: its fastest plan is proven; bounded: a lower bound shows "
        "that it is not better; none_fits: it has no plan; undecided: time ran out."
    )
    step_s: float | None = Field(None, description="Of its fastest plan, where solved.")
    bound_s: float = Field(0.0, description="No plan of it takes less.")
    level: str | None = Field(
        None,
        description="The level of the objective that sets it and the chosen apart.",
    )
    loss: float | None = Field(
        None, description="How much worse it is by that level at least, as a share."
    )


class ClosedChoices(SpecModel):
    """How the choices of an open spec were closed."""

    solved: int = Field(description="Choices whose fastest plan is proven.")
    bounded: int = Field(
        description="Choices that a lower bound shows to be no better."
    )
    none_fits: int = Field(description="Choices without a plan.")
    undecided: int = Field(0, description="Choices that time ran out on.")

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> ClosedChoices:
        """Return how choices with these verdicts were closed."""
        counts = Counter(verdicts)
        return cls(**{name: counts[name] for name in get_args(Verdict)})


class NextValue(SpecModel):
    """What another value of an open field would give."""

    field: str = Field(description="cluster.count or training.global_batch.")
    value: int
    is_allowed: bool = Field(description="Whether the spec lets it be chosen.")
    step_s: float | None = Field(description="Of its fastest plan; None without one.")
    level: str | None = Field(None, description="The level that sets the two apart.")
    loss: float | None = Field(
        None, description="How much worse it is than the chosen value, as a share."
    )

    @property
    def binds(self) -> bool:
        """Return whether the answer would be better if the spec allowed the value."""
        return not self.is_allowed and self.loss is not None and self.loss < 0


class OpenAnswer(SpecModel):
    """The choice that a plan was found for, and what became of the others."""

    fields: tuple[str, ...] = Field(description="The fields that the spec leaves open.")
    levels: tuple[str, ...] = Field(description="What the choices are compared by.")
    chosen: Choice | None = Field(description="None where no choice has a plan.")
    choices: tuple[Choice, ...] = Field(description="All, the fewest GPUs first.")
    closed: ClosedChoices = Field(description="How they were closed.")
    impossible: int = Field(
        0, description="Choices that another field of the spec rules out."
    )
    why_impossible: str = Field("", description="What rules out the first of them.")
