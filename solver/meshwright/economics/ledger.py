"""The ledger of a plan's collectives, computed by the formulas that price them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from meshwright.check.scored import rows_by_kind
from meshwright.cost import host, traffic
from meshwright.cost.blocks import Block, Operations, blocks
from meshwright.cost.job import Job
from meshwright.cost.links import block_counts, recompute_counts
from meshwright.cost.schedule import sends
from meshwright.cost.timing import BlockTimes, block_times, time_costs
from meshwright.economics.collective_labels import call_labels
from meshwright.plans.columns import Ints, Parts
from meshwright.plans.encoding import to_row, to_split
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons
from meshwright.plans.split import Split
from meshwright.results.ledger import Ledger, LedgerEntry, Phase, StageLedger
from meshwright.topology.fabric import Fabric, Place
from meshwright.topology.groups import GROUPS, PP, group_loads

OUTPUT, INPUT = "stage output", "stage input"
"""Blocks of the traffic between stages: what is sent, and what is gathered on
receiving it."""

ByPart = Mapping[str, Operations]
"""Collectives by the part of the step time that they add to."""


def ledger(job: Job, plan: Plan) -> Ledger:
    """Return every collective that a GPU of each stage of a plan takes part in."""
    rows, place = to_row(job.fabric, plan)
    counts = _call_counts(job, rows, to_split(plan))
    single_calls = [
        list(
            _single_calls(
                part_job.at(plan.precision),
                part_rows,
                _busiest_links(job, part_job, place, plan.ep),
            )
        )
        for part_job, part_rows in rows_by_kind(job, rows, place)
    ]
    stages_of: dict[tuple[LedgerEntry, ...], list[int]] = defaultdict(list)
    for stage, kind in enumerate(job.gpu_kind_of_stage(plan.pp).tolist()):
        entries = (
            _all_calls(call, counts[call.block, call.phase][stage])
            for call in single_calls[kind]
            if (call.block, call.phase) in counts
        )
        stages_of[tuple(e for e in entries if e.count_per_step)].append(stage)
    return Ledger(
        stages=tuple(
            StageLedger(stages=tuple(stages), entries=entries)
            for entries, stages in stages_of.items()
        )
    )


def _all_calls(call: LedgerEntry, count: int) -> LedgerEntry:
    """Return the entry of all calls in a step, from the entry of a single call."""
    changed = {"count_per_step": int(count), "seconds": count * call.seconds}
    changed["exposed_s"] = count * call.exposed_s
    return call.model_copy(update=changed)


def _call_counts(
    job: Job, rows: Skeletons, split: Split
) -> dict[tuple[str, Phase], Ints]:
    """Return how often a step runs a phase of a block; each array is (stages,)."""
    m = int(rows.microbatches[0])
    onward, back = sends(len(split.layers), int(rows.vpp[0]))
    result: dict[tuple[str, Phase], Ints] = {
        (OUTPUT, "forward"): m * onward,
        (OUTPUT, "backward"): m * back,
        # A stage receives one gradient for every activation that it sends on.
        (INPUT, "forward"): m * back,
        (INPUT, "backward"): m * onward,
    }
    for name, count in block_counts(job, split).items():
        result |= {(name, "forward"): m * count, (name, "backward"): m * count}
        result[name, "step end"] = count
    for name, count in recompute_counts(job, rows, split).items():
        result[name, "recompute"] = m * count
    return result


def _busiest_links(job: Job, part_job: Job, place: Place, ep: int) -> list[str]:
    """Return the most loaded link of each group, for the GPUs of one part.

    Stages of different parts send to each other over the whole cluster.
    """
    whole = job.fabric.placed(place.order)
    links = _most_loaded(part_job.fabric if job.gpu_kinds else whole, place, ep)
    links[PP] = _most_loaded(whole, place, ep)[PP]
    return links


def _most_loaded(fabric: Fabric, place: Place, ep: int) -> list[str]:
    loads = group_loads(fabric, place.mesh, ep)
    return [fabric.link_names[link] for link in loads.argmax(axis=1)]


def _single_calls(job: Job, rows: Skeletons, links: list[str]) -> Iterator[LedgerEntry]:
    """Yield an entry of a single call for every collective of every block."""
    times = block_times(job, rows)
    for name, block in blocks(job, rows).items():
        phases: dict[Phase, ByPart] = {
            "forward": block.forward,
            "backward": block.backward,
            "recompute": block.recompute(rows),
            "step end": {"dp": block.end},
        }
        exposed = _exposed_shares(job, rows, block, times[name])
        for phase, parts in phases.items():
            yield from _calls_of_phase(
                job, rows, links, name, phase, parts, exposed[phase]
            )
    sent, gathered = traffic.pipeline_send(job, rows)
    send_s = float(traffic.seconds(job, rows, [sent, gathered])[0])
    seen_s = float((time_costs(job, rows).send_s - host.send_s(job, rows))[0])
    seen = {"pp": seen_s / send_s if send_s else 1.0}
    for phase in ("forward", "backward"):
        for name, collective in ((OUTPUT, sent), (INPUT, gathered)):
            parts = {"pp": [collective]}
            yield from _calls_of_phase(job, rows, links, name, phase, parts, seen)


def _calls_of_phase(
    job: Job,
    rows: Skeletons,
    links: list[str],
    block: str,
    phase: Phase,
    parts: ByPart,
    exposed: Mapping[str, float],
) -> Iterator[LedgerEntry]:
    """Yield an entry of a single call for every collective of one phase of a block."""
    flat = [(part, one) for part, several in parts.items() for one in several]
    for part, collective in flat:
        if not collective.whole_bytes[0] or collective.members[0] < 2:
            continue
        call_s = float(collective.seconds(job, rows)[0]) / collective.calls
        for where in call_labels(block, part, phase, collective, int(rows.zero[0])):
            yield LedgerEntry(
                block=block,
                where=where,
                phase=phase,
                part="recompute" if phase == "recompute" else part,
                operation=collective.operation,
                group=GROUPS[collective.group],
                ranks=int(collective.members[0]),
                bytes=float(collective.whole_bytes[0]),
                count_per_layer=1,
                count_per_step=1,
                link=links[collective.group],
                seconds=call_s,
                exposed_s=call_s * exposed[part],
            )


def _exposed_shares(
    job: Job, rows: Skeletons, block: Block, times: BlockTimes
) -> dict[Phase, dict[str, float]]:
    """Return the share of the traffic that is exposed, by phase and part.

    The two passes of embedding and of head are timed as one.
    """
    forward, backward = block.forward, block.backward
    if not times.backward:
        forward = backward = {n: [*forward[n], *backward[n]] for n in forward}
    shares = _shares(job, rows, forward, times.forward)
    return {
        "forward": shares,
        "backward": _shares(job, rows, backward, times.backward or times.forward),
        "recompute": shares | dict.fromkeys(block.repeated, 1.0),
        "step end": _shares(job, rows, {"dp": block.end}, times.sync),
    }


def _shares(
    job: Job, rows: Skeletons, collectives: ByPart, exposed: Parts
) -> dict[str, float]:
    """Return the share of the traffic of some collectives that is exposed, by part."""
    result = {}
    for part, operations in collectives.items():
        all_s = float(traffic.seconds(job, rows, operations)[0])
        exposed_s = float(exposed.get(part, np.zeros(1))[0])
        result[part] = exposed_s / all_s if all_s else 0.0
    return result
