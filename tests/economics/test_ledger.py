"""The ledger of collectives adds up to the plan's time and to the loads of its links.

The volumes that a ring passes on are worked out here, from bytes, ranks and calls.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.check.check import check, rows_by_kind
from meshwright.cost.job import Job, make_job
from meshwright.cost.price import price, stage_times
from meshwright.cost.schedule import sends
from meshwright.cost.timing import block_times
from meshwright.economics.ledger import ledger
from meshwright.loading.load import load_spec
from meshwright.planner.options import Options
from meshwright.planner.rows import build_lattice
from meshwright.planner.solve import solve
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons, Split, to_plan, to_row, to_split
from meshwright.results.comparison import Ledger, LedgerEntry
from meshwright.spec.plan_fields import SCHEDULES
from meshwright.spec.spec import Spec
from meshwright.topology.groups import GROUPS, group_loads
from tests.helpers.command import ran, run
from tests.helpers.extent import gate
from tests.helpers.strategies import specs

ON_STEP = ("tp", "ep", "cp", "zero", "pp")


def of_pins(spec: Spec) -> tuple[Job, Plan]:
    outcome = solve(spec, Options())
    assert outcome.best is not None
    assert outcome.cluster is not None
    entry = spec.model_copy(update={"cluster": outcome.cluster})
    return Options().profile.job(entry), outcome.best.plan


def sums(entries: tuple[LedgerEntry, ...], **wanted: str) -> float:
    return sum(
        entry.exposed_s
        for entry in entries
        if all(getattr(entry, name) == value for name, value in wanted.items())
    )


def passed_on(entry: LedgerEntry) -> float:
    """Return the bytes that each rank passes on per call: a ring (Thakur 2005)."""
    n = entry.ranks
    share = {"all_reduce": 2 * (n - 1) / n, "send": 1.0}.get(
        entry.operation, (n - 1) / n
    )
    return share * entry.bytes


def check_time(job: Job, plan: Plan, told: Ledger) -> None:
    """Compare each stage with the parts of its time, whose formulas know no ledger."""
    rows, place = to_row(job.fabric, plan)
    kinds = rows_by_kind(job, rows, place)
    each = [stage_times(r, price(k, r).time, to_split(plan)) for k, r in kinds]
    for stage, kind in enumerate(job.gpu_kind_of_stage(plan.pp).tolist()):
        entries, times = told.of_stage(stage), each[kind]
        host_s = sending_host_s(kinds[kind][0], plan)
        for part in ON_STEP:
            each_s = times.seconds.get(part, np.zeros(plan.pp))
            expected = plan.microbatches * (each_s - host_s if part == "pp" else each_s)
            assert sums(entries, part=part) == pytest.approx(expected[stage], abs=1e-12)
        assert sums(entries, part="recompute") == pytest.approx(
            plan.microbatches * again_s(kinds[kind][0], kinds[kind][1], plan, stage),
            abs=1e-12,
        )
        assert sums(entries, part="dp") == pytest.approx(times.sync["dp"][stage])
        assert all(
            0 <= entry.exposed_s <= entry.seconds * (1 + 1e-9) for entry in entries
        )


def sending_host_s(kind: Job, plan: Plan) -> Any:
    """Return what a micro-batch's messages cost the host: 1.5 dispatches, no traffic.

    Both ends of each of its borders wait, one way and back.
    """
    if plan.pp == 1:
        return np.zeros(1)
    onward, back = sends(plan.pp, plan.vpp, SCHEDULES.index(plan.schedule))
    return (onward + back) * 1.5 * kind.efficiency.dispatch_s


def again_s(kind: Job, rows: Skeletons, plan: Plan, stage: int) -> float:
    """Return what a stage's recomputation waits for beside kernels and their host."""
    if plan.recompute == "selective":
        layers = plan.stages[stage].recompute_layers
        once_s = block_times(kind, rows)["layer"].repeated_s[0]
        return float(layers * once_s)
    time = price(kind, rows).time
    if plan.recompute != "full":
        return 0.0
    kernels_s = time.forward["compute"][0] + time.forward["host"][0]
    waits = time.recompute_s[0] - kernels_s
    return float(plan.stages[stage].recompute_layers * waits)


def check_links(job: Job, plan: Plan, told: Ledger) -> None:
    """Compare what all ranks pass on with the most loaded link of every group."""
    place = to_row(job.fabric, plan)[1]
    loads = group_loads(job.fabric.placed(place.order), place.mesh, plan.ep)
    priced = check(job, plan)
    for group, name in enumerate(GROUPS):
        entry = [load.seconds for load in priced.all_links if load.phase == name]
        most = max(bytes_of_stage(told, stage, name) for stage in range(plan.pp))
        expected = most * loads[group].max()
        assert max(entry, default=0.0) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def bytes_of_stage(told: Ledger, stage: int, group: str) -> float:
    """Return what a rank passes on in a group: in a pipeline, the fuller way."""
    ways = {"forward": 0.0, "backward": 0.0}
    both = 0.0
    for entry in told.of_stage(stage):
        if entry.group == group:
            whole = entry.count_per_step * passed_on(entry)
            if entry.operation == "send":
                ways[entry.phase] += whole
            else:
                both += whole
    return both + max(ways.values())


