"""What was chosen where a spec leaves machines or sequences open, and what was not."""

from __future__ import annotations

from collections import Counter
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
    loss: float | None = Field(
        None,
        description="How much worse than the chosen one it is at least, by the level "
        "of the objective that decides, as a share.",
    )


class ClosedChoices(SpecModel):
    """How the choices of an open spec were closed."""

    solved: int = Field(description="Choices whose fastest plan is proven.")
    bounded: int = Field(
        description="Choices that a lower bound shows to be no better."
    )
    none_fits: int = Field(description="Choices without a plan.")
    undecided: int = Field(0, description="Choices that time ran out on.")

    @property
    def all(self) -> int:
        """Return how many choices there were."""
        return self.solved + self.bounded + self.none_fits + self.undecided


class OpenAnswer(SpecModel):
    """The choice that a plan was found for, and what became of the others."""

    fields: tuple[str, ...] = Field(description="The fields that the spec leaves open.")
    level: str = Field(description="What decides, the last level of the objective.")
    chosen: Choice | None = Field(description="None where no choice has a plan.")
    choices: tuple[Choice, ...] = Field(description="All, the fewest GPUs first.")
    impossible: int = Field(
        0, description="Choices that another field of the spec rules out."
    )
    why_impossible: str = Field("", description="What rules out the first of them.")

    @property
    def closed(self) -> ClosedChoices:
        """Return how the choices were closed."""
        verdicts = Counter(own.verdict for own in self.choices)
        return ClosedChoices(**{name: verdicts[name] for name in get_args(Verdict)})
