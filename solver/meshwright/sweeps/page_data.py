"""The data of the page of a search: columns to filter and draw, cases to show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from meshwright.plans.plan import Plan
from meshwright.report.plan_text import plan_lines
from meshwright.report.proof import claim_lines
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.row import Row

_BETWEEN = re.compile(r", | on (?=\d)|(?: \(|\)$|\)(?=,))")
"""What stands between the words of the name of a case: model, GPUs, machine, ..."""

PLAN_FIELDS = tuple(
    name for name in Plan.model_fields if name not in ("stages", "mesh", "seats")
)
"""Plan fields that hold a single value."""


def page_data(rows: Sequence[Row], front: Sequence[str] = ()) -> dict[str, Any]:
    """Return columns with a value per case, and the details of every case.

    `front` names the metrics on whose front the page opens; only two can be drawn.
    """
    return {
        "columns": list(_columns(rows)),
        "cases": [_case(row) for row in rows],
        "labels": _labels([row.name for row in rows]),
        "front": front[:2],
    }


def _labels(names: Sequence[str]) -> list[str]:
    """Return names without the words that all of them share.

    Names stay as they are where nothing would be left to tell them apart.
    """
    words = [[word for word in _BETWEEN.split(name) if word] for name in names]
    shared = set.intersection(*map(set, words)) if len(words) > 1 else set()
    if not shared:
        return [*names]
    labels = [", ".join(word for word in own if word not in shared) for own in words]
    return labels if len(set(labels)) == len(set(names)) and all(labels) else [*names]


def _columns(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    yield _column("case", "name", [row.name for row in rows])
    yield _column("status", "status", [row.status for row in rows])
    for axis in dict.fromkeys(axis for row in rows for axis in row.axes):
        yield _column(axis, "axis", [row.axes.get(axis) for row in rows])
    for name, metric in METRICS.items():
        values = [getattr(row, name) for row in rows]
        if any(value is not None for value in values):
            yield _column(name, "metric", values) | {"best": metric.better}
    yield from _plan_columns(rows)
    reasons = [row.error or ", ".join(row.conflict) or row.sentence for row in rows]
    if any(reasons):
        yield _column("why no plan", "reason", reasons)


def _plan_columns(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield a column for each field in which plans differ."""
    for name in PLAN_FIELDS:
        values = [getattr(row.plan, name, None) for row in rows]
        if len({value for value in values if value is not None}) > 1:
            yield _column(name, "plan", values)


def _column(name: str, kind: str, values: list[Any]) -> dict[str, Any]:
    told = [
        str(value).lower() if isinstance(value, bool) else value for value in values
    ]
    return {"name": name, "kind": kind, "values": told}


def _case(row: Row) -> dict[str, Any]:
    return {
        "reason": list(_reason(row)),
        "plan": [*plan_lines(row.plan), *_stage_lines(row.plan)] if row.plan else [],
        "json": row.plan,
        "time": row.time_parts,
        "memory": row.memory,
        "certificate": list(_certificate(row)),
    }


def _reason(row: Row) -> Iterator[str]:
    if row.error:
        yield row.error
    if row.sentence:
        yield row.sentence
    if row.conflict:
        yield f"Rules in conflict: {', '.join(row.conflict)}"


def _stage_lines(plan: Plan) -> Iterator[str]:
    """Yield the stages of a pipeline, equal neighbours in one line."""
    if plan.pp == 1:
        return
    first = 0
    for stage, group in groupby(plan.stages):
        last = first + len(list(group)) - 1
        span = f"stage {first}" if first == last else f"stages {first}-{last}"
        again = f", {stage.recompute_layers} of them recomputed"
        gpu = f" on {stage.gpu}" if stage.gpu else ""
        layers = f"{stage.layers} layers{again if stage.recompute_layers else ''}"
        yield f"{span}: {layers}{gpu}"
        first = last + 1


def _certificate(row: Row) -> Iterator[str]:
    if row.certificate and row.step_s is not None:
        yield from claim_lines(row.status, row.certificate, row.step_s)
        yield f"Seed {row.certificate.seed}."
