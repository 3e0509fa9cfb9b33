"""Clusters of unlike parts: what is chosen, proven, and refused.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from meshwright.check.check import checked
from meshwright.cost.job import Efficiency, Job, make_mixed_job
from meshwright.cost.profile import Profile
from meshwright.deadline import Interrupt
from meshwright.loading.load import load_spec
from meshwright.planner.mixed_clusters import _certified, arrangements, best_of
from meshwright.planner.options import Options
from meshwright.planner.rows import build_lattice
from meshwright.planner.solve import solve
from meshwright.plans.simplicity import complexity
from meshwright.plans.skeletons import Split, to_plan
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.cluster import common_topology
from meshwright.spec.spec import Spec
from tests.helpers.command import refusal
from tests.helpers.extent import gate
from tests.helpers.margin import with_margin
from tests.helpers.unlike import mixed, part


def splits(job: Job, stages: int, recomputes: bool) -> Iterator[tuple[int, ...]]:
    layers = job.spec.model.n_layers
    for one in itertools.product(range(1, layers + 1), repeat=stages):
        if sum(one) == layers:
            again = [range(n + 1) if recomputes else (0,) for n in one]
            for redone in itertools.product(*again):
                if not recomputes or any(redone):
                    yield (*one, *redone)


def brute_force(spec: Spec) -> dict[str, list[PricedPlan]]:
    """Return the plans of all arrangements, with all skeletons and splits.

    Arrangements of parts that are named alike share a sentence.
    """
    found = dict[str, list[PricedPlan]]()
    for arrangement in arrangements(spec):
        plans = found.setdefault(arrangement.sentence, [])
        job = make_mixed_job(arrangement.spec, lambda _: Efficiency())
        lattice = build_lattice(job)
        rows, _ = lattice.on_meshes(np.arange(len(lattice.rows)), None)
        for row in range(len(rows)):
            one = rows.take(np.array([row]))
            stages = int(one.pp[0])
            for counts in splits(job, stages, bool(one.recompute[0])):
                split = Split(np.array(counts[:stages]), np.array(counts[stages:]))
                plan = to_plan(one, 0, split, lattice.place(one))
                priced, broken = checked(job, plan)
                if not broken:
                    plans.append(priced)
    return found


def answer(spec: Spec) -> Outcome:
    outcome = solve(spec, Options())
    assert outcome.status == "optimal"
    return outcome


KNOWN = Profile(
    run_before={"megatron": {"tp inside a node": 2, "pp to 8": 10}}, doubt=0.15
)
"""Data parallelism alone, and three dimensions, are beyond what was run."""

TOLERANCE = 0.05

SMALL: dict[str, Any] = {
    "recompute": ["none", "full"],
    "zero": [0, 1],
    "recompute_segment": 1,
    "micro_batch": [1, 2],
}


@pytest.mark.slow
@settings(deadline=None, max_examples=gate(1, everything=4))
@given(
    st.sampled_from([(2, 1), (1, 1), (2, 2), (1, 3)]),
    st.sampled_from([1.0, 1.5, 4.0]),
    st.sampled_from([40.0, 4.6]),
    st.sampled_from([40.0, 4.3]),
)
def test_unlike_parts_match_brute_force(
    gpus: tuple[int, int], faster: float, first_gib: float, second_gib: float
) -> None:
    spec = mixed(
        part(gpus[0], 50 * faster, first_gib), part(gpus[1], 50, second_gib), **SMALL
    )
    every, outcome = brute_force(spec), solve(spec)
    if not any(every.values()):
        assert outcome.status == "infeasible"
        return
    best = min(plan.step_s for plans in every.values() for plan in plans)
    assert outcome.status == "optimal"
    assert outcome.best is not None
    assert outcome.certificate is not None
    within = 2 * outcome.certificate.rounding_s
    assert outcome.best.step_s == pytest.approx(best, rel=0, abs=within)


@pytest.mark.parametrize("faster", [1.2, 3.0])
def test_the_recommended_way_and_plan_are_those_of_brute_force(faster: float) -> None:
    pins = {"micro_batch": 1, "zero": 0, "recompute": "none"}
    spec = KNOWN.applied_to(
        mixed(part(2, 50 * faster, 40), part(1, 50, 40), batch=6, **pins)
    )
    every = brute_force(spec)
    outcome = solve(spec, Options(profile=KNOWN, tolerance=TOLERANCE))
    assert outcome.status == "optimal"
    assert outcome.best is not None
    assert outcome.certificate is not None
    assert outcome.certificate.is_simplest
    off_s = 2 * outcome.certificate.rounding_s
    for way in outcome.arrangements:
        plans = every[way.sentence]
        assert (way.doubted_s is None) == (not plans)
        if way.doubted_s is not None:
            least_s = min(plan.doubted_s for plan in plans)
            assert way.doubted_s == pytest.approx(least_s, rel=0, abs=2 * off_s)
    first = outcome.arrangements[0]
    told = [way.doubted_s for way in outcome.arrangements if way.doubted_s]
    assert first.doubted_s == min(told)
    criteria = spec.objective.criteria
    ours = complexity(spec, outcome.best.plan, criteria)
    most_s = (1 + TOLERANCE) * first.doubted_s
    less, more = (
        min(
            complexity(spec, plan.plan, criteria)
            for plan in every[first.sentence]
            if plan.doubted_s <= most_s + sign * 2 * off_s
        )
        for sign in (1, -1)
    )
    assert less <= ours <= more


def test_stages_on_faster_gpus_hold_more_layers() -> None:
    """2 + 2 GPUs, three times as fast: with pp 2 the split that paces is 3.75 : 1.25.

    Whole layers and the head beside them leave 4 : 1 or 3 : 2.
    """
    spec = mixed(part(2, 150, 80), part(2, 50, 80), pp=2, tp=2, recompute="none")
    outcome = answer(spec)
    assert outcome.best is not None
    fast = [s.layers for s in outcome.best.plan.stages if s.gpu == "gpu-150-80"]
    slow = [s.layers for s in outcome.best.plan.stages if s.gpu == "gpu-50-80"]
    assert sum(fast) > sum(slow) > 0


def test_slow_parts_are_left_out_where_that_wins() -> None:
    """GPUs twenty times as slow hold up every step that waits for them."""
    outcome = answer(mixed(part(2, 400, 80), part(2, 20, 80)))
    assert outcome.best is not None
    assert outcome.best.plan.world_size == 2
    assert "leaves out 1 x box-20" in outcome.arrangements[0].sentence
    alone = outcome.arrangements[0].step_s
    assert alone is not None
    assert all(
        arrangement.step_s is None or arrangement.step_s >= alone
        for arrangement in outcome.arrangements
    )


PLAIN: dict[str, Any] = {"micro_batch": 1, "zero": 0, "recompute": "none"}


@pytest.mark.parametrize(
    "pins",
    [
        {"dp": 3, "pp": 1},
        {"dp_replicate": 12},
        {"tp": 8},
        {"pp": 3},
        {"mesh": {"tp": [1]}},
    ],
)
def test_a_pin_holds_where_some_choice_of_parts_takes_it(pins: dict[str, Any]) -> None:
    """Of 8 + 3 x 4 = 20 GPUs, 12 are left without the box of eight, and 8 without the
    others: 3 and 12 divide 12, 8 divides 8; one level is what the box of eight has.
    """
    spec = mixed(part(8, 100, 80), part(4, 90, 80, count=3), batch=24, **PLAIN | pins)
    outcome = answer(spec)
    assert outcome.best is not None
    assert outcome.best.plan.world_size in (8, 12)
    taken = [
        arrangement
        for arrangement in outcome.arrangements
        if arrangement.step_s is not None
    ]
    assert len(taken) < len(outcome.arrangements)


@pytest.mark.parametrize(
    ("pins", "told"),
    [
        (
            {"dp": 7},
            "pins.dp: 7 does not divide the 20, 12 or 8 GPUs of any choice of "
            "cluster.parts; 6 and 8 do",
        ),
        (
            {"mesh": {"tp": [1, 1, 1]}},
            "pins.mesh.tp: [1, 1, 1] has 3 factors; the cluster has 2 levels of [4, 3] "
            "or 2 levels of [4, 5] or 1 level of [8], innermost first",
        ),
    ],
)
def test_a_pin_that_no_choice_of_parts_takes_is_refused(
    pins: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError) as raised:
        mixed(part(8, 100, 80), part(4, 90, 80, count=3), batch=24, **pins)
    problems = raised.value.errors()[0]["ctx"]["problems"]
    found = [
        f"{'.'.join(each.path)}: {each.value} {each.sentence}" for each in problems
    ]
    assert found == [told]


def test_what_was_not_looked_at_may_take_any_time() -> None:
    best = solve(load_spec("gpt-1.3b-2xh100-nvlink"), Options())
    for is_whole in (True, False):
        proof = _certified(best, [best], is_whole, ())["certificate"]
        assert best.certificate is not None
        assert proof.bound_s == (best.certificate.bound_s if is_whole else 0.0)
        assert proof.gap == (0.0 if is_whole else 1.0)


def test_equal_parts_are_one_cluster() -> None:
    """Two boxes of the same GPU: spreading over both is what one topology would do."""
    half = part(2, 100, 80)
    both = answer(mixed(half, half, pp=1))
    names = {
        arrangement.sentence: arrangement.step_s for arrangement in both.arrangements
    }
    spread = next(s for name, s in names.items() if name.startswith("spreads"))
    whole = half["topology"] | {
        "scale_out": {"name": "join", "gb_s": 12.5, "latency_us": 3}
    }
    data = mixed(half, half, pp=1).model_dump() | {
        "cluster": {"topology": whole, "count": 2}
    }
    alone = solve(Spec.model_validate(data)).best
    assert alone is not None
    assert spread is not None
    assert spread == pytest.approx(alone.step_s, rel=1e-9)


def test_small_memory_binds_its_own_stages_only() -> None:
    """The first stage holds the most in flight: the large GPUs take it."""
    spec = mixed(part(2, 100, 80), part(2, 100, 5), pp=2, tp=2, zero=0)
    outcome = solve(with_margin(spec))
    assert outcome.best is not None
    for stage, memory in zip(
        outcome.best.plan.stages, outcome.best.stages, strict=True
    ):
        assert memory.total_gib <= memory.usable_gib
        assert memory.usable_gib == pytest.approx(
            0.97 * (80 if stage.gpu == "gpu-100-80" else 5)
        )


def test_the_stage_that_lacks_memory_is_told_and_not_the_fullest() -> None:
    roomy, tight = (
        mixed(part(2, 100, 80), part(2, 100, gib), pp=2, tp=2, zero=0)
        for gib in (5, 4.3)
    )
    way, tight_way = (
        next(way.spec for way in arrangements(spec) if "stages" in way.sentence)
        for spec in (roomy, tight)
    )
    best = solve(way).best
    assert best is not None
    job = make_mixed_job(tight_way, lambda _: Efficiency())
    priced, broken = checked(job, best.plan)
    large, small = priced.stages
    assert large.total_gib > small.total_gib > small.usable_gib
    (rule,) = broken
    assert (rule.rule, rule.where) == ("memory", "stage 1")
    assert (rule.need, rule.have) == (small.total_gib, small.usable_gib)


def test_alike_is_the_least_of_everything() -> None:
    cluster = mixed(part(4, 100, 80), part(2, 50, 96, count=3)).cluster
    assert cluster.join is not None
    common = common_topology(cluster.parts, cluster.join)
    assert (common.gpu.memory_gib, common.gpu.peak_tflops.bf16) == (80, 50)
    # Hosts of gcd(4, 2) GPUs: two halves of the first box, and three of two.
    assert [(level.name, level.size) for level in common.levels] == [
        ("host", 2),
        ("join", 5),
    ]
    assert common.levels[1].gb_s == 12.5


SPEC = """\
model: gpt-1.3b
cluster:
  parts:
    - {machine: dgx-h100}
    - {machine: dgx-a100, count: 2}
  join: {name: fabric, gb_s: 25, latency_us: 2}
