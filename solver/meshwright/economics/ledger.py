"""The ledger of a plan's collectives, computed by the formulas that price them.

Every entry is labelled with its place in the block (`call_labels`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from meshwright.check.check import rows_by_kind
from meshwright.cost import traffic
from meshwright.cost.blocks import EMBEDDING, HEAD, MTP_LAYER, Block, Operations
from meshwright.cost.hiding import host_send_s
from meshwright.cost.job import Job
from meshwright.cost.layer_kinds import (
    block_times_of_kinds,
    blocks_of_kinds,
    mean_time_costs,
)
from meshwright.cost.links import block_counts, recompute_counts
from meshwright.cost.price import stage_sends
from meshwright.cost.timing import BlockTimes
from meshwright.cost.traffic import RENEWS_WEIGHTS, Collective
from meshwright.plans.columns import Floats, Ints, Parts
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons, Split, to_row, to_split
from meshwright.results.comparison import Ledger, LedgerEntry, Phase, StageLedger
from meshwright.topology.fabric import Fabric, Place
from meshwright.topology.groups import (
    EXPERT_REPLICATE,
    EXPERT_SHARD,
    GROUPS,
    PP,
    group_loads,
)

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
                _busiest_links(job, part_job, place, plan.expert_key),
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


def _all_calls(call: LedgerEntry, count: float) -> LedgerEntry:
    """Return the entry of all calls in a step, from the entry of a single call."""
    changed = {"count_per_step": round(float(count)), "seconds": count * call.seconds}
    changed["exposed_s"] = count * call.exposed_s
    return call.model_copy(update=changed)


def _call_counts(
    job: Job, rows: Skeletons, split: Split
) -> dict[tuple[str, Phase], Ints | Floats]:
    """Return how often a step runs a phase of a block; each array is (stages,)."""
    m = int(rows.microbatches[0])
    onward, back = stage_sends(rows, split)
    result: dict[tuple[str, Phase], Ints | Floats] = {
        (OUTPUT, "forward"): m * onward,
        (OUTPUT, "backward"): m * back,
        # A stage receives one gradient for every activation that it sends on.
        (INPUT, "forward"): m * back,
        (INPUT, "backward"): m * onward,
    }
    forwards = m * job.spec.training.forwards
    for name, count in block_counts(job, rows, split).items():
        result |= {(name, "forward"): forwards * count, (name, "backward"): m * count}
        result[name, "step end"] = count
    for name, again in recompute_counts(job, rows, split).items():
        result[name, "recompute"] = m * again
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
    times = block_times_of_kinds(job, rows)
    for name, block in blocks_of_kinds(job, rows).items():
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
    seen_s = float((mean_time_costs(job, rows).send_s - host_send_s(job, rows))[0])
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
    forwards, backward = job.spec.training.forwards, block.backward
    forward = {part: forwards * calls for part, calls in block.forward.items()}
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


OUTPUTS = ("attention output", "mlp output")
INPUTS = ("attention input", "mlp input")

_TENSOR = {
    ("forward", "all_reduce"): OUTPUTS,
    ("forward", "all_gather"): INPUTS,
    ("forward", "reduce_scatter"): OUTPUTS,
    ("backward", "all_reduce"): INPUTS,
    ("backward", "all_gather"): OUTPUTS,
    ("backward", "reduce_scatter"): INPUTS,
}
"""Shoeybi et al. 2019, figure 4: f and g are each other's backward; under sequence
parallelism likewise (Korthikanti et al. 2022, figure 5)."""

_ENDS = {EMBEDDING: "output", HEAD: "input"}

_REPEATED: dict[str, Callable[[Collective], tuple[str, ...]]] = {
    "latents": lambda _one: ("latents",),
    "mlp": lambda one: _TENSOR["forward", one.operation][1:],
    "experts": lambda one: _exchanged(one, "tokens"),
    "inputs": lambda one: INPUTS[: one.calls],
    "keys and values": lambda _one: ("keys and values",),
    "checkpoints": lambda _one: ("layer input",),
}
"""Labels of what selective recomputation repeats: see `Block.repeated`."""


def call_labels(
    block: str, part: str, phase: str, collective: Collective, zero: int
) -> tuple[str, ...]:
    """Return a label for each call of a collective in one block.

    The phase `recompute` repeats the calls of `forward`, or those of some modules.
    """
    if part in _REPEATED:
        return _REPEATED[part](collective)
    phase = "forward" if phase == "recompute" else phase
    if part == "ep":
        return _exchanged(collective, "tokens" if phase == "forward" else "gradients")
    if part == "tp" and block in _ENDS:
        return (_ENDS[block],)
    if part == "tp" and block == MTP_LAYER:
        return ("stream, embedding and logits",) * collective.calls
    if part == "tp":
        return _TENSOR[phase, collective.operation][: collective.calls]
    if part == "cp" and collective.operation == "all_to_all":
        return ("heads for tokens",)
    if part == "cp":
        is_sum = collective.operation == "reduce_scatter"
        return ("gradients of keys and values" if is_sum else "keys and values",)
    if part == "pp":
        return ("activations" if phase == "forward" else "gradients",)
    return (_state_label(collective, is_all_reduce=part == "dp" and zero == 0),)


def _exchanged(collective: Collective, what: str) -> tuple[str, ...]:
    if collective.operation == "all_gather":
        return (f"{what} to parts of experts",)
    if collective.operation == "reduce_scatter":
        return (f"{what} from parts of experts",)
    return (f"{what} to experts", f"{what} from experts")


def _state_label(collective: Collective, is_all_reduce: bool) -> str:
    """Return which part of the state ZeRO or data parallelism sends.

    Without ZeRO an all-gather is the second half of an all-reduce of gradients.
    """
    is_weights = collective.operation in RENEWS_WEIGHTS and not is_all_reduce
    is_expert = collective.group in (EXPERT_SHARD, EXPERT_REPLICATE)
    return ("expert " if is_expert else "") + ("weights" if is_weights else "gradients")


OUTPUT, INPUT = "stage output", "stage input"
"""Blocks of the traffic between stages: what is sent, and what is gathered on
receiving it."""
