"""Profiles: efficiencies fitted to measured runs, errors, and published plans.

An efficiency is the default times a factor of the GPU, one of whose kernels run on it,
and one of the framework, so that what was never measured together learns from all.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field
from pydantic.json_schema import SkipJsonSchema

from meshwright import catalog
from meshwright.cost.job import Efficiency, Job, make_mixed_job
from meshwright.cost.whole_model import stated_params
from meshwright.frameworks.base.framework import Setting
from meshwright.frameworks.base.registry import framework, kernels_of
from meshwright.frameworks.base.switches import (
    SWITCH,
    said_switches,
    with_settings,
)
from meshwright.reading.document import validated
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.results.outcome import Band
from meshwright.results.outcome_parts import HighestMfu
from meshwright.spec.base import CountOrNone, Flag, Name, Positive, SpecModel, number
from meshwright.spec.goals import GENERIC, MemorySpread
from meshwright.spec.gpu import Precision
from meshwright.spec.run_before import (
    Combinations,
    PerDecision,
    PlanOfMaker,
    RunBefore,
    between,
)
from meshwright.spec.spec import Spec
from meshwright.spec.training import Tuned

ANY_FRAMEWORK = "any"
"""The name under which a profile has the spread of frameworks it does not know."""

Factors = dict[str, Positive]

Settings = dict[str, Setting]


def _known(settings: Settings) -> Settings:
    """Return positions of switches; refuse what is no switch, or not one of it."""
    for name, setting in settings.items():
        if name not in SWITCH:
            raise ValueError(f"{name} is not a switch; expected {', '.join(SWITCH)}")
        accepted = SWITCH[name].settings
        if (type(setting), setting) not in {(type(one), one) for one in accepted}:
            words = ", ".join(str(one).lower() for one in accepted)
            raise ValueError(f"{name}: expected {words}")
    return settings


LogError = Annotated[float, number("from 0 to 20", lambda x: 0 <= x <= 20)]
"""|ln(predicted / measured)|; at 20 they are 5e8 times apart."""

MeanError = Annotated[float, number("from 0 to 1e9", lambda x: 0 <= x <= 1e9)]
"""Of |predicted / measured - 1|."""


class RunClass(NamedTuple):
    """The facts that efficiencies depend on."""

    gpu: str
    kernels: str
    """The framework that owns the kernels."""
    framework: str


NOTHING = "nothing"
"""`LeftOut.parts` where errors are those expected."""


class LeftOut(SpecModel):
    """Errors of step time on runs that no fit had seen when it priced them.

    After a few runs of a user's own nothing is left out: these are the errors that the
    spread which calibration leaves lets expect.
    """

    rows: CountOrNone
    mape: MeanError
    median: LogError = Field(description="Of |ln(predicted / measured)|.")
    p90: LogError = Field(description="Of the same: nine runs in ten lie within.")
    parts: str = Field(
        description="What was left out at a time: a source, a third, or nothing."
    )

    @property
    def is_measured(self) -> bool:
        """Return whether runs were left out, so that errors are not just expected."""
        return self.parts != NOTHING

    def band(self, runs_of: str) -> Band:
        """Return the errors as answers have them; `runs_of` names the runs."""
        return Band(
            runs_of=runs_of,
            runs=self.rows,
            median=self.median,
            p90=self.p90,
            is_measured=self.is_measured,
        )


class LeftOutOfKind(LeftOut):
    """The same for one kind of model, over all GPUs and frameworks.

    Every source counts alike, however many runs it publishes: who asks is a new source,
    whose runs lie within errors of this kind more often than within those of their GPU
    and framework (`python -m benchmarks.truth`).
    """

    has_experts: bool = Field(description="Whether the models have experts.")
    sources: CountOrNone
    gpus: tuple[Name, ...] = Field((), description="GPUs of the runs.")

    @property
    def kind(self) -> str:
        """Return the kind of model, in words."""
        return "models with experts" if self.has_experts else "dense models"

    def band(self, runs_of: str) -> Band:
        """Return the errors as answers have them, with their sources."""
        return super().band(runs_of).model_copy(update={"sources": self.sources})


class Ranking(SpecModel):
    """How well predictions pick the fastest of runs that no fit had seen.

    Runs are ranked in groups: of one source, on the same model, GPUs and batch.
    """

    framework: Name
    has_experts: bool = Field(description="Whether the models have experts.")
    groups: CountOrNone
    sources: CountOrNone
    regret: MeanError = Field(
        description="Median over groups of what the run predicted fastest takes more "
        "than the fastest, as a share."
    )
    mean_regret: MeanError = Field(description="Mean of the same.")


class Measured(SpecModel):
    """One GPU with one framework: which runs were fitted, and how well."""

    gpu: Name
    kernels: Name = Field(description="The framework that owns the kernels.")
    framework: Name
    rows: CountOrNone
    sources: dict[str, CountOrNone] = Field(description="Runs by source.")
    mape_before: MeanError = Field(description="Mean error of the defaults.")
    mape_fitted: MeanError = Field(description="Mean error on the fitted runs.")
    left_out: LeftOut | None = None
    unidentified: tuple[str, ...] = Field(
        (), description="Parameters that these runs say nothing about."
    )

    @property
    def run_class(self) -> RunClass:
        """Return the class of the runs."""
        return RunClass(self.gpu, self.kernels, self.framework)


class Profile(SpecModel):
    """A profile file."""

    gpus: dict[str, Factors] = Field(default_factory=dict)
    kernels: dict[str, Factors] = Field(
        default_factory=dict, description="By the framework that owns the kernels."
    )
    frameworks: dict[str, Factors] = Field(
        default_factory=dict, description="On what is the framework's own."
    )
    user_time: Positive = Field(
        1.0, description="Factor on the time of runs that no vendor has tuned."
    )
    memory: dict[str, MemorySpread] = Field(
        default_factory=dict,
        description="How far predicted memory is from what runs need, by framework; "
        f"of others: {ANY_FRAMEWORK!r}.",
    )
    switches: dict[str, Annotated[Settings, AfterValidator(_known)]] = Field(
        default_factory=dict,
        description="By framework: positions of switches of `training` that its code "
        "has, where a spec does not say them.",
    )
    run_before: dict[str, Combinations] = Field(
        default_factory=dict,
        description="By framework: how many runs there are of each combination of "
        "decisions.",
    )
    doubt: PerDecision = Field(
        0.0,
        description="Share by which a step is doubted for every decision of a plan "
        "beyond the nearest combination that was run.",
    )
    names_published: Flag = Field(
        False,
        description="Whether the plan that a maker publishes for a job is named, and "
        "preferred among plans that cannot be told apart.",
    )
    unseen: SkipJsonSchema[str] = Field(
        "",
        exclude=True,
        description="A publication whose plans are taken as unknown, to judge plans by "
        "what others publish.",
    )
    measured: tuple[Measured, ...] = ()
    left_out: LeftOut | None = Field(None, description="Over all runs.")
    kinds: tuple[LeftOutOfKind, ...] = Field(
        (), description="Over all runs, by kind of model; every source counts alike."
    )
    ranking: tuple[Ranking, ...] = Field(
        (), description="Errors of order, by framework and kind of model."
    )

    def efficiency(self, spec: Spec) -> Efficiency:
        """Return the efficiency for a spec; the default where nothing was fitted."""
        gpu = spec.cluster.topology.gpu.name
        return self.efficiency_of(class_on(gpu, spec.framework), spec.training.tuned)

    def efficiency_of(self, run_class: RunClass, tuned: Tuned) -> Efficiency:
        """Return the efficiency of a class of runs, tuned by its vendor or a user."""
        found = Efficiency().times(self.gpus.get(run_class.gpu, {}))
        found = found.times(self.kernels.get(run_class.kernels, {}))
        found = found.times(self.frameworks.get(run_class.framework, {}))
        return found.slowed(self.user_time) if tuned == "user" else found

    def memory_spread(self, framework: str) -> MemorySpread:
        """Return the spread of predicted memory of a framework."""
        of_others = self.memory.get(ANY_FRAMEWORK, GENERIC)
        return self.memory.get(framework, of_others)

    def applied_to(self, spec: Spec, said: Collection[str] | None = None) -> Spec:
        """Return a spec with switches, spread of memory and known runs of the profile.

        Switches that are said stay: by default those that the spec says itself.
        """
        found = self.switches.get(spec.framework, {})
        if found:
            kept = said_switches(spec) if said is None else said
            spec = with_settings(spec, found, kept)
        known = self.runs_like(spec.framework)
        if self.names_published:
            published = nearest_published(spec, self.unseen)
            known = known.model_copy(update={"published": published})
        spec = spec.with_run_before(known)
        return spec.with_memory_spread(self.memory_spread(spec.framework))

    def runs_like(self, name: str) -> RunBefore:
        """Return what was run with the frameworks whose plans are like one's."""
        kin, counts = framework(name).kin, Counter[str]()
        for other, combinations in self.run_before.items():
            if not kin or framework(other).kin == kin:
                counts.update(combinations)
        known = {**between(counts), **counts}
        return RunBefore(combinations=known, per_decision=self.doubt)

    def job(self, spec: Spec) -> Job:
        """Return the job of a spec, with the fitted efficiency of each kind of GPU."""
        spec = self.applied_to(spec)
        return make_mixed_job(
            spec,
            lambda gpu: self.efficiency_of(
                class_on(gpu, spec.framework), spec.training.tuned
            ),
        )

    def band(self, spec: Spec) -> Band | None:
        """Return the errors of predictions for measured runs like a spec."""
        measured = self.errors(spec)
        if measured is None:
            return None
        runs_of, errors = measured
        band = errors.band(runs_of)
        if not isinstance(errors, LeftOutOfKind) or not errors.gpus:
            return band
        unknown = (name for name in spec.cluster.gpu_names if name not in errors.gpus)
        return band.model_copy(update={"none_on": (*unknown,)})

    def errors(self, spec: Spec) -> tuple[str, LeftOut] | None:
        """Return the runs most like a spec, in words, and the errors on them.

        Those that runs of your own let expect go before those of a kind of model.
        """
        run_class = class_on(spec.cluster.topology.gpu.name, spec.framework)
        alike = [
            (f"{found.gpu} with {found.framework}", found.left_out)
            for found in self._alike(run_class)
            if found.left_out
        ]
        own = [one for one in alike if not one[1].is_measured]
        has_experts = spec.model.moe is not None
        kinds = [(k.kind, k) for k in self.kinds if k.has_experts == has_experts]
        every = [("any GPU and framework", self.left_out)] if self.left_out else []
        return next(iter((*own, *kinds, *alike, *every)), None)

    def ranking_of(self, spec: Spec) -> Ranking | None:
        """Return how well runs like those of a spec are ranked, if that is known."""
        kind = (spec.framework, spec.model.moe is not None)
        found = (
            one for one in self.ranking if (one.framework, one.has_experts) == kind
        )
        return next(found, None)

    def _alike(self, run_class: RunClass) -> Iterator[Measured]:
        """Yield measured classes like one: the same, then those of its kernels."""
        yield from (m for m in self.measured if m.run_class == run_class)
        yield from (m for m in self.measured if m.run_class[:2] == run_class[:2])