training: {seq_len: 1024, global_batch: 64}
"""

REFUSED = [
    ("    - {machine: dgx-a100, count: 2}\n", "",
     "3: cluster.parts: 1 given; accepted: 2 to 3"),
    ("count: 2", "count: 0", "5: cluster.parts.1.count: 0: "),
    ("machine: dgx-h100", "machine: dgx-h1000",
     "4: cluster.parts.0.machine: 'dgx-h1000' is neither a file nor a bundled name"),
    ("machine: dgx-h100", "machine: dgx-1v",
     "4: cluster.parts.0: 'dgx-1v' is a graph of nodes; accepted in parts: machines"),
    ("  join: {name: fabric, gb_s: 25, latency_us: 2}\n", "",
     "2: cluster: nothing: expected join beside parts: the level that joins them"),
    ("  join:", "  count: 3\n  join:", "6: cluster.count: 3 given beside parts"),
    ("  join:", "  overrides: [{host: 0}]\n  join:",
     "6: cluster.overrides: 1 given beside parts"),
    ("gb_s: 25", "gb_s: fast", "6: cluster.join.gb_s: 'fast': expected a number"),
    ("latency_us: 2}", "latency_us: 2, uplink: per_nic}",
     "6: cluster.join.uplink: 'per_nic' needs nodes of kind nic; accepted: per_gpu, "
     "shared"),
    ("  parts:\n    - {machine: dgx-h100}\n    - {machine: dgx-a100, count: 2}\n",
     "  machine: dgx-h100\n",
     "4: cluster.join.name: 'fabric' joins parts, and none are given"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), REFUSED)
def test_wrong_parts_are_named(
    old: str,
    new: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SPEC.count(old) == 1
    Path("spec.yaml").write_text(SPEC.replace(old, new), encoding="utf-8")
    assert refusal("spec.yaml").startswith(f"spec.yaml:{expected}")


def test_parts_are_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC, encoding="utf-8")
    cluster = load_spec(str(path)).cluster
    assert [one.gpus for one in cluster.parts] == [8, 16]
    assert cluster.fan_outs == (8, 3)


def test_ways_that_were_not_tried_before_an_interrupt_are_left_open() -> None:
    """The first way is proven within, and nothing is known of the other four."""
    interrupt = Interrupt()

    def ask(told: str) -> None:
        interrupt.is_asked = told.startswith("proving")

    options = Options(interrupt=interrupt, on_progress=ask)
    outcome = solve(load_spec("gpt2-xl-2x3090-2x4090"), options)
    assert outcome.best is not None
    assert outcome.certificate is not None
    assert [way.step_s for way in outcome.arrangements] == [outcome.best.step_s]
    assert (outcome.status, outcome.certificate.bound_s) == ("feasible", 0.0)


@functools.cache
def answer_of_one_way() -> Outcome:
    return solve(load_spec("gpt2-xl-2x4090-pcie"))


def drawn_way(random: Random) -> Outcome:
    """Return the outcome of a way: proven, bounded, without a plan, or undecided."""
    found, status = answer_of_one_way(), random.choice([*WAY_STATUSES])
    if status in ("infeasible", "unknown"):
        none = {"best": None, "certificate": None, "status": status}
        return found.model_copy(update=none)
    assert found.best is not None
    assert found.certificate is not None
    step_s = float(random.randint(5, 12))
    bound_s = step_s if status == "optimal" else step_s - random.randint(1, 4)
    told = f"open {step_s}" if status == "feasible" else ""
    proof = {"bound_s": bound_s, "left_open": told, "gap": 1 - bound_s / step_s}
    return found.model_copy(
        update={
            "status": status,
            "best": found.best.model_copy(update={"step_s": step_s}),
            "certificate": found.certificate.model_copy(update=proof),
        }
    )


WAY_STATUSES = ("optimal", "optimal", "feasible", "infeasible", "unknown")


@pytest.mark.parametrize("seed", range(200))
def test_the_answer_is_that_of_the_best_way_with_a_proof_over_all(seed: int) -> None:
    random = Random(seed)
    found = [drawn_way(random) for _ in range(random.randint(1, 4))]
    tried = random.choice([len(found), len(found), len(found) + 1])
    ways: Any = [SimpleNamespace(sentence=f"way {n}") for n in range(tried)]
    asked = list[int]()

    def answered(chosen: int) -> Outcome:
        asked.append(chosen)
        return found[chosen].model_copy(update={"title": "answered"})

    outcome = best_of(load_spec("gpt2-xl-2x3090-2x4090"), ways, found, answered)
    steps = [one.best.step_s if one.best else math.inf for one in found]
    told = [way.step_s or math.inf for way in outcome.arrangements]
    assert told == sorted(steps)
    is_open = tried > len(found) or any(one.status == "unknown" for one in found)
    if math.isinf(min(steps)):
        assert outcome.status == ("unknown" if is_open else "infeasible")
        assert not asked
        return
    (chosen,) = asked
    assert outcome.title == "answered"
    assert steps[chosen] == min(steps)
    proof, proofs = outcome.certificate, [one.certificate for one in found]
    assert proof is not None
    bounds = [one.bound_s for one in proofs if one]
    skeletons = [one.counts.skeletons for one in proofs if one]
    assert proof.counts.skeletons == sum(skeletons)
    assert proof.bound_s == (0.0 if is_open else min(bounds))
    is_proven = not is_open and min(bounds) >= min(steps)
    assert outcome.status == ("optimal" if is_proven else "feasible")
    assert proof.gap == (0 if is_proven else 1 - proof.bound_s / min(steps))
    assert bool(proof.left_open) != is_proven
