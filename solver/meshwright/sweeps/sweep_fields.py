"""The fields of a sweep file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from meshwright.spec.base import Count, CountOrNone, SpecModel
from meshwright.sweeps.metrics import METRICS


def _known(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"expected one of {', '.join(METRICS)}")
    return name


Metric = Annotated[str, AfterValidator(_known)]


def _few(value: Any) -> Any:
    if not isinstance(value, list | tuple) or len(set(map(str, value))) not in (2, 3):
        raise ValueError("expected two or three metrics")
    return value


class Sample(SpecModel):
    """A seeded draw from the cases of a sweep."""

    cases: Count = Field(description="How many cases.")
    seed: CountOrNone = Field(0, description="Of the draw.")


class SweepFields(SpecModel):
    """What a sweep file holds."""

    base: Any = Field(None, description="A spec: its file, a bundled name, or fields.")
    sweep: Any = Field(None, description="Fields of the base with lists of values.")
    zip: Any = Field(None, description="The same, for fields that go together.")
    sample: Sample | None = Field(None, description="A draw of so many cases.")
    where: Any = Field(None, description="Comparisons that cases must pass.")
    best: Metric = Field("tokens_per_s_per_gpu", description="What makes a case best.")
    group: str | None = Field(None, description="The axis whose values make groups.")
    front: Annotated[tuple[Metric, ...], BeforeValidator(_few)] | None = Field(
        None, description="Two or three metrics to trade off."
    )