def class_on(gpu: str, framework: str) -> RunClass:
    """Return the class of runs of a framework on a GPU."""
    return RunClass(gpu, kernels_of(framework), framework)


def load_profile(name: str) -> Profile:
    """Return a profile from its file, or a bundled one by its name.

    Raises:
        SpecError: it cannot be read, or is not a profile.
    """
    path = catalog.locate("profiles", name, Path())
    return _bundled(path) if name in catalog.names("profiles") else _read(path)


def _read(path: Path) -> Profile:
    document = read_yaml(path)
    return validated(document, Profile)


_bundled = cache(_read)
"""Files that ship with Meshwright do not change while a process runs."""


PATH = Path(__file__).with_name("published.json")
"""Written by `python -m benchmarks.published`; JSON is read in a millisecond."""

SAME_MODEL = 0.01
"""Largest difference of parameters, as a share, between sizes of one model: authors pad
vocabularies, or leave out norms."""

MOST_SCALED = 4
"""How many times the published number of GPUs a plan is still named for."""


class Published(SpecModel):
    """The schema of `published.json`."""

    plans: tuple[PlanOfMaker, ...]
    highest_mfu: tuple[HighestMfu, ...]


@lru_cache(maxsize=1)
def published() -> Published:
    """Return all that is known to be published."""
    return Published.model_validate(json.loads(PATH.read_text(encoding="utf-8")))


