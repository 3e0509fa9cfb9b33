"""The branch and bound, in whatever portions it looks at rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.cost.job import Job, make_job
from meshwright.cost.offload import is_never_faster
from meshwright.cost.profile import load_profile
from meshwright.deadline import Deadline
from meshwright.planner import narrow as pruning
from meshwright.planner.candidates import (
    Pricing,
    Pruned,
    count_skeletons,
    kth_best_upper,
)
from meshwright.planner.families import find_families
from meshwright.planner.narrow import Window, is_dominated, prune
from meshwright.planner.options import Options
from meshwright.planner.rows import Lattice, build_lattice
from meshwright.planner.solve import solve
from meshwright.planner.stages import has_one_split
from meshwright.spec.plan_fields import FULL, KEEPS_ALL, NONE
from meshwright.spec.spec import Spec

SPEC: dict[str, Any] = {
    "model": {
        "n_layers": 8, "d_model": 512, "n_heads": 8, "d_ff": 2_048, "vocab": 8_000,
    },
    "cluster": {
        "topology": {
            "gpu": {
                "memory_gib": 4.0,
                "memory_gb_s": 900.0,
                "peak_tflops": {"bf16": 100.0, "fp16": 100.0},
            },
            "levels": [
                {"name": "node", "size": 4, "gb_s": 50.0, "latency_us": 2.0},
                {"name": "net", "size": 2, "gb_s": 10.0, "latency_us": 5.0},
            ],
        }
    },
    "training": {
        "seq_len": 4_096, "global_batch": 16, "precision": ["bf16", "fp16"],
    },
    "framework": "torchtitan",
}  # fmt: skip
"""Both precisions take the same: every plan has an equal."""

PORTIONS = [
    (256, 64, 4, 16, 0),
    (1, 1, 1, 1, 0),
    (7, 3, 2, 2, 40),
    (10**6, 10**6, 2, 2, 2_000),
    (256, 64, 4, 16, 10_000),
]
"""FIRST_PART, FIRST_BATCH, GROWTH, GROWTH_OF_PARTS and MODEL_ROWS."""


@pytest.fixture(scope="module")
def asked() -> tuple[Job, Lattice]:
    job = make_job(Spec.model_validate(SPEC))
    return job, build_lattice(job)


def best_of(found: Pruned, keep: int) -> float:
    return kth_best_upper([found.candidates], keep)


def codes(found: Pruned, most: float) -> set[tuple[int, int]]:
    """Return the rows, each with its mesh, that may be as fast as that."""
    result = found.candidates.up_to(most)
    return set(
        zip(result.unplaced.tolist(), result.costs.rows.mesh.tolist(), strict=True)
    )


def in_portions(monkeypatch: pytest.MonkeyPatch, portions: tuple[int, ...]) -> None:
    names = ("FIRST_PART", "FIRST_BATCH", "GROWTH", "GROWTH_OF_PARTS", "MODEL_ROWS")
    for name, value in zip(names, portions, strict=True):
        monkeypatch.setattr(pruning, name, value)


@pytest.mark.parametrize("portions", PORTIONS)
@pytest.mark.parametrize(("keep", "spare"), [(1, 0), (1, 1), (2, 0), (3, 2)])
def test_no_plan_as_fast_as_those_wanted_is_lost(
    asked: tuple[Job, Lattice],
    monkeypatch: pytest.MonkeyPatch,
    portions: tuple[int, ...],
    keep: int,
    spare: int,
) -> None:
    """Nor an equal of the slowest of them; slower ones are gone that bounds saw."""
    every = prune(*asked, is_pruning=False)
    in_portions(monkeypatch, portions)
    found = prune(*asked, Window(best=keep, spare=spare))
    wanted = best_of(every, keep + spare)
    if keep == 1:
        # Rows that free what need not be freed are no candidates.
        assert best_of(found, 1) == best_of(every, 1)
    else:
        assert best_of(found, keep + spare) == wanted
        assert codes(found, wanted) == codes(every, wanted)
        slower = found.candidates.lower > wanted
        assert slower.sum() <= portions[-1]
    twins = found.candidates.costs.rows.precision
    assert np.bincount(twins, minlength=2)[:2].min() > 0
    assert found.open_bound > best_of(found, keep + spare)


ONLY = {
    "tp": 1, "pp": 1, "cp": 1, "dp_shard": 8, "zero": 2, "micro_batch": 1, "vpp": 1,
    "recompute": ["none", "selective", "full"], "recompute_layers": "any",
}  # fmt: skip


@pytest.mark.parametrize(("keep", "rows"), [(1, 1), (2, 3), (3, 3)])
def test_what_need_not_be_freed_is_next_best(
    monkeypatch: pytest.MonkeyPatch, keep: int, rows: int
) -> None:
    """Where one plan is asked for, rows that recompute for nothing are none."""
    monkeypatch.setattr(pruning, "MODEL_ROWS", 0)
    data = {**SPEC, "pins": ONLY, "training": {**SPEC["training"], "precision": "bf16"}}
    job = make_job(Spec.model_validate(data))
    found = prune(job, build_lattice(job), Window(best=keep))
    assert len(set(found.candidates.unplaced.tolist())) == rows
    whole = prune(job, build_lattice(job), is_pruning=False)
    assert len(set(whole.candidates.unplaced.tolist())) == 3


def test_every_skeleton_is_counted_once(
    asked: tuple[Job, Lattice], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So many that some do not fit.
    monkeypatch.setattr(pruning, "FIRST_PART", 256)
    for rows in (0, 300, 10_000):
        monkeypatch.setattr(pruning, "MODEL_ROWS", rows)
        counts = prune(*asked).counts
        assert counts.skeletons == asked[1].skeletons
        assert counts.no_memory > 0
        assert counts.survivors > 0
        assert counts.no_memory + counts.bounded + counts.survivors == counts.skeletons


def test_what_time_ran_out_on_is_bounded(
    asked: tuple[Job, Lattice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least one batch is done, and no plan is below what is left open."""
    in_portions(monkeypatch, (8, 2, 1, 1, 0))
    hurried = prune(*asked, deadline=Deadline(0.0))
    assert len(hurried.candidates.lower)
    best = best_of(prune(*asked), 1)
    assert min(hurried.open_bound, best_of(hurried, 1)) <= best
    in_time = prune(*asked, deadline=Deadline(1_000))
    assert in_time.open_bound > best


