"""The spec: one question to Meshwright."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from meshwright.spec import consistency
from meshwright.spec.base import SpecModel, refuse
from meshwright.spec.card import card_gib
from meshwright.spec.cluster import Cluster
from meshwright.spec.framework_names import FrameworkName
from meshwright.spec.gpu import Precision
from meshwright.spec.limits import Limits
from meshwright.spec.memory_spread import GENERIC, MemorySpread
from meshwright.spec.model import Model
from meshwright.spec.objective import DEFAULT_OBJECTIVE, ObjectiveField
from meshwright.spec.pins import Pins
from meshwright.spec.run import TrainingRun
from meshwright.spec.training import Training
from meshwright.spec.user_rules import UserRule, with_names


class Spec(SpecModel):
    """A model, a cluster, a training job, and what the user has already decided.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("llama3-70b-128xa100", mw.Spec)
        >>> spec.model.n_layers, spec.cluster.gpus, spec.training.seq_len
        (80, 128, 4096)
    """

    model: Model
    cluster: Cluster
    framework: FrameworkName = Field(
        "megatron", description="Legality and memory profile."
    )
    training: Training
    limits: Limits = Field(default_factory=lambda: Limits())
    pins: Pins = Field(default_factory=lambda: Pins())
    rules: tuple[UserRule, ...] = Field(
        (), description="Rules of your own that every plan must keep."
    )
    run: TrainingRun = Field(default_factory=lambda: TrainingRun())
    objective: ObjectiveField = Field(
        default_factory=lambda: DEFAULT_OBJECTIVE,
        description="What the best plan is best in: step_s, or levels with tolerances, "
        "such as [{step_s: 2%}, simplest].",
    )
    _lifted_limits: frozenset[str] = PrivateAttr(frozenset())
    _memory_spread: MemorySpread = PrivateAttr(GENERIC)

    @field_validator("rules")
    @classmethod
    def _name_rules(cls, rules: tuple[UserRule, ...]) -> tuple[UserRule, ...]:
        return with_names(rules)

    @model_validator(mode="after")
    def _check_agreement(self) -> Spec:
        refuse(consistency.problems(self))
        return self

    @property
    def title(self) -> str:
        """Return the question in one line."""
        topology, training = self.cluster.topology, self.training
        precision = " or ".join(training.precisions)
        parts = [(part.gpus, part.topology.gpu) for part in self.cluster.parts]
        gpus = parts or [(self.cluster.gpus, topology.gpu)]
        names = " + ".join(f"{count:,} x {gpu.name}" for count, gpu in gpus)
        return (
            f"{self.model.name} on {names} "
            f"({topology.name}), {self.framework}, {precision}, "
            f"sequence {training.seq_len:,}, batch {training.global_batch:,}"
        )

    @property
    def lifted_limits(self) -> frozenset[str]:
        """Return the names of the framework's limits that its plans need not keep.

        No file can lift a limit: only `without_limits` does.
        """
        return self._lifted_limits

    def without_limits(self, names: Iterable[str]) -> Self:
        """Return the spec under its framework without some of the framework's limits.

        Copies of the returned spec are without these limits too.
        """
        lifted = self.model_copy()
        lifted._lifted_limits = self._lifted_limits | frozenset(names)
        return lifted

    @property
    def memory_spread(self) -> MemorySpread:
        """Return how far predicted memory is from what runs need; a profile tells."""
        return self._memory_spread

    def with_memory_spread(self, spread: MemorySpread) -> Self:
        """Return the spec with another spread of memory; copies of it keep it too."""
        changed = self.model_copy()
        changed._memory_spread = spread
        return changed

    @property
    def usable_gib(self) -> float:
        """Return the memory per GPU that a plan may use, GiB."""
        whole_gib = self.cluster.topology.gpu.memory_gib
        return self.limits.usable_gib(whole_gib, self.memory_spread)

    def fit_probability(self, needed_gib: float) -> float:
        """Return how likely a plan fits that is predicted to need so much of a GPU."""
        whole_gib = self.cluster.topology.gpu.memory_gib
        return self.memory_spread.fit_probability(card_gib(whole_gib), needed_gib)

    @property
    def usable_host_gib(self) -> float:
        """Return the offloaded state that a plan may put on a host, GiB."""
        host = self.cluster.topology.host
        if host is None:
            return 0.0
        is_nvme = self.training.offload_to == "nvme"
        room = host.nvme_gib if is_nvme else host.memory_gib
        return (room or 0.0) * (1 - self.limits.host_memory_margin)

    def at(self, precision: Precision) -> Spec:
        """Return the spec with one precision decided, as costs read it."""
        decided = {"precisions": (precision,)}
        training = self.training.model_copy(update=decided)
        return self.model_copy(update={"training": training})

    @property
    def peak_flops(self) -> float:
        """Return the dense matmul peak of one GPU at the spec's precision, FLOP/s."""
        return self.cluster.topology.gpu.peak_tflops.flops(self.training.precision)


def with_risk(spec: Spec, oom_risk: float) -> Spec:
    """Return a spec whose plans may run out of memory with another probability."""
    by_risk = {"oom_risk": oom_risk, "memory_margin": None, "memory_gib": None}
    limits = spec.limits.model_copy(update=by_risk)
    return spec.model_copy(update={"limits": limits})
