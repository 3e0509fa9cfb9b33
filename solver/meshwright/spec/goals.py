"""The sections `limits` and `objective`: what plans must keep, and which is best.

A plan needs the CUDA context and communicators of its framework, what PyTorch has
allocated at the peak, and the holes that its allocator leaves (`cost.memory`). A GPU
offers `CARD_SHARE` of its nominal memory, less a margin for the error of predictions.

The ratio of the need to the prediction is taken as lognormal: its logarithm has a mean,
the bias, and a standard deviation, sigma. An optimizer fills memory up to its limit, so
the limit decides how often its plans run out of memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from meshwright.spec.base import (
    CountOrNone,
    Flag,
    Margin,
    Problem,
    Risk,
    Share,
    SpecModel,
    number,
    refuse,
    to_number,
)
from meshwright.spec.units import GBPerS, GiB

CARD_SHARE = 0.99
"""Memory that CUDA reports over the nominal one: 79.2 of 80 GiB of A100 and H100, 31.7
of 32 of V100, 178.4 of 180 of B200. The driver keeps the rest."""

LEAST_GIB = 2.0**-10
"""Memory of a card that others hold whole: no plan fits into it."""


def card_gib(nominal_gib: float) -> float:
    """Return the memory that CUDA reports of a card, GiB."""
    return CARD_SHARE * nominal_gib


Basis = Literal["calibrated", "known", "pooled", "stated"]
"""Where a spread is from: runs of the user's own, published runs of the same framework,
published runs of all frameworks, or an estimate."""

Bias = Annotated[float, number("from -1 to 1", lambda x: -1 <= x <= 1)]

Sigma = Annotated[float, number("from 0.001 to 1", lambda x: 1e-3 <= x <= 1)]

_NORMAL = NormalDist()


def normal_cdf(value: float) -> float:
    """Return how likely a standard normal number is below a value.

    `NormalDist.cdf` has other last digits in some versions of Python.
    """
    return math.erfc(-value / math.sqrt(2)) / 2


class MemorySpread(SpecModel):
    """The spread of ln(memory that runs need / predicted memory)."""

    bias: Bias = Field(0.0, description="Mean; above 0 runs need more than predicted.")
    sigma: Sigma = Field(description="Standard deviation.")
    basis: Basis = "pooled"
    peaks: CountOrNone = Field(0, description="Measured peaks that it was fitted to.")
    labels: CountOrNone = Field(
        0, description="Runs of which only 'it fits' or 'out of memory' is known."
    )
    sources: dict[str, CountOrNone] = Field(
        default_factory=dict, description="Runs by source."
    )

    def usable_gib(self, card_gib: float, risk: float) -> float:
        """Return the most that a plan may be predicted to need, GiB.

        A plan predicted to need all of it runs out of memory with probability `risk`,
        or less: no plan may count on predictions that are too high, and use more than
        the card has.
        """
        margin = self.bias + _NORMAL.inv_cdf(1 - risk) * self.sigma
        return card_gib * math.exp(-max(margin, 0.0))

    def fit_probability(self, card_gib: float, needed_gib: float) -> float:
        """Return how likely a plan fits that is predicted to need so much, GiB."""
        if needed_gib <= 0:
            return 1.0
        left = math.log(card_gib / needed_gib)
        return normal_cdf((left - self.bias) / self.sigma)

    def risk_below(self, risk: float, needed_gib: float, less_gib: float) -> float:
        """Return the risk of a plan that needs less than one of a given risk does."""
        quantile = _NORMAL.inv_cdf(1 - risk)
        more = math.log(needed_gib / (needed_gib - less_gib))
        return 1 - normal_cdf(quantile + more / self.sigma)


GENERIC = MemorySpread(sigma=0.13)
"""The spread where no profile tells one: about that of one model of memory over the
versions of a framework, as published peaks show it."""

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
    reserved_gib: GiB | None = Field(
        None,
        description="GPU memory that another program holds beside the plan: an "
        "engine that writes the answers of reinforcement learning.",
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
    untried: Flag = Field(
        False,
        description="Whether plans are offered that pass every check of the framework "
        "and that nobody is known to have run.",
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
            left = whole_gib * (1 - self.memory_margin) - (self.reserved_gib or 0)
            return max(left, LEAST_GIB)
        return spread.usable_gib(self.offered_gib(whole_gib), self.risk)

    def offered_gib(self, whole_gib: float) -> float:
        """Return what CUDA reports of a card and no other program holds, GiB."""
        return max(card_gib(whole_gib) - (self.reserved_gib or 0), LEAST_GIB)


Criterion = Literal[
    "beyond_runs",
    "unlike_published",
    "rarely_run",
    "deep_pipeline",
    "techniques",
    "replicated_shards",
    "offload",
    "short_context_parallel",
    "zero3_in_pipeline",
    "uneven_stages",
    "partial_recompute",
    "odd_micro_batch",
]
"""A property that an engineer would rather a plan did not have.

- beyond_runs: how many of its decisions are beyond what is known to have been run, or
  other than a maker publishes for the very job;
- unlike_published: whether it is another plan than the one that a maker publishes;
- rarely_run: whether few have run its combination of decisions, though others are
  common;
- deep_pipeline: whether a pipeline has more than 16 stages;
- techniques: how many techniques beyond data parallelism it has;
- replicated_shards: whether shards of state have replicas (hybrid sharding, HSDP);
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

LONG_CONTEXT = 32_768
"""Tokens of a sequence from which context parallelism is what one does."""

DEEP = 16
"""Stages of a pipeline beyond which two of the 87 published plans go."""

Metric = Literal["step_s", "usd_per_mtoken", "kwh_per_mtoken", "train_days", "gpus"]
"""Quantities to minimise.

On one cluster and batch all but `gpus`, which is the same for all plans, are
proportional to the step time.
"""

METRICS: tuple[Metric, ...] = get_args(Metric)

SIMPLEST = "simplest"

OTHER_WORDS: dict[Any, Metric] = {
    **dict.fromkeys(("time", "speed"), "step_s"),
    **dict.fromkeys(("cost", "price"), "usd_per_mtoken"),
    "energy": "kwh_per_mtoken",
    "days": "train_days",
}
"""Words for quantities to minimise. Alone, one asks for the recommended plan too:
whoever speaks of cost does not ask for a plan that nobody has run."""

USUAL_TOLERANCE = 0.02
"""Share that the recommended plan may take more, in the price that proves it."""

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
    if isinstance(value, str) and value in OTHER_WORDS:
        value = [{value: USUAL_TOLERANCE}, SIMPLEST]
    levels = value if isinstance(value, list | tuple) else [value]
    return {"levels": [_as_level(level) for level in levels]}


def _as_level(value: Any) -> Any:
    accepted = ", ".join((*METRICS, SIMPLEST))
    name, said = value, None
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, said),) = value.items()
    if isinstance(name, str):
        name = OTHER_WORDS.get(name, name)
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
        {"enum": [*METRICS, SIMPLEST, *OTHER_WORDS]},
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
    levels=(Level(metric="step_s", tolerance=USUAL_TOLERANCE), Level(metric="simplest"))
)
"""The objective of a spec that names none."""
