"""A target: what turns a plan into files of one framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meshwright.exports.files import ExportedFile
from meshwright.exports.refusals import Refusal
from meshwright.plans.plan import Plan
from meshwright.spec.spec import Spec


@dataclass(frozen=True)
class Target:
    """One program that plans are written for."""

    title: str
    version: str
    """Name and version of the packages whose checks accept the files."""
    framework: str
    """The framework whose plans it launches, by the name that specs give it."""
    refusals: Callable[[Spec, Plan], Iterator[Refusal]]
    """Yields what of a plan the program cannot be told."""
    files: Callable[[Spec, Plan], list[ExportedFile]]
    """Writes a plan that is not refused."""


def recomputed_layers(plan: Plan) -> list[int]:
    """Return the recomputed layers of each stage."""
    return [stage.recompute_layers for stage in plan.stages]


def layers(plan: Plan) -> list[int]:
    """Return the layers of each stage."""
    return [stage.layers for stage in plan.stages]


def listed(numbers: list[int]) -> str:
    """Return numbers as text, one for all of them where they are equal."""
    return ", ".join(map(str, numbers if len({*numbers}) > 1 else numbers[:1]))


def recomputed_text(plan: Plan) -> str:
    """Return how many layers of each stage are recomputed, in words."""
    return f"{listed(recomputed_layers(plan))} of {listed(layers(plan))} layers"


def all_or_no_layers(plan: Plan, check: str) -> Iterator[Refusal]:
    """Yield what of a plan's recomputation is not of every whole layer, or of none."""
    if plan.recompute == "selective":
        sentence = f"selective on {recomputed_text(plan)}: it recomputes whole layers"
        yield Refusal("recompute", sentence, check)
    elif plan.recomputes_some_layers:
        text = recomputed_text(plan)
        sentence = f"full on {text}: it recomputes every layer, or none"
        yield Refusal("recompute", sentence, check)
