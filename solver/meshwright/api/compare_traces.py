"""Puts a modelled trace beside a measured one."""

from __future__ import annotations

from pathlib import Path

from meshwright.results.trace_comparison import TraceComparison
from meshwright.traces.compare import compare_traces as compare


def compare_traces(
    modelled: str | Path, real: str | Path, *, stage: int | None = None
) -> TraceComparison:
    """Return the phases of a modelled step and of a measured one side by side.

    Args:
        modelled: A trace that `solve --trace` wrote.
        real: One rank's trace of `torch.profiler`.
        stage: The pipeline stage of that rank; without, the busiest one.

    Raises:
        SpecError: a file is no trace, or not of that kind, or has no such stage.
    """
    return compare(Path(modelled), Path(real), stage)
