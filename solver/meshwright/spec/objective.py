"""The `objective` of a spec: what the best plan is best in, level by level."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from meshwright.spec.base import Margin, Problem, SpecModel, refuse, to_number

Criterion = Literal[
    "beyond_runs",
    "techniques",
    "offload",
    "short_context_parallel",
    "zero3_in_pipeline",
    "uneven_stages",
    "partial_recompute",
    "odd_micro_batch",
]
"""A property that an engineer would rather a plan did not have.

- beyond_runs: in how many decisions it differs from what is known to have been run;
- techniques: how many techniques beyond data parallelism it has;
- offload: whether state lives in host memory;
- short_context_parallel: whether short sequences are split over GPUs;
- zero3_in_pipeline: whether parameters are gathered for every micro-batch of a stage;
- uneven_stages: whether stages differ in their layers;
- partial_recompute: whether some layers are recomputed and others are not;
- odd_micro_batch: whether the micro-batch is no power of two.
"""

BEYOND_RUNS: Criterion = "beyond_runs"

CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
"""All criteria in their default order: the first says most."""

OF_SPLIT: tuple[Criterion, ...] = ("uneven_stages", "partial_recompute")
"""Criteria that depend on how the layers of a skeleton are split."""

LONG_CONTEXT = 32_768
"""Tokens of a sequence from which context parallelism is what one does."""

Metric = Literal["step_s", "usd_per_mtoken", "kwh_per_mtoken", "train_days", "gpus"]
"""Quantities to minimise.

On one cluster and batch all but `gpus`, which is the same for all plans, are
proportional to the step time.
"""

METRICS: tuple[Metric, ...] = get_args(Metric)

SIMPLEST = "simplest"

_PERCENT = re.compile(r"\s*([0-9.]+)\s*%\s*")


class Level(SpecModel):
    """One level: later levels choose among plans within its tolerance."""

    metric: Metric | Literal["simplest"]
    tolerance: Margin = 0.0
    criteria: tuple[Criterion, ...] = CRITERIA


class Objective(SpecModel):
    """Levels, the most important first."""

    levels: tuple[Level, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_levels(self) -> Objective:
        names = [level.metric for level in self.levels]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            refuse([Problem((), twice, "is there twice")])
        if SIMPLEST in names[:-1]:
            sentence = "comes last: of equally simple plans the fastest is taken"
            refuse([Problem((), SIMPLEST, sentence)])
        if names[-1] == SIMPLEST and not self._bounding:
            sentence = "needs a level before it that bounds the step, as {step_s: 2%}"
            refuse([Problem((), SIMPLEST, sentence)])
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Return the quantities that the levels minimise, the most important first."""
        return tuple(level.metric for level in self.levels if level.metric != SIMPLEST)

    @property
    def _bounding(self) -> list[Level]:
        """Return the levels that bound the step time."""
        return [one for one in self.levels if one.metric not in ("gpus", SIMPLEST)]

    @property
    def tolerance(self) -> float:
        """Return the share of the fastest step time that a simpler plan may take."""
        if self.levels[-1].metric != SIMPLEST:
            return 0.0
        return min(level.tolerance for level in self._bounding)

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """Return the criteria of simplicity, in the order of comparison."""
        return self.levels[-1].criteria


def to_share(value: object) -> float | None:
    """Return a share from a number or a text such as '2%', or None."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    number = to_number(match[1] if match else value)
    return number / 100 if match and number is not None else number


def _as_objective(value: Any) -> Any:
    if isinstance(value, Objective) or (isinstance(value, dict) and "levels" in value):
        return value
    levels = value if isinstance(value, list | tuple) else [value]
    return {"levels": [_as_level(level) for level in levels]}


def _as_level(value: Any) -> Any:
    accepted = ", ".join((*METRICS, SIMPLEST))
    name, said = value, None
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, said),) = value.items()
    if name not in (*METRICS, SIMPLEST):
        raise ValueError(f"expected {accepted}, or a list such as [{{step_s: 2%}}]")
    if said is None:
        return {"metric": name}
    if name == SIMPLEST:
        criteria = list(said) if isinstance(said, list | tuple) else [said]
        unknown = [name for name in criteria if name not in CRITERIA]
        if unknown or not criteria or len(set(criteria)) < len(criteria):
            raise ValueError(f"expected some of {', '.join(CRITERIA)}, each once")
        return {"metric": name, "criteria": criteria}
    share = to_share(said)
    if share is None:
        raise ValueError(f"expected a tolerance for {name}, such as 2% or 0.02")
    return {"metric": name, "tolerance": share}


_SHARE: dict[str, Any] = {
    "anyOf": [{"type": "number"}, {"type": "string", "pattern": "%$"}]
}
_LEVEL: dict[str, Any] = {
    "anyOf": [
        {"enum": [*METRICS, SIMPLEST]},
        {
            "type": "object",
            "properties": {
                **dict.fromkeys(METRICS, _SHARE),
                SIMPLEST: {"type": "array", "items": {"enum": list(CRITERIA)}},
            },
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        },
    ]
}

ObjectiveField = Annotated[
    Objective,
    BeforeValidator(_as_objective),
    WithJsonSchema({"anyOf": [*_LEVEL["anyOf"], {"type": "array", "items": _LEVEL}]}),
]

FASTEST = Objective(levels=(Level(metric="step_s"),))
"""The least step time, and nothing else."""

DEFAULT_OBJECTIVE = Objective(
    levels=(Level(metric="step_s", tolerance=0.02), Level(metric="simplest"))
)
"""The objective of a spec that names none."""
