"""The answer to the log of a run: what slows it down or stopped it, what to change."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.results.outcome_parts import Repair
from meshwright.results.priced_plan import StageMemory
from meshwright.results.result import Result
from meshwright.spec.base import SpecModel

FaultKind = Literal["as modelled", "switch", "plan", "network", "GPUs", "host", "none"]
"""The kind of a fault: a switch of the framework, a field of the plan, links, GPUs, the
host with its input, or nothing that is listed."""

ChangeKind = Literal["fault", "switch", "plan", "hardware"]
"""The effort that a change asks of a person, in the order of the list."""


class LogFacts(SpecModel):
    """A run as its log tells it."""

    kind: str = Field(description="The kind of log, as `meshwright import` names it.")
    title: str = Field(description="The program that wrote it.")
    step_s: float | None = Field(None, description="Median seconds of a steady step.")
    low_s: float | None = Field(None, description="Tenth percentile of steady steps.")
    high_s: float | None = Field(
        None, description="Ninetieth percentile of steady steps."
    )
    steps: int = Field(0, description="Steps that count as steady.")
    allocated_gib: float | None = Field(
        None, description="Peak of memory in tensors, as PyTorch counts it."
    )
    parts: tuple[str, ...] = Field((), description="Parts of a step that it times.")
    died: str = Field(
        "", description="Why the run died, if not for memory of its GPUs."
    )
    missing: tuple[str, ...] = Field(
        (), description="What is assumed or left open for want of it."
    )


class ComparedPart(SpecModel):
    """A part of the step, as the log measured it and as it is modelled."""

    name: str
    measured_s: float
    modelled_s: float


class JudgedFault(SpecModel):
    """A hypothesis on why the run is not as modelled, and how likely it is."""

    name: str
    key: str = Field(description="The switch, the field of the plan, or a word for it.")
    kind: FaultKind
    size: str = Field("", description="How large it likely is.")
    probability: float
    prior: float = Field(description="The probability before the log was read.")
    source: str = Field(description="Where the prior comes from.")
    step_s: float = Field(description="The modelled step with the fault.")


class AdvisedChange(SpecModel):
    """A change with its price on this run."""

    kind: ChangeKind
    change: str
    option: str = Field("", description="What the launch says.")
    step_s: float = Field(description="The step then, calibrated on this run.")
    saves_s: float = Field(description="Seconds of a step that it saves.")
    probability: float = Field(
        1.0, description="How likely the fault is there that it mends."
    )
    note: str = ""
    plan: Plan | None = None


class SuspectTensor(SpecModel):
    """A tensor that may be what could not be allocated."""

    name: str
    part: str
    gib: float
    probability: float


class MemoryCause(SpecModel):
    """Why memory ran out, and what would fit."""

    line: int = Field(description="The line of the log.")
    tried_gib: float = Field(description="The allocation that failed.")
    phase: str = Field("", description="What the rank did then, if the log tells.")
    step: int = Field(0, description="Steps that were complete before.")
    part: str = Field(description="The part of memory that did not fit.")
    suspects: tuple[SuspectTensor, ...] = Field(
        description="Tensors of that size, the likely ones first."
    )
    filled_by: str = Field(description="The largest part of the modelled memory.")
    is_fragmented: bool = Field(
        description="Whether memory that PyTorch held unused would have been enough."
    )
    unused_gib: float | None = Field(
        None, description="Memory that PyTorch held and did not use."
    )
    others_gib: float = Field(
        0.0, description="Memory of the GPU that other processes held."
    )
    rank: int | None = Field(
        None, description="The rank that ran out, where its stage is known."
    )
    stage: int | None = Field(None, description="The stage of that rank.")
    memory: StageMemory = Field(
        description="As modelled, of that stage, or of the fullest one."
    )
    needed_gib: float = Field(
        description="What the rank needed at least, with the failed allocation."
    )
    repairs: tuple[Repair, ...] = Field(
        (), description="Changes after which it fits, the cheapest first."
    )


class Diagnosis(Result):
    """The cause that slows a run down or stopped it, and the change that helps.

    Example:
        >>> import meshwright as mw
        >>> callable(mw.diagnose)
        True
    """

    spec: str = Field(description="The question as it was read from the log.")
    log: LogFacts
    plan: Plan = Field(description="The plan that ran.")
    modelled_s: float = Field(description="Its step as modelled, before the log.")
    parts: tuple[ComparedPart, ...] = ()
    noise: float = Field(
        description="Standard deviation of ln(measured / modelled) of such runs, by "
        "the profile."
    )
    faults: tuple[JudgedFault, ...] = Field(
        (), description="All hypotheses, the likely ones first; they add up to 1."
    )
    changes: tuple[AdvisedChange, ...] = Field(
        (), description="By kind, each kind by the seconds that it saves."
    )
    fastest_s: float | None = Field(
        None, description="The shortest step that a change leads to on this hardware."
    )
    compute_share: float | None = Field(
        None, description="Share of the measured step that its kernels take."
    )
    out_of_memory: MemoryCause | None = None

    @property
    def limit_share(self) -> float | None:
        """Return the share of its limit at which the run goes."""
        if self.fastest_s is None or self.log.step_s is None:
            return None
        return min(self.fastest_s / self.log.step_s, 1.0)
