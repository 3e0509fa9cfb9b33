"""Profiles: efficiencies fitted to measured runs, and errors of time and memory.

An efficiency is the default times a factor of the GPU times a factor of the framework,
so that a pair without measured runs learns from both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from meshwright import catalog
from meshwright.cost.hardware_efficiency import Efficiency
from meshwright.cost.job import Job, make_mixed_job
from meshwright.errors import SpecError
from meshwright.reading.messages import explain
from meshwright.reading.yaml_text import read_yaml
from meshwright.spec.base import CountOrNone, Name, Positive, SpecModel, number
from meshwright.spec.memory_spread import GENERIC, MemorySpread
from meshwright.spec.spec import Spec

ANY_FRAMEWORK = "any"
"""The name under which a profile has the spread of frameworks it does not know."""

Factors = dict[str, Positive]

LogError = Annotated[float, number("from 0 to 20", lambda x: 0 <= x <= 20)]
"""|ln(predicted / measured)|; at 20 they are 5e8 times apart."""

MeanError = Annotated[float, number("from 0 to 1e9", lambda x: 0 <= x <= 1e9)]
"""Of |predicted / measured - 1|."""


class LeftOut(SpecModel):
    """Errors of step time on runs that no fit had seen when it priced them."""

    rows: CountOrNone
    mape: MeanError
    median: LogError = Field(description="Of |ln(predicted / measured)|.")
    p90: LogError = Field(description="Of the same: nine runs in ten lie within.")
    parts: str = Field(description="What was left out at a time: a source, or a third.")


class Measured(SpecModel):
    """One GPU with one framework: which runs were fitted, and how well."""

    gpu: Name
    framework: Name
    rows: CountOrNone
    sources: dict[str, CountOrNone] = Field(description="Runs by source.")
    mape_before: MeanError = Field(description="Mean error of the defaults.")
    mape_fitted: MeanError = Field(description="Mean error on the fitted runs.")
    left_out: LeftOut | None = None
    unidentified: tuple[str, ...] = Field(
        (), description="Parameters that these runs say nothing about."
    )


class Profile(SpecModel):
    """A profile file."""

    gpus: dict[str, Factors] = Field(default_factory=dict)
    frameworks: dict[str, Factors] = Field(default_factory=dict)
    memory: dict[str, MemorySpread] = Field(
        default_factory=dict,
        description="How far predicted memory is from what runs need, by framework; "
        f"of others: {ANY_FRAMEWORK!r}.",
    )
    measured: tuple[Measured, ...] = ()
    left_out: LeftOut | None = Field(None, description="Over all runs.")

    def efficiency(self, spec: Spec) -> Efficiency:
        """Return the efficiency for a spec; the default where nothing was fitted."""
        return self.efficiency_of(spec.cluster.topology.gpu.name, spec.framework)

    def efficiency_of(self, gpu: str, framework: str) -> Efficiency:
        """Return the efficiency for a GPU with a framework."""
        on_gpu = Efficiency().times(self.gpus.get(gpu, {}))
        return on_gpu.times(self.frameworks.get(framework, {}))

    def memory_spread(self, framework: str) -> MemorySpread:
        """Return the spread of predicted memory of a framework."""
        of_others = self.memory.get(ANY_FRAMEWORK, GENERIC)
        return self.memory.get(framework, of_others)

    def with_spread(self, spec: Spec) -> Spec:
        """Return a spec whose usable memory is that of the profile's spread."""
        return spec.with_memory_spread(self.memory_spread(spec.framework))

    def job(self, spec: Spec) -> Job:
        """Return the job of a spec, with the fitted efficiency of each kind of GPU."""
        spec = self.with_spread(spec)
        return make_mixed_job(spec, lambda gpu: self.efficiency_of(gpu, spec.framework))

    def errors(self, spec: Spec) -> tuple[str, LeftOut] | None:
        """Return the runs most like a spec, in words, and the errors on them."""
        gpu, framework = spec.cluster.topology.gpu.name, spec.framework
        for pair in self.measured:
            if (pair.gpu, pair.framework) == (gpu, framework) and pair.left_out:
                return f"{gpu} with {framework}", pair.left_out
        return ("any GPU and framework", self.left_out) if self.left_out else None


def load_profile(name: str) -> Profile:
    """Return a profile from its file, or a bundled one by its name.

    Raises:
        SpecError: it cannot be read, or is not a profile.
    """
    document = read_yaml(catalog.locate("profiles", name, Path()))
    try:
        return Profile.model_validate(document.data)
    except ValidationError as error:
        raise SpecError(explain(document, error, Profile)) from None