PLANS = [
    ("llama3-70b-128xa100", ("tp=4", "pp=4", "sequence_parallel=false", "zero=1")),
    ("llama3-70b-128xa100", ("tp=8", "pp=4", "recompute=full", "vpp=2", "zero=0")),
    ("llama3-70b-256xh100", ("cp=2", "zero=1")),
    ("gpt-1.3b-dgx-1v", ()),
]


@pytest.mark.parametrize(("name", "pins"), PLANS)
def test_the_ledger_adds_up(name: str, pins: tuple[str, ...]) -> None:
    job, plan = of_pins(load_spec(name, list(pins)))
    told = ledger(job, plan)
    assert told.stages
    check_time(job, plan, told)
    check_links(job, plan, told)


@pytest.mark.slow
@given(specs(most_layers=6), st.randoms(use_true_random=False))
@settings(
    max_examples=gate(20, everything=60),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_ledgers_of_random_plans_add_up(spec: Spec, random: Any) -> None:
    job = make_job(spec)
    lattice = build_lattice(job)
    count = len(lattice.rows)
    if not count:
        return
    index = np.array(sorted(random.sample(range(count), min(count, 5))))
    placed, _ = lattice.on_meshes(index, None)
    for row in random.sample(range(len(placed)), min(len(placed), 5)):
        one = placed.take(np.array([row]))
        plan = to_plan(one, 0, some_split(spec, one), lattice.place(one))
        told = ledger(job, plan)
        check_time(job, plan, told)
        check_links(job, plan, told)


def some_split(spec: Spec, one: Skeletons) -> Split:
    """Return uneven stages, of which some layers are recomputed."""
    stages = int(one.pp[0])
    layers = np.full(stages, spec.model.n_layers // stages)
    layers[0] += spec.model.n_layers - layers.sum()
    return Split(layers, np.where(one.recompute[0] > 0, (layers + 1) // 2, 0))


def test_one_stage_adds_up_to_the_parts_of_the_step() -> None:
    """And what hides is there too: ZeRO-3 moves more than the step waits for."""
    job, plan = of_pins(load_spec("llama3-8b-2xh100-nvlink", ["zero=3", "tp=1"]))
    entries, parts = ledger(job, plan).of_stage(0), check(job, plan).time_parts
    for part in ("tp", "cp", "ep", "zero", "dp", "pp"):
        expected = parts.get(part, 0.0)
        assert sums(entries, part=part) == pytest.approx(expected, abs=1e-12)
    assert (
        sum(entry.seconds for entry in entries if entry.part == "zero") > parts["zero"]
    )


def test_recomputed_layers_have_their_forward_again_without_the_weights() -> None:
    pins = ["tp=8", "pp=4", "recompute=full", "vpp=1"]
    job, plan = of_pins(load_spec("llama3-70b-128xa100", pins))
    entries = ledger(job, plan).of_stage(0)
    again = [entry for entry in entries if entry.phase == "recompute"]
    count = plan.microbatches * plan.stages[0].recompute_layers
    assert {entry.count_per_step for entry in again} == {count}
    assert {entry.part for entry in again} == {"recompute"}
    forward = [
        entry for entry in entries if entry.phase == "forward" and entry.part == "tp"
    ]
    layer = [entry.where for entry in forward if entry.block == "layer"]
    assert [entry.where for entry in again] == layer


def test_stages_on_unlike_gpus_have_ledgers_of_their_own() -> None:
    """The same group is faster on newer GPUs: each stage is told as its own see it."""
    job, plan = of_pins(load_spec("llama2-13b-8xh100-8xa100", ["tp=8"]))
    assert len(job.gpu_kinds) == 2
    assert plan.pp > 1
    told = ledger(job, plan)
    check_time(job, plan, told)
    each = {
        entry.seconds / entry.count_per_step
        for stage in told.stages
        for entry in stage.entries
        if (entry.block, entry.part) == ("layer", "tp")
    }
    assert len(each) == 2


JSON = ("--format", "json")


def test_a_plan_that_does_not_fit_has_a_ledger_too() -> None:
    plan = "tp=1,pp=1,cp=1,zero=0,micro_batch=1"
    result = run("explain", "llama2-13b-8xa100", "--plan", plan, "--collectives", *JSON)
    assert result.code == 1
    (stage,) = json.loads(result.stdout)["collectives"]["stages"]
    # DeepSpeed reduces 13,015,864,320 gradients in 2 bytes: 26.03 GB, once.
    sums = [entry for entry in stage["entries"] if entry["phase"] == "step end"]
    assert {entry["operation"] for entry in sums} == {"all_reduce"}
    whole = sum(entry["bytes"] * entry["count_per_step"] for entry in sums)
    assert whole == pytest.approx(2 * 13_015_864_320)


def test_the_table_names_places_links_and_what_hides() -> None:
    result = ran("explain", "gpt2-xl-2xh100-nvlink", "--collectives", "-v")
    assert result.code == 0
    assert "Collectives of a GPU of stage 0" in result.stdout
    without = ran("explain", "gpt2-xl-2xh100-nvlink", "-v")
    assert result.stdout.startswith(without.stdout.rstrip("\n"))
    assert "Collectives" not in without.stdout
