"""Writes an answer as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.options import tell, write

if TYPE_CHECKING:
    from meshwright.report.answer_page.answers import Answer
    from meshwright.report.answer_page.serving_data import ServingAnswer
    from meshwright.results.result import Result
    from meshwright.spec.open_spec import OpenSpec
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec


def write_report(
    spec: Spec | ServingSpec | OpenSpec,
    answer: Result,
    profile: str,
    path: Path | None,
) -> None:
    """Write the page of an answer, if one is asked for."""
    if path is None:
        return
    from meshwright.api.html_report import html_report
    from meshwright.spec.open_spec import OpenSpec

    if isinstance(spec, OpenSpec):
        tell(["--report: nothing is written: no choice has a plan"])
        return
    page = html_report(spec, _drawn(answer), profile=profile)
    write(page, path, "--report")


def _drawn(answer: Result) -> Answer | ServingAnswer:
    from meshwright.report.answer_page.answers import Answer
    from meshwright.report.answer_page.serving_data import ServingAnswer

    assert isinstance(answer, Answer | ServingAnswer)
    return answer
