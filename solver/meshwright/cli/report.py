"""Writes an answer as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.options import tell, write

if TYPE_CHECKING:
    from meshwright.results.comparison import Comparison
    from meshwright.results.explanation import Explanation
    from meshwright.results.outcome import Outcome
    from meshwright.results.result import Result
    from meshwright.results.simulation import Simulation
    from meshwright.spec.open_spec import OpenSpec
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec


def write_report(
    spec: Spec | ServingSpec | OpenSpec,
    answer: Result,
    profile: str,
    path: Path | None,
) -> None:
    """Write the page of an answer about training, if one is asked for."""
    if path is None:
        return
    from meshwright.api.html_report import html_report
    from meshwright.spec.open_spec import OpenSpec
    from meshwright.spec.spec import Spec

    if isinstance(spec, OpenSpec):
        tell(["--report: nothing is written: no choice has a plan"])
        return
    assert isinstance(spec, Spec), "refused before"
    page = html_report(spec, _training(answer), profile=profile)
    write(page, path, "--report")


def _training(answer: Result) -> Outcome | Explanation | Comparison | Simulation:
    from meshwright.results.comparison import Comparison
    from meshwright.results.explanation import Explanation
    from meshwright.results.outcome import Outcome
    from meshwright.results.simulation import Simulation

    assert isinstance(answer, Outcome | Explanation | Comparison | Simulation)
    return answer
