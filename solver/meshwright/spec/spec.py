"""The spec: one question to Meshwright, with its `run` and `framework`."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from meshwright.spec import consistency
from meshwright.spec.base import (
    Count,
    Flag,
    Flops,
    Hours,
    Margin,
    Positive,
    Share,
    SpecModel,
    TokenCount,
    refuse,
)
from meshwright.spec.cluster import Cluster
from meshwright.spec.goals import (
    DEFAULT_OBJECTIVE,
    GENERIC,
    Limits,
    MemorySpread,
    ObjectiveField,
)
from meshwright.spec.gpu import Precision
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import Pins
from meshwright.spec.run_before import NOTHING_KNOWN, RunBefore
from meshwright.spec.training import Training
from meshwright.spec.units import Days, GBPerS
from meshwright.spec.user_rules import Condition, UserRule

PACKAGE = "meshwright.frameworks"
"""The package, and the group of entry points."""

NO_FRAMEWORKS = ("base",)
"""The modules of the package that are no frameworks."""

TRAINS_ADAPTERS = "fsdp"
"""The framework of those who train adapters and name none: PEFT, TRL and Axolotl."""


def usual_framework(training: Any) -> str:
    """Return the framework of a job that names none, by its section `training`."""
    has_adapters = isinstance(training, dict) and training.get("lora")
    default: str = Spec.model_fields["framework"].default
    return TRAINS_ADAPTERS if has_adapters else default


def bundled() -> list[str]:
    """Return the names of frameworks that are modules of the package, sorted."""
    package = find_spec(PACKAGE)
    folders = package.submodule_search_locations if package else None
    return _modules(tuple(folders or ()))


@cache
def _modules(folders: tuple[str, ...]) -> list[str]:
    modules = pkgutil.iter_modules(folders)
    return sorted(module.name for module in modules if module.name not in NO_FRAMEWORKS)


@cache
def added() -> dict[str, EntryPoint]:
    """Return the frameworks that other packages add, by name.

    To list them takes 20 ms, more than to price a run.
    """
    return {entry.name: entry for entry in entry_points(group=PACKAGE)}


def framework_names() -> list[str]:
    """Return every name that `framework` accepts, sorted."""
    return sorted({*bundled(), *added()})


def trained_by(program: str) -> list[str]:
    """Return the bundled frameworks by which a program trains, if it is one."""
    program = program.lower().replace("_", "-")
    modules = ((name, import_module(f"{PACKAGE}.{name}")) for name in bundled())
    return [name for name, module in modules if program in module.FRAMEWORK.programs]


def _known(name: object) -> object:
    if isinstance(name, str) and (name in bundled() or name in added()):
        return name
    *names, last = (repr(known) for known in framework_names())
    expected = f"{', '.join(names)} or {last}"
    if isinstance(name, str) and (trains_by := trained_by(name)):
        expected += f"; {name} trains by {' or '.join(trains_by)}"
    raise PydanticKnownError("literal_error", {"expected": expected})


def _list_names(schema: dict[str, Any]) -> None:
    schema["enum"] = framework_names()


FrameworkName = Annotated[
    str, BeforeValidator(_known), Field(json_schema_extra=_list_names)
]
"""The name of a framework, one of `framework_names()`."""


class Checkpoint(SpecModel):
    """How checkpoints are written, and what comes after a failure."""

    model_config = ConfigDict(serialize_by_alias=True)

    gb_s: GBPerS = Field(description="To storage, of all hosts together.")
    is_async: Flag = Field(
        False,
        alias="async",
        description="Training goes on while host memory is written out.",
    )
    restart_s: Positive = Field(
        600.0,
        description="Seconds to notice a failure, mend it and start; reading comes on "
        "top. The default is an estimate.",
    )


class Straggler(SpecModel):
    """GPUs that compute more slowly than their like."""

    slowdown: Positive = Field(0.1, description="Of one slow GPU, as a share.")
    jitter: Margin = Field(
        0.0, description="Standard deviation of a GPU's compute time, as a share."
    )


class TrainingRun(SpecModel):
    """How long it goes on, what a GPU costs, and how often one fails."""

    tokens: TokenCount | None = Field(
        None,
        description="Tokens trained on, in all; default: what budget_flops pays for, "
        "else what the deadline leaves time for.",
    )
    budget_flops: Flops | None = Field(
        None, description="Model FLOPs to spend: 6 N D of them."
    )
    deadline: Days | None = Field(None, description="Days; or '90 days', '12 weeks'.")
    gpu_hour_price: Positive | None = Field(
        None, description="USD of one GPU for an hour; default: that of the GPU."
    )
    mtbf_gpu_hours: Hours | None = Field(
        None, description="GPU hours between failures that stop the job."
    )
    checkpoint: Checkpoint | None = None
    straggler: Straggler = Field(default_factory=lambda: Straggler())
    topk_density: Share = Field(
        0.01, description="Share of gradients that top-k compression keeps."
    )
    powersgd_rank: Count = Field(4, description="Of PowerSGD's two factors.")


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
        "megatron",
        description="Legality and memory profile; fsdp where a file has adapters and "
        "names none.",
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
    _run_before: RunBefore = PrivateAttr(NOTHING_KNOWN)

    @field_validator(
        "rules",
        mode="before",
        json_schema_input_type=Condition | tuple[Condition | UserRule, ...],
    )
    @classmethod
    def _spell_out_rules(cls, rules: Any) -> Any:
        listed = [rules] if isinstance(rules, str) else rules
        if not isinstance(listed, list | tuple):
            return rules
        return [{"that": one} if isinstance(one, str) else one for one in listed]

    @field_validator("rules")
    @classmethod
    def _name_rules(cls, rules: tuple[UserRule, ...]) -> tuple[UserRule, ...]:
        return tuple(
            rule if rule.name else rule.model_copy(update={"name": f"rule_{number}"})
            for number, rule in enumerate(rules, start=1)
        )

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
        # A solve asks thousands of times, and pydantic looks long for what is private.
        private: dict[str, Any] = self.__pydantic_private__ or {}
        lifted: frozenset[str] = private["_lifted_limits"]
        return lifted

    def without_limits(self, names: Iterable[str]) -> Self:
        """Return the spec under its framework without some of the framework's limits.

        Copies of the returned spec are without these limits too.
        """
        lifted = self.model_copy()
        lifted._lifted_limits = self._lifted_limits | frozenset(names)
        return lifted

    @property
    def memory_spread(self) -> MemorySpread:
        """Return the spread of needed over predicted memory; a profile has it."""
        private: dict[str, Any] = self.__pydantic_private__ or {}  # as above
        spread: MemorySpread = private["_memory_spread"]
        return spread

    def with_memory_spread(self, spread: MemorySpread) -> Self:
        """Return the spec with another spread of memory; copies of it keep it too."""
        changed = self.model_copy()
        changed._memory_spread = spread
        return changed

    @property
    def run_before(self) -> RunBefore:
        """Return what was run with frameworks like this; a profile has it."""
        return self._run_before

    def with_run_before(self, run_before: RunBefore) -> Self:
        """Return the spec with other runs; copies of it keep them too."""
        changed = self.model_copy()
        changed._run_before = run_before
        return changed

    @property
    def tp_levels(self) -> int:
        """Return how many inner levels have as much of a TP group as they can hold.

        Frameworks count tensor-parallel ranks first, so these are the levels of a node;
        all levels where the mesh of tp is pinned.
        """
        is_pinned = self.pins.tp_mesh is not None
        return len(self.cluster.fan_outs) if is_pinned else self.cluster.node_levels

    @property
    def usable_gib(self) -> float:
        """Return the memory per GPU that a plan may use, GiB."""
        whole_gib = self.cluster.topology.gpu.memory_gib
        return self.limits.usable_gib(whole_gib, self.memory_spread)

    def fit_probability(self, needed_gib: float) -> float:
        """Return how likely a plan fits that is predicted to need so much of a GPU."""
        whole_gib = self.cluster.topology.gpu.memory_gib
        offered_gib = self.limits.offered_gib(whole_gib)
        return self.memory_spread.fit_probability(offered_gib, needed_gib)

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
        # A price asks for it each time, mostly of a spec that leaves nothing open.
        if self.training.precisions == (precision,):
            return self
        return self.having("training", precisions=(precision,))

    @property
    def peak_flops(self) -> float:
        """Return the dense matmul peak of one GPU at the spec's precision, FLOP/s."""
        return self.cluster.topology.gpu.peak_tflops.flops(self.training.precision)


def with_risk(spec: Spec, oom_risk: float) -> Spec:
    """Return a spec whose plans may run out of memory with another probability."""
    by_risk = {"oom_risk": oom_risk, "memory_margin": None, "memory_gib": None}
    return spec.having("limits", **by_risk)