def test_progress_counts_families(
    asked: tuple[Job, Lattice], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_portions(monkeypatch, PORTIONS[0])
    told: list[str] = []
    prune(*asked, on_progress=told.append)
    assert told
    assert all(one.endswith("groups of plans to bound") for one in told)
    left = [int(one.split(" of ")[0].replace(",", "")) for one in told]
    assert left == sorted(left, reverse=True)


def test_orders_of_gpus_are_sought_within_their_time() -> None:
    """On an irregular host what was not looked at stays open."""
    job = make_job(mw.load("gpt-1.3b-dgx-1v", mw.Spec))
    lattice = build_lattice(job)
    hurried = prune(job, lattice, deadline=Deadline(0.0))
    assert hurried.open_bound <= best_of(hurried, 1)


def test_pinned_counts_are_recomputed_where_nothing_else_asks_for_it() -> None:
    """Rows that recompute nothing fit, but cannot have what is pinned."""
    pins = ["tp=1", "pp=1", "recompute_layers=[3]"]
    spec = mw.load("gpt2-xl-2x4090-pcie", mw.Spec, pins=pins)
    best = solve(spec.model_copy(update={"framework": "generic"})).best
    assert best is not None
    assert [stage.recompute_layers for stage in best.plan.stages] == [3]


def test_a_rule_on_the_step_leaves_the_plan_that_just_keeps_it() -> None:
    """Where prices count doubt, the step itself is what the rule is about."""
    spec = mw.load("gpt-1.3b-2xa100-pcie", mw.Spec)
    options = Options(is_brief=True, is_doubted=True, profile=load_profile("measured"))
    best = solve(spec, options).best
    assert best is not None
    rule = {"that": f"step_s <= {best.step_s * 1.0001}"}
    data = spec.model_dump(exclude_unset=True) | {"rules": [rule]}
    kept = solve(Spec.model_validate(data), options).best
    assert kept is not None
    assert kept.plan == best.plan


def drawn_found(random: np.random.Generator) -> list[Any]:
    """Return some candidates of few skeletons, some of which have no plan."""
    found = []
    for _ in range(int(random.integers(1, 4))):
        count = int(random.integers(0, 6))
        upper = random.integers(1, 5, count).astype(float)
        upper[random.random(count) < 0.2] = np.inf
        found.append(
            SimpleNamespace(
                unplaced=random.integers(0, 4, count),
                upper=upper,
                scale=random.choice([1, 2], count),
            )
        )
    return found


@pytest.mark.parametrize("seed", range(60))
def test_the_best_prices_are_of_distinct_skeletons_and_differ(seed: int) -> None:
    found = drawn_found(np.random.default_rng(seed))
    least: dict[int, float] = {}
    for part in found:
        for row, upper, scale in zip(
            part.unplaced, part.upper, part.scale, strict=True
        ):
            least[int(row)] = min(upper * scale, least.get(int(row), np.inf))
    prices = [*sorted({*least.values()}), np.inf, np.inf, np.inf]
    for k in (1, 2, 3):
        assert kth_best_upper(found, k) == prices[k - 1]


def test_a_skeleton_on_one_mesh_in_several_orders_counts_once() -> None:
    """Meshes 0 and 2 are one, with the GPUs of a host in another order."""
    axes = [np.array([[2]]), np.array([[1]]), np.array([[2]])]
    places = [SimpleNamespace(mesh=mesh) for mesh in axes]
    table = SimpleNamespace(has_choice=True, place=places.__getitem__)
    lattice: Any = SimpleNamespace(table=table)
    rows = SimpleNamespace(mesh=np.array([0, 1, 2, 0, 1]))
    candidates: Any = SimpleNamespace(
        unplaced=np.array([5, 5, 5, 6, 6]),
        costs=SimpleNamespace(rows=rows),
        lower=np.zeros(5),
    )
    assert count_skeletons(lattice, candidates) == 4
    table.has_choice = False
    assert count_skeletons(lattice, candidates) == 5


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_families_are_priced_by_the_doubt_of_their_first_skeleton(
    share: float, asked: tuple[Job, Lattice]
) -> None:
    """Those above a price count the least doubt, which is none."""
    job, lattice = asked
    families = find_families(job, lattice)
    most = float(np.quantile(families.lower * 100, share))
    assert families.priced(lattice, Pricing(job.spec), most) is families
    measured = load_profile("measured").applied_to(job.spec)
    pricing = Pricing(measured, is_doubted=True)
    percents = pricing.of(lattice.take(families.start).rows)
    priced = families.priced(lattice, pricing, most)
    plain = families.lower * 100
    expected = np.where(plain <= most, families.lower * percents, plain)
    np.testing.assert_array_equal(priced.lower, expected)
    assert pricing.unit == percents.min() == 100 < percents.max()


@pytest.mark.parametrize(
    ("name", "pins"),
    [
        ("llama3-8b-2x4090-pcie", {"pp": 1}),
        ("llama3-8b-2x4090-pcie", {"pp": [1, 2], "recompute_segment": [1, 2, 4]}),
        ("llama3-8b-2xh100-nvlink", {"recompute_layers": "any"}),
    ],
)
def test_what_frees_memory_is_dominated_by_what_fits_without(
    name: str, pins: dict[str, Any]
) -> None:
    """Rows of one family, by plain loops over pairs of them."""
    spec = mw.load(name, mw.Spec, pins=pins).model_copy(update={"framework": "generic"})
    job = make_job(spec)
    lattice = build_lattice(job)
    some = np.random.default_rng(0).permutation(len(lattice))[:700]
    fitting = np.sort(some)
    told = is_dominated(job, lattice, fitting)
    rows, unplaced = lattice.rows.take(fitting), lattice.unplaced
    one_split = has_one_split(spec, lattice.rows)[fitting]
    columns = (
        unplaced.family[fitting], rows.offload, rows.recompute, rows.recompute_segment,
        unplaced.recompute_way[fitting], one_split,
    )  # fmt: skip
    every = [tuple(map(int, row)) for row in zip(*columns, strict=True)]
    kinds = {
        (family, offload, mode, segment) for family, offload, mode, segment, *_ in every
    }
    kept = {
        (family, way) for family, offload, *_, way, _ in every if offload == KEEPS_ALL
    }
    for row, (family, offload, mode, segment, way, is_one) in enumerate(every):
        is_plain = (family, offload, NONE, 1) in kinds
        expected = mode != NONE and is_plain
        is_short = (family, offload, FULL, 1) in kinds
        expected |= mode == FULL and segment > 1 and is_short
        if is_never_faster(job):
            expected |= offload != KEEPS_ALL and (family, way) in kept
        assert told[row] == (expected and bool(is_one))
    assert 0 < told.sum() < len(told)


def test_families_whose_memory_is_measured_in_blocks_are_all_bounded(
    asked: tuple[Job, Lattice], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = prune(*asked, is_pruning=False)
    monkeypatch.setattr(pruning, "MEASURED_AT_ONCE", 20)
    blocks = prune(*asked, is_pruning=False)
    assert codes(blocks, np.inf) == codes(every, np.inf)
    assert blocks.counts == every.counts
    # At most one block is looked at once the time is up.
    hurried = prune(*asked, deadline=Deadline(0.0), is_pruning=False)
    assert 0 < len(hurried.candidates) < len(every.candidates)
