"""The ledger of a plan's collectives, from the formulas that price them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from meshwright.check.check import row_of, rows_by_kind, split_of
from meshwright.cost import traffic
from meshwright.cost.blocks import LAYER, Block, Operations, blocks
from meshwright.cost.job import Job
from meshwright.cost.links import block_counts, recomputed_layers
from meshwright.cost.schedule import sends
from meshwright.cost.timing import BlockTimes, block_times
from meshwright.economics.ledger_names import names
from meshwright.plans.columns import Ints, Parts
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons
from meshwright.plans.split import Split
from meshwright.results.ledger import Entry, Ledger, Phase, StageLedger
from meshwright.topology.fabric import Fabric, Place
from meshwright.topology.groups import GROUPS, PP, group_loads

OUTPUT, INPUT = "stage output", "stage input"
"""The blocks of what neighbouring stages send, and of what they do on receiving it."""

ByPart = Mapping[str, Operations]


def ledger(job: Job, plan: Plan) -> Ledger:
    """Return every collective that a GPU of each stage of a plan takes part in."""
    rows, place = row_of(job, plan)
    counts = _counts(job, rows, split_of(plan))
    once = [
        list(_entries(kind.at(plan.precision), own, _links(job, kind, place, plan.ep)))
        for kind, own in rows_by_kind(job, rows, place)
    ]
    alike: dict[tuple[Entry, ...], list[int]] = defaultdict(list)
    for stage, kind in enumerate(job.kind_of_stage(plan.pp).tolist()):
        called = ((own, counts.get((own.block, own.phase))) for own in once[kind])
        every = (_called(own, n[stage]) for own, n in called if n is not None)
        alike[tuple(own for own in every if own.count_per_step)].append(stage)
    return Ledger(
        stages=tuple(
            StageLedger(stages=tuple(stages), entries=entries)
            for entries, stages in alike.items()
        )
    )


def _called(once: Entry, count: int) -> Entry:
    """Return an entry of one call with all calls of a step."""
    changed = {"count_per_step": int(count), "seconds": count * once.seconds}
    changed["exposed_s"] = count * once.exposed_s
    return once.model_copy(update=changed)


def _counts(job: Job, rows: Skeletons, split: Split) -> dict[tuple[str, Phase], Ints]:
    """Return how often a step has each phase of each block, (stages,)."""
    m = int(rows.microbatches[0])
    onward, back = sends(len(split.layers), int(rows.vpp[0]))
    result: dict[tuple[str, Phase], Ints] = {
        (LAYER, "recompute"): m * recomputed_layers(rows, split),
        (OUTPUT, "forward"): m * onward,
        (OUTPUT, "backward"): m * back,
        # What a stage sends on to nobody, it has got from nobody as a gradient.
        (INPUT, "forward"): m * back,
        (INPUT, "backward"): m * onward,
    }
    for name, count in block_counts(job, split).items():
        result |= {(name, "forward"): m * count, (name, "backward"): m * count}
        result[name, "step end"] = count
    return result


def _links(job: Job, kind: Job, place: Place, ep: int) -> list[str]:
    """Return the busiest link of each group, as GPUs of a kind see them."""
    whole = job.fabric.placed(place.order)
    own = _busiest(kind.fabric if job.kinds else whole, place, ep)
    own[PP] = _busiest(whole, place, ep)[PP]
    return own


def _busiest(fabric: Fabric, place: Place, ep: int) -> list[str]:
    loads = group_loads(fabric, place.mesh, ep)
    return [fabric.link_names[link] for link in loads.argmax(axis=1)]


def _entries(job: Job, rows: Skeletons, links: list[str]) -> Iterator[Entry]:
    """Yield an entry of one call for each collective of each block."""
    times = block_times(job, rows)
    for name, block in blocks(job, rows).items():
        phases: dict[Phase, ByPart] = {
            "forward": block.forward,
            "backward": block.backward,
            "recompute": block.recompute,
            "step end": {"dp": block.end},
        }
        exposed = _exposed(job, rows, block, times[name])
        for phase, parts in phases.items():
            yield from _phase(job, rows, links, name, phase, parts, exposed[phase])
    sent, gathered = traffic.pipeline_send(job, rows)
    for phase in ("forward", "backward"):
        for block_name, own in ((OUTPUT, sent), (INPUT, gathered)):
            alone = {"pp": [own]}
            yield from _phase(job, rows, links, block_name, phase, alone, {"pp": 1.0})


def _phase(
    job: Job,
    rows: Skeletons,
    links: list[str],
    block: str,
    phase: Phase,
    parts: ByPart,
    exposed: Mapping[str, float],
) -> Iterator[Entry]:
    """Yield the collectives of one phase, each call by its place in the block."""
    flat = [(part, own) for part, every in parts.items() for own in every]
    for part, own in flat:
        if not own.whole_bytes[0] or own.members[0] < 2:
            continue
        once_s = float(own.seconds(job, rows)[0]) / own.calls
        for where in names(block, part, phase, own, int(rows.zero[0])):
            yield Entry(
                block=block,
                where=where,
                phase=phase,
                part="recompute" if phase == "recompute" else part,
                operation=own.operation,
                group=GROUPS[own.group],
                ranks=int(own.members[0]),
                bytes=float(own.whole_bytes[0]),
                count_per_layer=1,
                count_per_step=1,
                link=links[own.group],
                seconds=once_s,
                exposed_s=once_s * exposed[part],
            )


def _exposed(
    job: Job, rows: Skeletons, block: Block, own: BlockTimes
) -> dict[Phase, dict[str, float]]:
    """Return the share of each phase's traffic that is exposed, by part.

    Of embedding and head both passes are timed as one.
    """
    forward, backward = block.forward, block.backward
    if not own.backward:
        forward = backward = {n: [*forward[n], *backward[n]] for n in forward}
    shares = _shares(job, rows, forward, own.forward)
    return {
        "forward": shares,
        "backward": _shares(job, rows, backward, own.backward or own.forward),
        "recompute": shares,
        "step end": _shares(job, rows, {"dp": block.end}, own.sync),
    }


def _shares(
    job: Job, rows: Skeletons, passed: ByPart, exposed: Parts
) -> dict[str, float]:
    result = {}
    for part, operations in passed.items():
        all_s = float(traffic.seconds(job, rows, operations)[0])
        exposed_s = float(exposed.get(part, np.zeros(1))[0])
        result[part] = exposed_s / all_s if all_s else 0.0
    return result
