"""The numbers that say how good a case of a search is: one entry for each.

Whatever lists, compares, stores, exports, prints or draws metrics goes through
`METRICS`, so that a new one is one more entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from meshwright.plans.simplicity import techniques
from meshwright.report.tables import seconds_text
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan, StageMemory
from meshwright.spec.base import Count, CountOrNone
from meshwright.spec.cluster import Cluster, per_mtoken, usd_per_hour, watts
from meshwright.spec.spec import Spec


@dataclass(frozen=True)
class Answer:
    """A solved spec, from which metrics are taken."""

    spec: Spec
    outcome: Outcome

    @property
    def best(self) -> PricedPlan:
        """Return the best plan; the caller knows that there is one."""
        assert self.outcome.best is not None
        return self.outcome.best

    @property
    def cluster(self) -> Cluster:
        """Return the cluster that the best plan runs on."""
        return self.outcome.cluster or self.spec.cluster

    @property
    def tokens_per_s(self) -> float:
        """Return how many tokens all GPUs train on in a second."""
        training = self.spec.training
        return training.seq_len * training.global_batch / self.best.step_s

    @cached_property
    def fullest(self) -> StageMemory:
        """Return the stage whose GPUs have the least memory left."""
        return min(self.best.stages, key=_headroom_gib)


@dataclass(frozen=True)
class Metric:
    """A number of a case: its meaning, which way is better, and how it is printed."""

    unit: str
    description: str
    better: Literal["min", "max"]
    take: Callable[[Answer], float | None]
    """Returns the value, or None where the spec does not say enough."""
    text: Callable[[float], str]
    """Prints a value in tables."""
    number: Any = float
    """Its type in rows."""
    needs_plan: bool = True
    """Whether cases without a plan lack the metric."""
    is_of_step: bool = False
    """Whether it is proportional to the step, or to its inverse."""


def _headroom_gib(stage: StageMemory) -> float:
    return stage.usable_gib - stage.total_gib


def _doubted_s(answer: Answer) -> float | None:
    proof = answer.outcome.certificate
    return answer.best.doubted_s if proof and proof.doubt else None


def _usd_per_mtoken(answer: Answer) -> float | None:
    price = answer.spec.run.gpu_hour_price
    return _per_mtoken(usd_per_hour(answer.cluster, price), answer)


def _kwh_per_mtoken(answer: Answer) -> float | None:
    power_w = watts(answer.cluster)
    return _per_mtoken(None if power_w is None else power_w / 1e3, answer)


def _per_mtoken(per_hour: float | None, answer: Answer) -> float | None:
    """Return an amount per hour as one per million tokens, where it is known."""
    if per_hour is None:
        return None
    return per_mtoken(per_hour, answer.tokens_per_s)


def _train_days(answer: Answer) -> float | None:
    return answer.outcome.run.days if answer.outcome.run else None


METRICS = {
    "step_s": Metric(
        unit="s",
        description="Time of a training step.",
        better="min",
        take=lambda answer: answer.best.step_s,
        text=seconds_text,
        is_of_step=True,
    ),
    "doubted_s": Metric(
        unit="s",
        description="Time of a training step with what is doubted of it, by which "
        "plans are recommended and the best case is found.",
        better="min",
        take=_doubted_s,
        text=seconds_text,
    ),
    "tokens_per_s": Metric(
        unit="tokens/s",
        description="Tokens that all GPUs train on in a second.",
        better="max",
        take=lambda answer: answer.tokens_per_s,
        text="{:,.0f}".format,
        is_of_step=True,
    ),
    "tokens_per_s_per_gpu": Metric(
        unit="tokens/s",
        description="Tokens that each GPU trains on in a second.",
        better="max",
        take=lambda answer: answer.best.tokens_per_s_per_gpu,
        text="{:,.0f}".format,
        is_of_step=True,
    ),
    "mfu": Metric(
        unit="",
        description="Model FLOPs as a share of what the GPUs could do.",
        better="max",
        take=lambda answer: answer.best.mfu,
        text="{:.1%}".format,
        is_of_step=True,
    ),
    "gpus": Metric(
        unit="",
        description="GPUs of the cluster.",
        better="min",
        take=lambda answer: answer.outcome.gpus,
        text="{:,}".format,
        number=Count,
        needs_plan=False,
    ),
    "peak_gib": Metric(
        unit="GiB",
        description="Most memory that a GPU needs.",
        better="min",
        take=lambda answer: answer.best.peak_gib,
        text="{:.2f}".format,
    ),
    "headroom_gib": Metric(
        unit="GiB",
        description="Memory left on the fullest GPU.",
        better="max",
        take=lambda answer: _headroom_gib(answer.fullest),
        text="{:.2f}".format,
    ),
    "risk": Metric(
        unit="",
        description="How likely the plan runs out of memory.",
        better="min",
        take=lambda answer: 1 - answer.best.fit_probability,
        text="{:.4f}".format,
    ),
    "usd_per_mtoken": Metric(
        unit="USD",
        description="Price of a million tokens.",
        better="min",
        take=_usd_per_mtoken,
        text="{:.4f}".format,
        is_of_step=True,
    ),
    "kwh_per_mtoken": Metric(
        unit="kWh",
        description="Energy of a million tokens at the TDP of the GPUs.",
        better="min",
        take=_kwh_per_mtoken,
        text="{:.5f}".format,
        is_of_step=True,
    ),
    "train_days": Metric(
        unit="days",
        description="Duration of the `run` of the spec.",
        better="min",
        take=_train_days,
        text="{:,.1f}".format,
        is_of_step=True,
    ),
    "ways": Metric(
        unit="",
        description="Techniques beyond data parallelism: tp, zero, ...",
        better="min",
        take=lambda answer: len(techniques(answer.best.plan)),
        text="{:d}".format,
        number=CountOrNone,
    ),
}
"""All metrics by name, in the order in which they are listed."""


def taken(answer: Answer) -> dict[str, float | None]:
    """Return the metrics of a solved spec; without a plan those that need none."""
    has_plan = answer.outcome.best is not None
    return {
        name: metric.take(answer)
        for name, metric in METRICS.items()
        if has_plan or not metric.needs_plan
    }