def nearest_published(spec: Spec, unseen: str = "") -> PlanOfMaker | None:
    """Return the plan published for the job that is most like a spec, if one is.

    Model, sequence, precision, GPU and kind of framework are the same; the number of
    GPUs is the nearest one. Of several, it is the one with the highest throughput.
    Those of an unseen publication are left out.
    """
    if spec.cluster.parts:
        return None
    lora = spec.training.lora
    gpus, params = spec.cluster.gpus, stated_params(spec.model)
    gpu = spec.cluster.topology.gpu.name

    def distance(one: PlanOfMaker) -> tuple[float, float]:
        away = abs(math.log(one.gpus / gpus))
        return away, -(one.tokens_per_s_per_gpu or 0.0)

    alike = (
        one
        for one in published().plans
        if one.gpu == gpu
        and abs(one.params / params - 1) <= SAME_MODEL
        and one.seq_len == spec.training.seq_len
        and one.precision == spec.training.precision
        and one.frozen == (lora and lora.weights)
        and (one.expert_dispatch is None) == (spec.model.moe is None)
        and not (unseen and unseen.lower() in one.source.lower())
        and _is_kin(spec, framework(one.framework).kin)
        and max(one.gpus / gpus, gpus / one.gpus) <= MOST_SCALED
        and gpus % math.prod(one.plan.get(name, 1) for name in ("tp", "pp", "cp")) == 0
    )
    return min(alike, key=distance, default=None)


def highest_mfu(spec: Spec, precision: Precision) -> HighestMfu | None:
    """Return the highest MFU that was published of a GPU, a precision and a kin."""
    gpu = spec.cluster.topology.gpu.name
    alike = (
        one
        for one in published().highest_mfu
        if one.gpu == gpu
        and one.precision == precision
        and _is_kin(spec, one.kin)
        and one.has_experts == (spec.model.moe is not None)
    )
    return max(alike, key=lambda one: one.mfu, default=None)


def _is_kin(spec: Spec, kin: str) -> bool:
    """Return whether plans of a kind of framework are like those of a spec's."""
    return framework(spec.framework).kin in ("", kin)
