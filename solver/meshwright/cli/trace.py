"""Writes the modelled step of a plan as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.options import tell, write

if TYPE_CHECKING:
    from meshwright.plans.plan import Plan
    from meshwright.spec.open_spec import OpenSpec
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec


def write_trace(
    spec: Spec | ServingSpec | OpenSpec,
    plan: Plan | None,
    profile: str,
    path: Path,
) -> None:
    """Write the step of a plan of training; say so where there is no plan."""
    from meshwright.api.timeline import timeline
    from meshwright.report.trace_events import trace_text
    from meshwright.spec.spec import Spec

    if plan is None or not isinstance(spec, Spec):
        tell(["--trace: nothing is written: there is no whole plan"])
        return
    write(trace_text(timeline(spec, plan, profile=profile)), path, "--trace")
