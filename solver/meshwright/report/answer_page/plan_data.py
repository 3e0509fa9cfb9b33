"""The data of the charts of one plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.report.answer_page.cluster_data import cluster_data
from meshwright.report.answer_page.memory_data import memory_data
from meshwright.report.answer_page.mesh_data import mesh_data
from meshwright.report.answer_page.numbers import rounded
from meshwright.report.answer_page.timeline_data import timeline_data
from meshwright.report.plan_text import plan_lines
from meshwright.report.safety import probability_text
from meshwright.report.tables import seconds_text
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.timeline import DrawnPlan, Launch


def plan_data(drawn: DrawnPlan, number: int, most_spans: int) -> dict[str, Any]:
    """Return all that the page tells and draws of a plan."""
    priced = drawn.priced
    least = 1e-9 * priced.step_s
    return {
        "id": number,
        "name": drawn.name,
        "note": drawn.note,
        "words": plan_lines(priced.plan),
        "facts": list(_facts(priced)),
        "launch": _launch(drawn.launch),
        "stepS": rounded(priced.step_s),
        "time": [
            (name, rounded(seconds))
            for name, seconds in priced.time_parts.items()
            if seconds > least
        ],
        "timeline": timeline_data(drawn.timeline, most_spans),
        "memory": {
            **memory_data(priced.stages, list(_stages(drawn))),
            "hasRecomputed": True,
        },
        "mesh": mesh_data(drawn.cluster, priced.plan),
        "cluster": cluster_data(drawn.cluster, priced),
    }


def _facts(priced: PricedPlan) -> Iterator[tuple[str, str]]:
    yield "Step", seconds_text(priced.step_s)
    yield "MFU", f"{priced.mfu:.1%}"
    yield "Tokens/s/GPU", f"{priced.tokens_per_s_per_gpu:,.0f}"
    yield "Fullest GPU", f"{priced.peak_gib:.2f} GiB"
    yield "Fits with probability", probability_text(priced.fit_probability)


def _launch(launch: Launch) -> dict[str, Any] | None:
    if launch.refused:
        return {"refused": launch.refused}
    if not launch.files:
        return None
    texts = dict(launch.files)
    name = "launch.sh" if "launch.sh" in texts else next(iter(texts))
    lines = texts[name].rstrip().splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("exec ")]
    return {
        "target": launch.target,
        "version": launch.version,
        "file": name,
        "line": "\n".join(lines[starts[-1] if starts else -1 :]),
        "text": texts[name],
        "others": [other for other in texts if other != name],
    }


def _stages(drawn: DrawnPlan) -> Iterator[dict[str, Any]]:
    """Yield what is told of each stage beside its memory."""
    for stage, capacity_gib in zip(
        drawn.priced.plan.stages, drawn.capacity_gib, strict=True
    ):
        yield {
            "gpu": stage.gpu or drawn.cluster.topology.gpu.name,
            "layers": stage.layers,
            "recomputed": stage.recompute_layers,
            "capacity": rounded(capacity_gib),
        }
