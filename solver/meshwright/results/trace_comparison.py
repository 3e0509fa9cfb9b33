"""The modelled step beside a profiler's trace, as data."""

from __future__ import annotations

from pydantic import Field

from meshwright.results.result import Result
from meshwright.spec.base import SpecModel


class PhaseTimes(SpecModel):
    """One phase of the step, as modelled and as measured.

    Phases of a step do not overlap: time in which several run counts for the first of
    them, and time in which none runs is idle. They add up to the step.
    """

    phase: str
    modelled_s: float
    measured_s: float
    busy_s: float = Field(
        description="Measured, with what hides behind the phases before it."
    )


class KernelKind(SpecModel):
    """Measured work of one kind, in one step."""

    kind: str
    phase: str
    count: float = Field(description="Kernels, or operators on a CPU.")
    seconds: float = Field(description="Their durations, added up.")
    names: tuple[str, ...] = Field(description="Those that take longest.")


class TraceComparison(Result):
    """Which part of the model is off, by a profiler's trace of one rank."""

    title: str
    stage: int = Field(description="The pipeline stage of the modelled trace.")
    stages: int
    steps: int = Field(description="Steps in the measured trace; times are their mean.")
    is_gpu: bool = Field(description="Whether the measured trace has kernels of a GPU.")
    modelled_s: float
    measured_s: float
    phases: tuple[PhaseTimes, ...]
    kernels: tuple[KernelKind, ...]
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> PhaseTimes:
        """Return the phase that is furthest off."""
        return max(
            self.phases, key=lambda phase: abs(phase.measured_s - phase.modelled_s)
        )
