"""What is kept of families is what a fresh look at their skeletons says.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.cost.job import Job, make_job
from meshwright.cost.profile import Profile
from meshwright.explanations.decisions import with_memory
from meshwright.loading.load import load_spec
from meshwright.planner.families import find_families
from meshwright.planner.memory_fit import KnownFits, MemoryFit
from meshwright.planner.mixed_clusters import arrangements
from meshwright.planner.rows import Lattice, build_lattice
from meshwright.plans.columns import Ints
from meshwright.spec.spec import Spec
from tests.helpers.extent import gate
from tests.helpers.strategies import expert_specs, finetuning_specs, specs

LAWS = settings(
    max_examples=gate(12, everything=40),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
ANY_SPEC = st.one_of(specs(), expert_specs(), finetuning_specs(most_layers=6))


def fitting(job: Job, lattice: Lattice) -> Ints:
    return np.flatnonzero(MemoryFit(job, lattice).is_fitting())


def with_share(spec: Spec, share: float) -> Job:
    return make_job(with_memory(spec, share * spec.usable_gib))


@LAWS
@given(ANY_SPEC, st.floats(0.05, 1.0), st.integers(0, 10))
def test_families_are_asked_in_any_order(spec: Spec, share: float, seed: int) -> None:
    job = with_share(spec, share)
    lattice = build_lattice(job)
    families = find_families(job, lattice)
    some = np.random.default_rng(seed).random(len(families)) < 0.5
    for kept in (some, np.ones_like(some)):
        families.fitting(lattice, np.flatnonzero(kept))
    found = families.fitting(lattice, np.arange(len(families)))
    np.testing.assert_array_equal(found, fitting(job, lattice))


@LAWS
@given(ANY_SPEC, st.floats(0.05, 1.0), st.floats(0.5, 1.0))
def test_parts_of_the_lattice_and_less_memory_share_them(
    spec: Spec, share: float, less: float
) -> None:
    """Families that hold too much state alone have no skeleton that fits."""
    job, small = with_share(spec, share), with_share(spec, share * less)
    lattice = build_lattice(job)
    every = find_families(job, lattice, keeps_all=True)
    assert every.fits.covers(small)
    if len(lattice):
        for degree in np.unique(lattice.degree)[:3]:
            has_degree = np.arange(len(lattice.degrees)) == degree
            part = lattice.among(has_degree)
            for families in (every, find_families(job, lattice)):
                result = families.among(lattice, has_degree)
                found = result.fitting(part, np.arange(len(result)))
                np.testing.assert_array_equal(found, fitting(job, part))
                memory = MemoryFit(small, part.take(found))
                kept = found[result.fits.keep(small, memory)]
                np.testing.assert_array_equal(kept, fitting(small, part))


@LAWS
@given(ANY_SPEC, st.floats(0.05, 1.0))
def test_families_without_room_for_state_need_no_bound(
    spec: Spec, share: float
) -> None:
    job = with_share(spec, share)
    lattice = build_lattice(job)
    every = find_families(job, lattice, keeps_all=True)
    found = find_families(job, lattice)
    kept = np.isin(every.start, found.start)
    for name in ("start", "count", "lower"):
        np.testing.assert_array_equal(getattr(every, name)[kept], getattr(found, name))
    assert not len(every.fitting(lattice, np.flatnonzero(~kept)))


@LAWS
@given(ANY_SPEC)
def test_the_plainest_of_each_family_is_its_first(spec: Spec) -> None:
    job = make_job(spec)
    lattice = build_lattice(job)
    if not len(lattice):
        return
    families = find_families(job, lattice, keeps_all=True)
    plain, family = lattice.plainest()
    np.testing.assert_array_equal(
        family, np.arange(len(families)).repeat(families.count)
    )
    first = lattice.rows.take(families.start)
    for name in ("pp", "micro_batch", "offload", "recompute", "recompute_modules"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(first, name))


def test_more_memory_than_was_asked_for_is_not_known() -> None:
    spec = load_spec("llama3-70b-16xa100")
    job = make_job(spec)
    fits = find_families(job, build_lattice(job)).fits
    assert fits.covers(with_share(spec, 0.9))
    assert not fits.covers(with_share(spec, 1.1))


def test_all_kinds_of_gpus_are_asked_whether_they_have_as_much() -> None:
    """A job on two kinds has the room of both, and less where one kind has less."""
    spec = load_spec("gpt2-xl-2x3090-2x4090")
    (both,) = [
        one.spec for one in arrangements(spec) if "3090-nvlink-2, then" in one.sentence
    ]
    job = Profile().job(both)
    assert len(job.gpu_kinds) == 2
    fits = KnownFits(job, 0)
    assert fits.covers(job)
    for kind in (0, 1):
        for share, is_covered in ((0.9, True), (1.1, False)):
            other = with_memory(job.gpu_kinds[kind].spec, share * both.usable_gib)
            kinds = [*job.gpu_kinds]
            kinds[kind] = replace(kinds[kind], spec=other)
            assert fits.covers(replace(job, gpu_kinds=tuple(kinds))) == is_covered
