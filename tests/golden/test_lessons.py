"""What an analytic planner gets wrong easily, each a law here.

No matmul falls off its efficiency curve: see tests/cost/test_compute_curve.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.check.check import check
from meshwright.cost import traffic
from meshwright.cost.job import Job, make_job
from meshwright.cost.weights import layer_weights
from meshwright.planner.rows import build_lattice, in_best_case
from meshwright.planner.solve import solve
from meshwright.plans.skeletons import Skeletons
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import FULL, NONE

SPEC = "llama3-70b-256xh100"


def best_of(*pins: str) -> PricedPlan:
    best = solve(mw.load(SPEC, mw.Spec, pins=list(pins))).best
    assert best is not None
    return best


@pytest.mark.parametrize("name", ["all_reduce_s", "all_gather_s", "reduce_scatter_s"])
@given(
    st.integers(1, 4_096),
    st.floats(1.0, 1e11),
    st.floats(1e-13, 1e-8),
    st.floats(0.0, 1e-4),
)
def test_more_members_are_never_faster_for_the_same_bytes(
    name: str, members: int, whole: float, s_per_byte: float, latency_s: float
) -> None:
    formula = getattr(traffic, name)
    sizes = np.array([members, members + 1])
    columns = (np.full(2, whole), sizes, np.full(2, s_per_byte), np.full(2, latency_s))
    fewer, more = formula(*columns)
    assert more >= fewer * (1 - 1e-9)


def test_zero_1_has_the_memory_and_the_traffic_of_zero_1() -> None:
    """Optimizer state over the shards, one reduction and one gather of a step.

    Megatron-LM keeps 12 bytes a parameter of optimizer state and reduces gradients in
    fp32; weights are gathered in bf16.
    """
    pins = ("tp=8", "pp=4", "cp=1", "dp_shard=8", "zero=1", "vpp=1", "schedule=1f1b")
    plan = best_of(*pins, "offload=none")
    job = make_job(mw.load(SPEC, mw.Spec))
    rows = build_lattice(
        make_job(mw.load(SPEC, mw.Spec, pins=[*pins, "offload=none"]))
    ).rows
    held = layer_weights(job, rows)
    params = held[0].params[0]
    middle = plan.stages[1].parts
    assert middle["optimizer"] * 2**30 == pytest.approx(20 * params * 12 / 8, rel=1e-6)
    sent = {
        one.operation: one.whole_bytes[0]
        for one in traffic.step_end(job, rows, held)
        if one.whole_bytes.any()
    }
    assert sent == {"reduce_scatter": 4 * params, "all_gather": 2 * params}


def test_the_ends_of_the_model_and_what_the_driver_holds_are_counted() -> None:
    plan = best_of("pp=4", "tp=8")
    first, middle, last = (plan.stages[i].parts for i in (0, 1, -1))
    assert first["weights"] > middle["weights"] * 1.005
    assert last["weights"] > middle["weights"] * 1.005
    assert last["logits"] > 0
    assert middle.get("logits", 0.0) == 0
    assert min(stage.parts["overhead"] for stage in plan.stages) >= 1
    assert min(stage.parts["workspace"] for stage in plan.stages) > 0


def reduced_bytes(job: Job, rows: Skeletons) -> set[tuple[int, ...]]:
    """Return the distinct degrees, each with the bytes that end a step."""
    operations = traffic.step_end(job, rows, layer_weights(job, rows))
    volume = np.sum([one.ring_bytes for one in operations], axis=0)
    degrees = [rows.tp, rows.cp, rows.dp_shard, rows.dp_replicate, rows.pp, rows.zero]
    whole = np.stack([*degrees, rows.offload, np.rint(volume).astype(np.int64)])
    return {tuple(column) for column in whole.T.tolist()}


def test_recomputation_changes_compute_and_not_the_gradients() -> None:
    job = make_job(mw.load(SPEC, mw.Spec))
    rows = in_best_case(job, build_lattice(job).rows)
    kinds = {m: rows.take(np.flatnonzero(rows.recompute == m)) for m in (NONE, FULL)}
    volumes = [reduced_bytes(job, kind) for kind in kinds.values()]
    assert volumes[0] == volumes[1]
    plain, full = (best_of("tp=8", "pp=8", f"recompute={m}") for m in ("none", "full"))
    assert plain.time_parts["recompute"] == 0
    assert full.time_parts["recompute"] > 0


@pytest.mark.parametrize("name", [SPEC, "llama3-70b-128xa100", "gpt3-175b-1024xa100"])
def test_the_optimum_is_safe(name: str) -> None:
    """A plan at 79.9 of 80 GiB runs out of memory on the first day."""
    spec = mw.load(name, mw.Spec)
    outcome = solve(spec)
    assert outcome.best is not None
    assert outcome.best.peak_gib <= outcome.capacity_gib
    total = spec.cluster.topology.gpu.memory_gib
    assert total - outcome.best.peak_gib >= 0.04 * total
    assert outcome.best.fit_probability >= 1 - spec.limits.risk
    assert check(make_job(spec), outcome.best.plan).peak_gib == outcome.best.peak_gib
