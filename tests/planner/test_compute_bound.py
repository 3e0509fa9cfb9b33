"""The bound on a step before any lattice is built, against the bounds of families.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

import math
from itertools import product
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from pydantic import ValidationError

import meshwright as mw
from meshwright.cost.job import Job, make_job
from meshwright.cost.layer_kinds import mean_time_costs
from meshwright.cost.profile import load_profile
from meshwright.explanations.decisions import with_count
from meshwright.planner.compute_bound import ComputeBound, Wanted, compute_bound
from meshwright.planner.families import prepare
from meshwright.planner.integer_costs import seconds
from meshwright.planner.options import Options
from meshwright.planner.rows import build_lattice
from meshwright.planner.solve import solve
from meshwright.plans.schedules import LEAST_FILL, SPLITS_BACKWARD
from meshwright.plans.skeletons import Skeletons, to_unplaced_row
from meshwright.spec.base import divisors
from meshwright.spec.cluster import Cluster
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import Range
from meshwright.spec.spec import Spec
from tests.helpers.extent import gate
from tests.helpers.strategies import FRAMEWORKS, expert_specs, specs
from tests.planner.test_brute_force import ORACLE

ROUNDING = 1e-6
"""Share that rounding to ticks may take from the bound of a family."""


def on_one_and_two(spec: Spec) -> list[Cluster]:
    """Return the cluster of a spec, and one of twice as many machines if it can."""
    try:
        return [spec.cluster, with_count(spec, 2 * spec.cluster.count).cluster]
    except ValidationError:
        return [spec.cluster]


def assert_below_families(spec: Spec, profile: str) -> float:
    """Hold the bounds against those of every family, which have more in them.

    Returns the share of the least family's bound that is in the least bound.
    """
    job = load_profile(profile).job(spec)
    prepared = prepare(job, keeps_all=True)
    families, unplaced = prepared.families, prepared.lattice.unplaced
    gpus = job.spec.cluster.gpus
    found = compute_bound(job, on_one_and_two(spec))
    bound_s = found.of_rows(unplaced.take(families.start).rows)
    lower_s = seconds(1) * families.lower
    least_s = found.least_s(gpus)
    assert 0 < found.shared_s(gpus) <= least_s * (1 + ROUNDING)
    assert least_s <= bound_s.min(initial=np.inf) * (1 + ROUNDING)
    # A family may think its largest stage the one with cheap leading layers.
    if not spec.model.leading_layers:
        assert (bound_s <= lower_s * (1 + ROUNDING)).all()
    return float(least_s / lower_s.min(initial=np.inf))


def assert_below_plans(spec: Spec) -> None:
    """Hold the bounds against the fastest plan for each number of stages."""
    found = compute_bound(make_job(spec), on_one_and_two(spec))
    for pp in divisors(spec.cluster.gpus):
        pins = spec.pins.model_copy(update={"pp": Range(min=pp, max=pp)})
        pinned = spec.model_copy(update={"pins": pins})
        best = solve(pinned, Options(is_brief=True, has_near_miss=False)).best
        if best is not None:
            allowed_s = best.step_s * (1 + ROUNDING)
            assert found.least_s(spec.cluster.gpus) <= allowed_s
            assert found.of_rows(to_unplaced_row(best.plan))[0] <= allowed_s


@settings(ORACLE, max_examples=gate(12, everything=40))
@given(specs())
def test_no_family_is_below_the_bound(spec: Spec) -> None:
    assert_below_families(spec, "unfitted")


@settings(ORACLE, max_examples=gate(5, everything=15))
@given(expert_specs())
def test_no_family_with_experts_is_below_the_bound(spec: Spec) -> None:
    assert_below_families(spec, "unfitted")


@settings(ORACLE, max_examples=gate(5, everything=15))
@given(expert_specs())
def test_no_plan_with_leading_layers_is_below_the_bound(spec: Spec) -> None:
    assume(spec.model.leading_layers)
    assert_below_plans(spec)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_family_of_any_framework_is_below_the_bound(framework: str) -> None:
    spec = mw.load("llama3-70b-16xa100", mw.Spec)
    assert_below_families(spec.model_copy(update={"framework": framework}), "unfitted")


def test_no_family_is_below_the_bound_where_the_host_sets_the_pace() -> None:
    """DeepSpeed starts layers of Transformers, which ZeRO-2 trains, the fastest."""
    gpu = {"memory_gib": 8, "memory_gb_s": 900, "peak_tflops": {"bf16": 20}}
    level = {"name": "pcie", "size": 2, "gb_s": 10, "latency_us": 1}
    layers = {"n_layers": 4, "d_model": 512, "n_heads": 8, "d_ff": 1024, "vocab": 512}
    fields = {
        "model": {**layers, "moe": {"n_experts": 4, "top_k": 2, "d_ff": 512}},
        "cluster": {"topology": {"gpu": gpu, "levels": [level]}},
        "framework": "deepspeed",
        "training": {"seq_len": 256, "global_batch": 2},
    }
    assert_below_families(Spec.model_validate(fields), "unfitted")


@pytest.mark.parametrize(
    "name",
    ["llama3-70b-128xa100", "mixtral-8x7b-64xh100", "mpt-30b-512xh100"],
)
def test_the_bound_holds_and_says_much_on_bundled_specs(name: str) -> None:
    spec = mw.load(name, mw.Spec)
    assert assert_below_families(spec, "measured") > 0.7


def test_more_clusters_to_choose_from_never_raise_the_bound() -> None:
    spec = mw.load("llama3-70b-128xa100", mw.Spec)
    job, (one, two) = make_job(spec), on_one_and_two(spec)
    few, many = (compute_bound(job, each) for each in ([one], [one, two]))
    assert many.shared_s(128) <= few.shared_s(128)
    assert many.least_s(128) <= few.least_s(128)


def test_layers_that_do_not_divide_and_bubbles_raise_the_bound() -> None:
    spec = mw.load("llama3-70b-128xa100", mw.Spec)
    clusters = [with_count(spec, count).cluster for count in (16, 19)]
    found = compute_bound(make_job(spec), clusters)
    # 19 machines cannot share out the batch: they are stages of 80 layers.
    assert found.least_s(152) > 1.2 * found.shared_s(152)
    assert found.least_s(128) < 1.05 * found.shared_s(128)


class DrawnBound(NamedTuple):
    """A bound whose kernels take drawn seconds, some of them for ever."""

    bound: ComputeBound
    gpus: int

    def steps(self) -> dict[tuple[int, ...], float]:
        """Return the least step by degrees: tp, pp, cp, dp and the micro-batch."""
        result, found = self.bound, dict[tuple[int, ...], float]()
        layers = result.model.n_layers - result.model.leading_layers
        for (t, tp), (c, cp), (m, size), pp in product(
            enumerate(result.tp.tolist()),
            enumerate(result.cp.tolist()),
            enumerate(result.micro_batch.tolist()),
            range(1, self.gpus + 1),
        ):
            dp, is_uneven = divmod(self.gpus, tp * cp * pp)
            if (
                is_uneven
                or result.global_batch % dp
                or result.global_batch // dp % size
            ):
                continue
            layer_s = float(result.layer_s[t, c, :, m].min())
            forward_s = float(result.forward_s[t, c, :, m].min())
            if math.isinf(layer_s):
                continue
            chunk_s = layer_s / math.ceil(result.model.n_layers / pp)
            largest = math.ceil(layers / pp)
            count = result.global_batch // dp // size
            found[tp, pp, cp, dp, size] = count * largest * layer_s + (
                layers - largest
            ) * min(result.least_fill * forward_s, chunk_s)
        return found


def drawn_bound(seed: int) -> DrawnBound:
    random, draw = np.random.default_rng(seed), Random(seed)
    leading = draw.choice([0, 0, 2])
    moe = {"n_experts": 4, "top_k": 2, "d_ff": 64, "first_dense_layers": leading}
    model = Model.model_validate(
        {"n_layers": draw.randint(3, 9), "d_model": 64, "n_heads": 4, "d_ff": 64}
        | {"vocab": 64, "moe": moe}
    )
    batch, gpus = draw.choice([4, 6, 12]), draw.choice([1, 2, 4, 6, 8, 12])
    lists = [np.array(one) for one in ([1, 2, 4], [1, 2], [1, 2, 4], divisors(batch))]
    shape = (*map(len, lists), 2)
    layer_s = random.uniform(0.5, 2, shape)
    layer_s[random.random(shape) < 0.4] = np.inf
    forward_s = layer_s * random.uniform(0.2, 0.5, shape)
    tp, cp, ep, sizes = lists
    fill = draw.uniform(0.3, 1)
    bound = ComputeBound(model, batch, tp, cp, ep, sizes, layer_s, forward_s, fill)
    return DrawnBound(bound, gpus)


@pytest.mark.parametrize("seed", range(60))
def test_the_best_case_is_that_of_plain_loops(seed: int) -> None:
    found = drawn_bound(seed)
    steps, case = found.steps(), found.bound.best_case(found.gpus)
    assert (case is None) == (not steps)
    assert found.bound.least_s(found.gpus) == (case.step_s if case else np.inf)
    if case is None:
        return
    assert case.step_s == pytest.approx(min(steps.values()))
    assert case.step_s < min(steps.values())
    assert steps[case.degrees] == pytest.approx(case.step_s)


@pytest.mark.parametrize("seed", range(60))
def test_gpus_that_share_the_layers_lose_nothing(seed: int) -> None:
    bound, gpus = drawn_bound(seed)
    per_sequence = bound.layer_s.min(axis=(2, 4)) / bound.micro_batch
    gpus_of = np.outer(bound.tp, bound.cp)[..., None]
    least = float((per_sequence * gpus_of).min()) / gpus
    layers = bound.model.n_layers - bound.model.leading_layers
    expected = least * layers * bound.global_batch
    assert bound.shared_s(gpus) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["llama3-70b-128xa100", "mixtral-8x7b-64xh100"])
def test_skeletons_have_the_bound_of_their_kernels(name: str) -> None:
    """Schedules that defer gradients of weights fill the pipeline with less."""
    spec = mw.load(name, mw.Spec)
    found = compute_bound(make_job(spec), [spec.cluster])
    rows = build_lattice(make_job(spec)).unplaced.base
    rows = rows.take(np.arange(0, len(rows), 97))
    bound_s = found.of_rows(rows)
    for row in range(len(rows)):
        at = tuple(
            values.tolist().index(int(column[row]))
            for values, column in (
                (found.tp, rows.tp),
                (found.cp, rows.cp),
                (found.ep, rows.ep),
                (found.micro_batch, rows.micro_batch),
            )
        )
        at = (*at, int(rows.sequence_parallel[row]))
        layer_s, forward_s = float(found.layer_s[at]), float(found.forward_s[at])
        schedule, layers = int(rows.schedule[row]), spec.model.n_layers
        largest = -(-layers // int(rows.pp[row]))
        filling_s = layer_s / int(rows.vpp[row])
        if SPLITS_BACKWARD[schedule]:
            filling_s = float(LEAST_FILL[schedule]) * forward_s
        step_s = int(rows.microbatches[row]) * largest * layer_s
        assert bound_s[row] == pytest.approx(step_s + (layers - largest) * filling_s)
    most_s = float(np.median(bound_s))
    wanted = Wanted(found, most_s)
    assert wanted(rows).tolist() == (bound_s <= most_s).tolist()
    assert wanted.least_of_others_s == bound_s[bound_s > most_s].min()
    assert Wanted(found, math.inf)(rows).all()


def test_no_more_kernels_are_priced_than_clusters_have_degrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    priced = list[int]()

    def counted(job: Job, rows: Skeletons) -> Any:
        priced.append(len(rows))
        return mean_time_costs(job, rows)

    monkeypatch.setattr("meshwright.planner.compute_bound.mean_time_costs", counted)
    for name in ("llama3-70b-128xa100", "mixtral-8x7b-64xh100", "gpt-1.3b-dgx-1v"):
        spec = mw.load(name, mw.Spec)
        compute_bound(make_job(spec), [spec.cluster])
    assert priced == [619, 1876, 96]
