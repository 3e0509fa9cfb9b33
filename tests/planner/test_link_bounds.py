"""Bounds under a limit on links and rules on bubbles, held against every split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.check.check import keeps, plan_values
from meshwright.cost.job import Job, make_job
from meshwright.planner.candidates import may_keep_rules, up_to
from meshwright.planner.memory_fit import scaled_costs, stages_by_pp
from meshwright.planner.rows import Lattice, build_lattice
from meshwright.planner.side_limits import LinkLimit
from meshwright.planner.split_bounds import (
    split_fits,
    split_ticks,
    with_all_recomputed,
)
from meshwright.planner.stages import Stages
from meshwright.plans.columns import Ints
from meshwright.plans.skeletons import Skeletons, to_plan
from meshwright.spec.spec import Spec
from tests.helpers.irregular import loaded
from tests.helpers.strategies import expert_specs, specs
from tests.planner.test_brute_force import ORACLE, compare
from tests.planner.test_user_rules import with_rules

MOST_ROWS = 60
"""Rows of a spec whose every split is looked at: links take a millisecond a split."""

SHARES = st.sampled_from([0.003, 0.01, 0.03, 0.1, 0.3])


def drawn_rows(job: Job, lattice: Lattice, seed: int) -> Skeletons:
    """Return some placed skeletons of a lattice."""
    random = np.random.default_rng(seed)
    some = random.permutation(len(lattice))[:MOST_ROWS]
    rows, _ = lattice.on_meshes(np.sort(some), None)
    few = random.permutation(len(rows))[:MOST_ROWS]
    return rows.take(np.sort(few))


def every_split(stages: Stages) -> Iterator[tuple[Ints, Ints]]:
    """Yield every split of layers with the numbers that stages may recompute.

    Those are equal on all stages, or what memory forces and one more on some stage.
    """
    chunks, none = stages.costs.rows.vpp[:, None], np.zeros_like(stages.least)
    for cut in itertools.combinations(range(1, stages.layers), stages.count - 1):
        held = np.diff([0, *cut, stages.layers])
        layers = np.tile(held, (len(none), 1))
        forced = layers * stages.per_layer - stages.layer_capacity
        least = -(-np.maximum(forced, 0) // np.maximum(stages.freed, 1))
        yield layers, none
        for number in range(1, int(held.max()) + 1):
            yield layers, np.minimum(chunks * number, layers)
        for stage in range(stages.count):
            more = least + (np.arange(stages.count) == stage)
            yield layers, np.minimum(more, layers)


@pytest.mark.slow
@ORACLE
@given(st.one_of(specs(6), expert_specs(6)), SHARES, st.integers(0, 99))
def test_no_split_that_keeps_a_limit_on_links_is_below_its_bound(
    spec: Spec, share: float, seed: int
) -> None:
    job = make_job(spec)
    lattice = build_lattice(job)
    if not len(lattice):
        return
    limit, rows = LinkLimit(job, lattice, share), drawn_rows(job, lattice, seed)
    for _, stages in stages_by_pp(job, scaled_costs(job, rows)):
        free, least = limit.least_ticks(stages), np.full(len(stages.extra), inf)
        for layers, recomputed in every_split(stages):
            ticks = split_ticks(stages, layers, recomputed)
            kept = limit.keeps(stages, layers, recomputed, ticks)
            kept &= split_fits(stages, layers, recomputed)
            assert (free <= ticks)[kept].all()
            least = np.where(kept, np.minimum(least, ticks), least)
        # Under a limit on steps too, as for the fastest plan known, or just above it.
        for below in (least, 1.3 * least, np.where(np.isinf(least), 1e9, least)):
            bound = limit.least_ticks(stages, 0.0, below)
            assert (bound <= least)[np.isfinite(least)].all()
            assert (bound >= free).all()


def test_most_skeletons_that_no_split_saves_are_refused_by_the_bound() -> None:
    """Also where chunks recompute the same number, and first layers have no experts."""
    model = {"preset": "deepseek-v2-lite", "n_layers": 9}
    cluster = {"topology": "dgx-h100", "count": 1}
    pins = {"micro_batch": 1, "pp": [2, 4], "vpp": {"max": 2}, "zero": 1}
    training = {"seq_len": 4096, "global_batch": 64}
    spec = loaded(cluster, model=model, training=training, pins=pins)
    job = make_job(spec)
    lattice = build_lattice(job)
    limit = LinkLimit(job, lattice, 0.02)
    costs, refused = scaled_costs(job, drawn_rows(job, lattice, 1)), 0
    hopeless = saved = 0
    for _, stages in stages_by_pp(job, costs):
        can, bound = np.zeros(len(stages.extra), dtype=bool), limit.least_ticks(stages)
        for layers, recomputed in every_split(stages):
            ticks = split_ticks(stages, layers, recomputed)
            kept = limit.keeps(stages, layers, recomputed, ticks)
            can |= kept & split_fits(stages, layers, recomputed)
        refused += int((np.isinf(bound) & ~can).sum())
        hopeless += int((~can).sum())
        saved += int(can.sum())
    assert saved > 10
    assert hopeless > 10
    assert refused > 0.9 * hopeless


@pytest.mark.slow
@ORACLE
@given(specs(6), st.sampled_from([0.01, 0.03, 0.1, 0.3]), st.integers(0, 99))
def test_no_split_keeps_a_rule_on_bubbles_that_its_skeleton_may_not(
    spec: Spec, share: float, seed: int
) -> None:
    spec = with_rules(spec, [{"that": f"parts.bubble <= {share} * step_s"}])
    job = make_job(spec)
    lattice = build_lattice(job)
    if not len(lattice):
        return
    rows = drawn_rows(job, lattice, seed)
    for _, stages in stages_by_pp(job, scaled_costs(job, rows)):
        none = np.zeros(len(stages.extra))
        may = may_keep_rules(job, stages.costs, none, up_to(inf))
        for number, (layers, recomputed) in enumerate(every_split(stages)):
            ticks = split_ticks(stages, layers, recomputed)
            fits = split_fits(stages, layers, recomputed)
            for row in np.flatnonzero(fits)[number % 7 :: 7].tolist():
                one = stages.costs.rows.take(np.array([row]))
                split = with_all_recomputed(job, one, layers[row], recomputed[row])
                plan = to_plan(one, 0, split, lattice.place(one))
                values = plan_values(job, plan)
                if keeps(spec.rules[0], values):
                    assert may[row]
                    below = up_to(float(ticks[row]))
                    assert may_keep_rules(job, stages.costs, none, below)[row]


@pytest.mark.slow
@ORACLE
@given(st.one_of(specs(4), expert_specs(4)), st.sampled_from([0.03, 0.1, 0.3, 0.8]))
def test_plans_under_a_limit_on_links_match_brute_force(
    spec: Spec, share: float
) -> None:
    spec = spec.having("limits", max_link_utilisation=share)
    assume(len(build_lattice(make_job(spec))) <= MOST_ROWS)
    compare(spec)


@pytest.mark.slow
@ORACLE
@given(specs(6), st.sampled_from([0.01, 0.03, 0.1, 0.3]))
def test_plans_under_a_rule_on_bubbles_match_brute_force(
    spec: Spec, share: float
) -> None:
    compare(with_rules(spec, [{"that": f"parts.bubble <= {share} * step_s"}]))
