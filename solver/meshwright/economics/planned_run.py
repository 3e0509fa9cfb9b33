"""A training run on a plan: tokens, rates, FLOPs, state, prices and objectives."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cost.job import Job
from meshwright.cost.state import state_bytes
from meshwright.cost.whole_model import (
    active_params,
    job_flops,
    recomputed_flops,
    total_params,
)
from meshwright.errors import SpecError
from meshwright.frameworks.base.framework import StateBytes
from meshwright.plans.plan import Plan
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.cluster import Cluster, usd_per_hour, watts
from meshwright.spec.goals import Level
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec, TrainingRun


@dataclass(frozen=True)
class PlannedRun:
    """The training run of a spec on a plan."""

    job: Job
    """The job at the precision of the plan."""
    priced: PricedPlan

    @property
    def asked(self) -> TrainingRun:
        """Return the section of the spec that describes the run."""
        return self.job.spec.run

    @property
    def plan(self) -> Plan:
        """Return the plan."""
        return self.priced.plan

    @property
    def model(self) -> Model:
        """Return the model."""
        return self.job.spec.model

    @property
    def params(self) -> int:
        """Return the parameters of the whole model."""
        return total_params(self.model)

    @property
    def active_params(self) -> int:
        """Return the parameters that one token passes through."""
        return active_params(self.model)

    @property
    def state(self) -> StateBytes:
        """Return the bytes per trained parameter of weights, gradients, optimizer."""
        return state_bytes(self.job.spec)

    @property
    def tokens_per_step(self) -> int:
        """Return the tokens of a global batch."""
        training = self.job.spec.training
        return training.seq_len * training.global_batch

    @property
    def tokens_per_s(self) -> float:
        """Return the throughput of all GPUs together."""
        return self.tokens_per_step / self.priced.step_s

    @property
    def usd_per_hour(self) -> float | None:
        """Return the price of all GPUs for an hour; None if it is not known."""
        return usd_per_hour(self.job.spec.cluster, self.asked.gpu_hour_price)

    def usd(self, hours: float | None) -> float | None:
        """Return the price of all GPUs for some hours; None if either is not known."""
        price = self.usd_per_hour
        return price * hours if price is not None and hours is not None else None

    @property
    def compute_s(self) -> float:
        """Return the seconds per step for which the slowest stage computes."""
        parts = self.priced.time_parts
        return parts.get("compute", 0.0) + parts.get("recompute", 0.0)

    @property
    def step_flops(self) -> float:
        """Return the model FLOPs of a step."""
        return job_flops(self.job.spec)

    @property
    def recomputed_flops(self) -> float:
        """Return the FLOPs of a step that full recomputation repeats.

        Selective recomputation counts as 0: it repeats operations of few FLOPs, and
        the scores of plain attention, which are left out like those that fused
        attention repeats.
        """
        if not self.plan.repeats_layers:
            return 0.0
        training = self.job.spec.training
        layers = sum(stage.recompute_layers for stage in self.plan.stages)
        texts = training.global_batch * training.texts
        return layers * recomputed_flops(self.model, training.text_tokens, texts)


def level_value(level: Level, spec: Spec, cluster: Cluster, step_s: float) -> float:
    """Return the value that a level minimises, up to a factor that no choice changes.

    Every value but the number of GPUs is proportional to the time of a sequence: on one
    cluster and batch the fastest plan is the cheapest. Batches are compared by that
    time too, since a step of fewer sequences is no faster way to train.

    Raises:
        SpecError: a price or a power limit is not known.
    """
    if level.metric == "gpus":
        return float(cluster.gpus)
    sequence_s = step_s / spec.training.global_batch
    if level.metric == "usd_per_mtoken":
        price = usd_per_hour(cluster, spec.run.gpu_hour_price)
        return sequence_s * _known(price, "run.gpu_hour_price or hour_usd of the GPU")
    if level.metric == "kwh_per_mtoken":
        return sequence_s * _known(watts(cluster), "tdp_w of the GPU")
    return sequence_s


def _known(amount: float | None, missing: str) -> float:
    if amount is None:
        raise SpecError(f"objective: {missing} is not known")
    return amount
