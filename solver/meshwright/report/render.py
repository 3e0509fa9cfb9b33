"""Renders sections as aligned text, markdown or JSON."""

from __future__ import annotations

import io
import json
from typing import Any

from meshwright.escape import in_markdown, printable
from meshwright.report.solve import solve_sections
from meshwright.report.tables import Lines, Section, Table
from meshwright.report.training_run import run_sections
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan

WIDTH = 120
"""Columns of text: what a wide terminal shows, the same everywhere."""


def as_text(title: str, outcome: Outcome) -> str:
    """Return an outcome as aligned tables."""
    return sections_as_text(_all_sections(title, outcome))


def as_markdown(title: str, outcome: Outcome) -> str:
    """Return an outcome as markdown."""
    return sections_as_markdown(_all_sections(title, outcome))


def _all_sections(title: str, outcome: Outcome) -> list[Section]:
    return [*solve_sections(title, outcome), *run_sections(outcome.run)]


def sections_as_text(parts: list[Section]) -> str:
    """Return sections as aligned tables."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    for section in parts:
        _print(console, section)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def _print(console: Any, section: Section) -> None:
    from rich import box
    from rich.table import Table as RichTable

    console.print(_plain(section.title))
    if isinstance(section, Lines):
        for line in section.lines:
            console.print(_plain("  " + line), soft_wrap=True)
        console.print()
        return
    table = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True
    )
    for index, name in enumerate(section.heading):
        is_text = index == 0 or _is_text(section, index)
        table.add_column(
            _plain(name), justify="left" if is_text else "right", overflow="fold"
        )
    for row in section.rows:
        table.add_row(*map(_plain, row))
    console.print(table)
    console.print()


def _plain(text: str) -> Any:
    """Return text in which rich looks for neither markup nor emoji names."""
    from rich.text import Text

    return Text(printable(text))


def _is_text(table: Table, column: int) -> bool:
    """Return whether a column holds words; columns of numbers are right-aligned."""
    cells = [row[column] for row in table.rows if row[column] != "-"]
    return any(len(cell.split()) > 2 for cell in cells)


def sections_as_markdown(parts: list[Section]) -> str:
    """Return sections as markdown."""
    blocks = []
    for section in parts:
        blocks.append(f"### {in_markdown(section.title)}\n")
        if isinstance(section, Lines):
            blocks += [f"- {in_markdown(line.strip())}" for line in section.lines]
        else:
            rule = "|" + " --- |" * len(section.heading)
            blocks += [_row(section.heading), rule, *map(_row, section.rows)]
        blocks.append("")
    return "\n".join(blocks)


def _row(cells: tuple[str, ...]) -> str:
    """Return a row of a table in markdown."""
    return "| " + " | ".join(map(in_markdown, cells)) + " |"


def as_json(title: str, outcome: Outcome) -> str:
    """Return an outcome as JSON, the fields of the best plan at the top."""
    data: dict[str, Any] = {"spec": title, "status": outcome.status}
    certificate, best = outcome.certificate, outcome.best
    if best is not None and certificate is not None:
        data |= _plan_fields(best, outcome.capacity_gib)
        data |= {"bound_s": certificate.bound_s, "gap": certificate.gap}
        data["solver"] = certificate.model_dump(exclude={"bound_s", "gap"})
        data["others"] = [_plan_fields(p, outcome.capacity_gib) for p in outcome.others]
    data["by_kind"] = [
        {
            "kind": kind.kind,
            "best": _plan_fields(kind.best, outcome.capacity_gib)
            if kind.best
            else None,
            "near_miss": _dumped(kind.near_miss),
        }
        for kind in outcome.by_kind
    ]
    data["rival"] = _dumped(outcome.rival)
    data["near_miss"] = _dumped(outcome.near_miss)
    if outcome.run is not None:
        data["run"] = _dumped(outcome.run)
    data["gpus"] = outcome.gpus
    data["versions"] = outcome.versions
    return json.dumps(data, indent=2) + "\n"


def _dumped(model: Any) -> Any:
    return model.model_dump(mode="json") if model is not None else None


def _plan_fields(priced: PricedPlan, capacity_gib: float) -> dict[str, Any]:
    return {
        "step_s": priced.step_s,
        "plan": priced.plan.model_dump(mode="json"),
        "time": {
            "step_s": priced.step_s,
            "parts": priced.time_parts,
            "schedule_s": priced.schedule_s,
        },
        "memory": {
            "peak_gib": priced.peak_gib,
            "capacity_gib": capacity_gib,
            "stages": [stage.model_dump() for stage in priced.stages],
        },
        "links": [load.model_dump() for load in priced.links],
        "all_links": [load.model_dump() for load in priced.all_links],
        "link_utilisation": priced.link_utilisation,
        "mfu": priced.mfu,
        "tokens_per_s_per_gpu": priced.tokens_per_s_per_gpu,
    }
