"""Rules of the user in the brute force: Python itself says what they mean.

It shares with the solver what a layer costs, and nothing else. Rules here are written
by tests alone, so that they may be executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.job import Job
from meshwright.cost.links import link_seconds
from meshwright.cost.price import Prices
from meshwright.plans.columns import total
from meshwright.plans.skeletons import Split
from meshwright.spec.plan_fields import FIELDS
from meshwright.spec.units import GIB
from meshwright.topology.fabric import Place

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""Share of a step that rounding may add to it."""

MODULES = {"__builtins__": {}, "max": max, "min": min, "sum": sum}


@dataclass(frozen=True)
class PlacedRow:
    """One skeleton on one mesh, with its prices."""

    job: Job
    one: Prices
    place: Place


def keeping_user_rules(
    row: PlacedRow,
    layers: Ints,
    recomputed: Ints,
    step_s: Floats,
    among: NDArray[np.bool_],
    most: int = 1,
) -> NDArray[np.bool_]:
    """Return those of some splits that keep the rules of the spec.

    No more than `most` are looked for, the fastest first.
    """
    result = np.zeros(len(layers), dtype=bool)
    order = np.argsort(step_s, kind="stable")
    for index in order[among[order]]:
        named = values(row, layers[index], recomputed[index], float(step_s[index]))
        rules = row.job.spec.rules
        result[index] = all(eval(rule.that, {**MODULES, **named}) for rule in rules)
        if result.sum() == most:
            break
    return result


def values(row: PlacedRow, layers: Ints, again: Ints, step_s: float) -> dict[str, Any]:
    """Return the values of one split by the names that rules have for them."""
    from tests.helpers.oracle import leading_of, stage_bytes

    spec, rows = row.job.spec, row.one.rows
    words = {
        field.name: field.decoded(int(getattr(rows, field.name)[0])) for field in FIELDS
    }
    memory = stage_bytes(row.one, layers[None], again[None])[0] / GIB
    held = row.one.memory
    host = layers * held.host_layer[0]
    host[0] += held.host_first[0]
    host += leading_of(row.one, len(layers)) * held.host_lead[0]
    host[-1] += held.host_last[0]
    busy = link_seconds(row.job, rows, Split(layers, again), row.place).sum(axis=1)
    tokens = spec.training.seq_len * spec.training.global_batch
    return {
        **words,
        "true": True,
        "false": False,
        "dp": int(rows.dp[0]),
        "gpus": spec.cluster.gpus,
        "seq_len": spec.training.seq_len,
        "global_batch": spec.training.global_batch,
        "layers": layers.tolist(),
        "recompute_layers": again.tolist(),
        "memory_gib": memory,
        "host_gib": host / GIB,
        "links": (busy.max(axis=0) / step_s).tolist(),
        "step_s": step_s,
        "tokens_per_s": tokens / step_s,
        "parts": SimpleNamespace(**_parts(row.one, layers, again, step_s)),
    }


def _parts(one: Prices, layers: Ints, again: Ints, step_s: float) -> dict[str, float]:
    """Return the parts of the slowest stage and of the last, and the rest as bubble."""
    from tests.helpers.oracle import leading_of

    time, stages, m = one.time, len(layers), int(one.rows.microbatches[0])
    names = {*time.forward, *time.backward, *time.first, *time.last, *time.lead}
    names |= {"pp", "recompute"}
    leading = leading_of(one, stages)
    work = {name: np.zeros(stages) for name in names}
    for parts in (time.forward, time.backward):
        for name, part in parts.items():
            work[name] += layers * part[0]
    for name, part in time.lead.items():
        work[name] += leading * part[0]
    for parts, stage in ((time.first, 0), (time.last, -1)):
        for name, part in parts.items():
            work[name][stage] += part[0]
    work["recompute"] += again * time.recompute_s[0]
    for boundary in range(stages * int(one.rows.vpp[0]) - 1):
        work["pp"][boundary % stages] += time.send_s[0]
        work["pp"][(boundary + 1) % stages] += time.send_s[0]
    ends = {name: np.zeros(stages) for name in {*time.sync_layer, *time.sync_first}}
    for name, part in time.sync_layer.items():
        ends[name] += layers * part[0]
    for name, part in time.sync_lead.items():
        ends[name] += leading * part[0]
    for parts, stage in ((time.sync_first, 0), (time.sync_last, -1)):
        for name, part in parts.items():
            ends[name][stage] += part[0]
    slowest = int(total(work).argmax())
    last = int(total(ends).argmax())
    result = {name: m * float(part[slowest]) for name, part in work.items()}
    busy, tail = sum(result.values()), float(total(ends)[last])
    # Of a step without a bubble the rounding of its sum is left.
    rest_s = step_s - tail - busy
    result["bubble"] = 0.0 if abs(rest_s) < ROUNDING * step_s else rest_s
    for name, part in ends.items():
        result[name] = result.get(name, 0.0) + float(part[last])
    unused = ("cp", "ep", "zero", "offload", "host", "dp", "optimizer", "tp")
    return dict.fromkeys(unused, 0.0) | result
