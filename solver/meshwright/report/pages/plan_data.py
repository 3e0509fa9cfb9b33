"""The data of one plan on the page: cluster, mesh, memory, timeline of its step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.plans.plan import Plan
from meshwright.plans.ranks import RankMap, rank_map
from meshwright.plans.schedules import schedule_named
from meshwright.report.simulation import WORDS
from meshwright.report.solve import alike, spans
from meshwright.report.tables import seconds_text
from meshwright.results.claims import plan_lines, probability_text
from meshwright.results.priced_plan import LinkLoad, PricedPlan, StageMemory
from meshwright.results.simulation import (
    DrawnPlan,
    LaunchFiles,
    StageTimeline,
    TaskSpan,
    Timeline,
)
from meshwright.spec.cluster import Cluster, StagedCluster
from meshwright.spec.plan_fields import AXES
from meshwright.topology.diagram import Diagram, draw_cluster

Told = dict[str, Any]
"""The columns of a stage beside its memory: its GPU, layers and capacity."""


def plan_data(drawn: DrawnPlan, number: int, most_spans: int) -> dict[str, Any]:
    """Return all that the page tells and draws of a plan."""
    priced, gpu = drawn.priced, drawn.cluster.topology.gpu.name
    known = [
        {"gpu": stage.gpu or gpu, "capacity": rounded(capacity_gib)}
        for stage, capacity_gib in zip(
            priced.plan.stages, drawn.capacity_gib, strict=True
        )
    ]
    return {
        **priced_data(drawn.name, priced, known),
        "id": number,
        "note": drawn.note,
        "launch": _launch(drawn.launch),
        "timeline": timeline_data(drawn.timeline, most_spans),
        "mesh": mesh_data(drawn.cluster, priced.plan),
        "cluster": cluster_data(drawn.cluster, priced),
    }


def priced_data(
    name: str, priced: PricedPlan, known: Iterable[Told] | None = None
) -> dict[str, Any]:
    """Return the page's data for a plan of which only the prices are at hand.

    `known` has each stage's GPU and the memory of it, which no price has.
    """
    least = 1e-9 * priced.step_s
    stages = priced.plan.stages
    told = [
        {**gpu, "layers": stage.layers, "recomputed": stage.recompute_layers}
        for stage, gpu in zip(stages, known or [{}] * len(stages), strict=True)
    ]
    return {
        "name": name,
        "words": plan_lines(priced.plan),
        "facts": list(_facts(priced)),
        "stepS": rounded(priced.step_s),
        "time": [
            (part, rounded(seconds))
            for part, seconds in priced.time_parts.items()
            if seconds > least
        ],
        "memory": {**memory_data(priced.stages, told), "hasRecomputed": True},
    }


def _facts(priced: PricedPlan) -> Iterator[tuple[str, str]]:
    yield "Step", seconds_text(priced.step_s)
    yield "MFU", f"{priced.mfu:.1%}"
    yield "Tokens/s/GPU", f"{priced.tokens_per_s_per_gpu:,.0f}"
    yield "Fullest GPU", f"{priced.peak_gib:.2f} GiB"
    yield "Fits with probability", probability_text(priced.fit_probability)


def _launch(launch: LaunchFiles) -> dict[str, Any] | None:
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


def rounded(number: float) -> float:
    """Return a number with seven digits, which pages never show more of."""
    return float(f"{number:.7g}")


def memory_data(stages: Sequence[StageMemory], told: Sequence[Told]) -> dict[str, Any]:
    """Return the memory of stages by part; stages that are alike stand together."""
    names = [
        name
        for name in stages[0].parts
        if any(stage.parts[name] > 0 for stage in stages)
    ]
    cells = [_cell(*pair, names) for pair in zip(stages, told, strict=True)]
    groups = [
        {"label": f"stage{'s' * (len(same) > 1)} {spans(same)}", **cells[same[0]]}
        for same in alike([(repr(cell),) for cell in cells]).values()
    ]
    fullest = max(stages, key=lambda stage: stage.total_gib - stage.usable_gib)
    left = fullest.usable_gib - fullest.total_gib
    sentence = f"The fullest GPU has {left:.2f} GiB left of what a plan may use."
    if left < 0:
        sentence = f"The fullest GPU lacks {-left:.2f} GiB."
    has_host = any(stage.host_gib > 0 for stage in stages)
    return {"names": names, "groups": groups, "told": sentence, "hasHost": has_host}


def _cell(memory: StageMemory, told: Told, names: list[str]) -> Told:
    return {
        **told,
        "parts": {name: rounded(memory.parts[name]) for name in names},
        "total": rounded(memory.total_gib),
        "usable": rounded(memory.usable_gib),
        "host": rounded(memory.host_gib),
        "fits": probability_text(memory.fit_probability),
    }


TRAFFIC = ("tp", "cp", "ep", "zero", "dp", "pp", "offload")
"""Parts of the step in which a stage waits for traffic that nothing hides."""


@dataclass(frozen=True)
class _Fold:
    """The span of the step whose tasks are left out of the drawing."""

    from_s: float
    to_s: float


def timeline_data(timeline: Timeline, most_spans: int) -> dict[str, Any]:
    """Return the timeline with at most so many tasks, the middle left out."""
    fold = _fold(timeline, most_spans)
    stages = [_stage(timeline, e, fold) for e in range(len(timeline.stages))]
    drawn = sum(len(stage["spans"]) for stage in stages)
    return {
        "told": _timeline_told(timeline),
        "vpp": timeline.plan.vpp,
        "pipelineS": rounded(timeline.pipeline_s),
        "stepS": rounded(timeline.schedule_s),
        "stages": stages,
        "fold": fold
        and {
            "fromS": rounded(fold.from_s),
            "toS": rounded(fold.to_s),
            "tasks": _tasks(timeline) - drawn,
        },
    }


def _timeline_told(timeline: Timeline) -> str:
    plan = timeline.plan
    title = schedule_named(plan.schedule).title if plan.pp > 1 else "No pipeline"
    chunks = f", {plan.vpp} chunks a stage" if plan.vpp > 1 else ""
    count = f"{plan.microbatches:,} micro-batch{'es' * (plan.microbatches > 1)}"
    return f"{title}{chunks}, {count}, by the schedule's task graph."


def _tasks(timeline: Timeline) -> int:
    """Return the number of tasks of the whole step."""
    plan = timeline.plan
    kinds = {task.kind for task in timeline.stages[0].tasks}
    return plan.pp * plan.vpp * plan.microbatches * len(kinds)


def _fold(timeline: Timeline, most_spans: int) -> _Fold | None:
    """Return what to leave out: the fold of the timeline, and tasks beside it."""
    every = [task for stage in timeline.stages for task in stage.tasks]
    hidden = timeline.fold
    if len(every) <= most_spans and hidden is None:
        return None
    each = min(most_spans, len(every)) // 2
    starts = sorted(task.start_s for task in every)
    ends = sorted(task.end_s for task in every)
    from_s, to_s = starts[each], ends[-each]
    if hidden is not None:
        from_s = min(from_s, hidden.start_s)
        to_s = max(to_s, hidden.start_s + hidden.seconds)
    return _Fold(from_s, max(to_s, from_s))


def _stage(timeline: Timeline, index: int, fold: _Fold | None) -> dict[str, Any]:
    stage = timeline.stages[index]
    return {
        "label": f"stage {index}",
        "parts": {
            f"{kind}{chunk}": list(_segments(parts, WORDS[kind]))
            for (kind, chunk), parts in stage.parts.items()
        },
        "ends": list(_segments(stage.sync, "step end")),
        "busy": _timeline_busy(timeline, stage),
        "spans": [
            (kind, microbatch, chunk, rounded(start_s), rounded(end_s))
            for kind, microbatch, chunk, start_s, end_s in _unfolded(stage, fold)
        ],
        "held": list(_held(stage, fold)),
        "usable": rounded(stage.usable_gib),
    }


def _held(stage: StageTimeline, fold: _Fold | None) -> Iterator[tuple[float, float]]:
    """Yield what a GPU holds from a time on, at every change that is drawn."""
    fixed_gib, last_gib = math.fsum(stage.fixed_gib.values()), -1.0
    for at_s, activations_gib, logits_gib in stage.held:
        gib = rounded(fixed_gib + activations_gib + logits_gib)
        is_shown = fold is None or not fold.from_s < at_s < fold.to_s
        if is_shown and gib != last_gib:
            yield rounded(at_s), gib
            last_gib = gib


def _unfolded(stage: StageTimeline, fold: _Fold | None) -> Iterator[TaskSpan]:
    """Yield the tasks that are not wholly in the fold."""
    for task in stage.tasks:
        if fold is None or task.start_s < fold.from_s or task.end_s > fold.to_s:
            yield task


def _segments(
    parts: Mapping[str, float], compute: str
) -> Iterator[tuple[str, str, float]]:
    """Yield the parts of a task with the kind of work that each is."""
    for name, seconds in parts.items():
        yield _work(name, compute), name, rounded(seconds)


def _work(part: str, compute: str) -> str:
    if part in TRAFFIC:
        return "communication"
    return "recompute" if part == "recompute" else compute


def _timeline_busy(timeline: Timeline, stage: StageTimeline) -> dict[str, float]:
    """Return the seconds of a stage in the whole step by kind of work."""
    repeats = timeline.plan.microbatches
    busy: dict[str, float] = {}
    for (kind, _), parts in stage.parts.items():
        for name, seconds in parts.items():
            work = _work(name, WORDS[kind])
            busy[work] = busy.get(work, 0.0) + repeats * seconds
    for name, seconds in stage.sync.items():
        work = _work(name, "step end")
        busy[work] = busy.get(work, 0.0) + seconds
    return {work: rounded(seconds) for work, seconds in busy.items()}


MOST_HOSTS = 12
"""Hosts up to which all are drawn; of more, those of the groups of rank 0."""

MOST_GPUS = 64
"""Most GPUs that are drawn of a host."""

DOES = {
    "tp": "shares every layer",
    "cp": "shares every sequence",
    "dp_shard": "shares parameters and optimizer",
    "dp_replicate": "holds a copy, and averages gradients",
    "pp": "passes activations on",
}
"""By axis, what the ranks of a group do together."""


def mesh_data(cluster: Cluster, plan: Plan) -> dict[str, Any]:
    """Return the hosts to draw, and the place of each of their GPUs on each axis."""
    ranks = rank_map(cluster, plan)
    used = [axis for axis in AXES if int(np.prod(plan.mesh[axis])) > 1]
    notes = _hosts(ranks, used)
    columns = [AXES.index(axis) for axis in used]
    return {
        "axes": [_axis(cluster, plan, axis) for axis in used],
        "hosts": [
            {
                "name": ranks.hosts[host],
                "note": note,
                "gpus": _gpus(ranks, host, columns),
            }
            for host, note in notes.items()
        ],
        "told": _mesh_told(ranks, len(notes)),
    }


def _mesh_told(ranks: RankMap, drawn: int) -> str:
    used = len(np.unique(ranks.host))
    if drawn == used:
        return f"All {used:,} hosts." if used > 1 else "The only host."
    return f"{drawn} of {used:,} hosts: that of rank 0, and those of ranks it talks to."


def _gpus(ranks: RankMap, host: int, columns: list[int]) -> list[dict[str, Any]]:
    here = np.flatnonzero(ranks.host == host)
    here = here[np.argsort(ranks.device[here], kind="stable")][:MOST_GPUS]
    return [
        {
            "rank": rank,
            "device": int(ranks.device[rank]),
            "at": ranks.coordinates[rank, columns].tolist(),
        }
        for rank in here.tolist()
    ]


def _hosts(ranks: RankMap, used: list[str]) -> dict[int, str]:
    """Return the hosts to draw, each with a note of why it is one of many drawn."""
    every = np.unique(ranks.host).tolist()
    if len(every) <= MOST_HOSTS:
        return dict.fromkeys(every, "")
    notes = {int(ranks.host[0]): ""}
    for axis in used:
        others = [host for host in _group_hosts(ranks, axis) if host not in notes]
        for host in dict.fromkeys([*others[:1], *others[-1:]]):
            notes[host] = axis
    return {host: notes[host] for host in sorted(notes)[:MOST_HOSTS]}


def _group_hosts(ranks: RankMap, axis: str) -> list[int]:
    """Return the hosts of the group of rank 0 along one axis, in its order."""
    others = [i for i, name in enumerate(AXES) if name != axis]
    zero: Ints = ranks.coordinates[:, others] == ranks.coordinates[0, others]
    return list(dict.fromkeys(ranks.host[zero.all(axis=1)].tolist()))


def _axis(cluster: Cluster, plan: Plan, axis: str) -> dict[str, Any]:
    """Return an axis: its degree, the levels that it lies in, and its slowest link."""
    names, rates = _levels(cluster, len(plan.mesh[axis]))
    factors = plan.mesh[axis]
    lies = [
        f"{factor} in {name}"
        for factor, name in zip(factors, names, strict=True)
        if factor > 1
    ]
    outermost = max(level for level, factor in enumerate(factors) if factor > 1)
    return {
        "name": axis,
        "degree": int(np.prod(factors)),
        "lies": " x ".join(lies),
        "over": names[outermost],
        "gbS": rates[outermost],
        "does": DOES[axis],
    }


def _levels(cluster: Cluster, count: int) -> tuple[list[str], list[float | str]]:
    """Return names and GB/s of the levels of a mesh, innermost first."""
    if cluster.is_tree and len(cluster.levels) == count:
        return (
            [level.name for level in cluster.levels],
            [level.gb_s for level in cluster.levels],
        )
    outer = cluster.hosts.outer if not cluster.is_tree else ()
    names = ["the host", *(level.name for level in outer)][:count]
    rates: list[float | str] = ["its links", *(level.gb_s for level in outer)]
    more = [f"level {level}" for level in range(len(names), count)]
    return names + more, [*rates, *["-"] * count][:count]


MOST_LOADS = 200
"""Loads in the table of a page, the largest first."""

_HOST = re.compile(r"^node\d+\.")
"""The name of a host before the name of what is in it."""

_NUMBER = re.compile(r"\d+( \.\.\.)?$")
"""The number of one of several equals, or of the rest of them."""


def cluster_data(cluster: Cluster, priced: PricedPlan) -> dict[str, Any]:
    """Return the diagram of a cluster with the loads that a plan puts on its links."""
    sketch = draw_cluster(cluster)
    busy = _cluster_busy(priced.all_links, cluster.is_tree)
    lines = [
        {
            "ends": line.ends,
            "gbS": rounded(line.gb_s),
            "rails": line.rails,
            "phases": (phases := busy.get(_key(line.ends, cluster.is_tree), {})),
            "total": math.fsum(phases.values()),
        }
        for line in sketch.lines
    ]
    return {
        "told": _cluster_told(cluster, sketch),
        "points": [
            (point.name, point.kind, point.count, rounded(point.x), rounded(point.y))
            for point in sketch.points
        ],
        "lines": lines,
        "phases": list(dict.fromkeys(load.phase for load in priced.all_links)),
        "loads": [
            (load.link, load.phase, rounded(load.gb), rounded(load.seconds))
            for load in priced.all_links[:MOST_LOADS]
        ],
        "bottleneck": _bottleneck(priced.all_links),
    }


def _cluster_told(cluster: Cluster, sketch: Diagram) -> str:
    kinds = cluster.kinds if isinstance(cluster, StagedCluster) else [cluster.topology]
    names = " and ".join(dict.fromkeys(kind.gpu.name for kind in kinds))
    whole = f"{cluster.gpus:,} x {names}"
    return f"{whole}, drawn: {sketch.part}." if sketch.part else f"{whole}."


Phases = dict[str, float]


def _cluster_busy(
    loads: Iterable[LinkLoad], is_tree: bool
) -> dict[frozenset[str], Phases]:
    """Return how long a link is busy by phase: the busier way of the busiest equal."""
    busy: dict[frozenset[str], Phases] = {}
    for load in loads:
        ends = load.link.split(" -> ")
        phases = busy.setdefault(_key(ends, is_tree), {})
        seconds = max(phases.get(load.phase, 0.0), load.seconds)
        phases[load.phase] = rounded(seconds)
    return busy


def _key(ends: Iterable[str], is_tree: bool) -> frozenset[str]:
    """Return the key of links with equal loads: on a tree, the levels they join."""
    names = [_HOST.sub("", end) for end in ends]
    return frozenset(_NUMBER.sub("", name) if is_tree else name for name in names)


def _bottleneck(loads: Iterable[LinkLoad]) -> tuple[str, str, float, float] | None:
    """Return the link that is busy longest, its largest phase, its GB and seconds."""
    by_link: dict[str, list[LinkLoad]] = {}
    for load in loads:
        by_link.setdefault(load.link, []).append(load)
    if not by_link:
        return None
    worst = max(
        by_link.values(),
        key=lambda on_link: math.fsum(load.seconds for load in on_link),
    )
    first = max(worst, key=lambda load: load.seconds)
    gb = math.fsum(load.gb for load in worst)
    seconds = math.fsum(load.seconds for load in worst)
    return first.link, first.phase, rounded(gb), rounded(seconds)
