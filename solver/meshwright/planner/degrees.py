"""Degrees of axes and the meshes that have them, over all levels of the topology."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np

from meshwright.cost.job import Job
from meshwright.deadline import NEVER, Deadline
from meshwright.planner.placer import ExpertDegree
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.rule import holding
from meshwright.plans.skeletons import Skeletons, plain_columns
from meshwright.rules.legality import degree_rules, framework_degree_rules
from meshwright.spec.base import divisors
from meshwright.spec.plan_fields import AXES
from meshwright.topology.fabric import Fabric, Meshes, PathCosts, free_paths
from meshwright.topology.groups import GROUPS, price_groups

MOST_AT_ONCE = 1_000_000
"""Degrees grown at once by one more level, most of which may be equal."""

MOST_LISTED = 10_000
"""Keys per fabric whose meshes are cached; a thousand take 4 MiB on three levels."""

MOST_FABRICS = 4

AT_ONCE = 64
"""Keys enumerated at once: more save little time, and take memory."""

Key = tuple[tuple[int, ...], ExpertDegree]
"""Degrees of the axes, and the expert-parallel degree if the model has experts."""


def legal_degrees(job: Job, deadline: Deadline = NEVER) -> tuple[Ints, Ints]:
    """Return the degrees that the rules allow, and how many meshes have them.

    Raises:
        OutOfTime: there are too many to list them in time.
    """
    spec = job.spec
    inherited = [rule for rule in framework_degree_rules(spec) if rule.is_inherited]
    degrees, copies = enumerate_degrees(
        job.fabric.sizes,
        lambda grown: holding(inherited, spec, degree_rows(grown)),
        deadline,
    )
    legal = holding(degree_rules(spec), spec, degree_rows(degrees))
    return degrees[legal], copies[legal]


def enumerate_degrees(
    sizes: Sequence[int],
    keep: Callable[[Ints], Bools] | None = None,
    deadline: Deadline = NEVER,
) -> tuple[Ints, Ints]:
    """Return all degrees, (degrees, axes), and the number of meshes of each.

    Levels are added one after another; meshes with equal degrees so far are counted,
    not listed. After each level `keep` says which degrees to go on with.

    Raises:
        OutOfTime: there are too many to list them in time.
    """
    known = divisors(int(np.prod(sizes)))
    degrees = np.ones((1, len(AXES)), dtype=np.int64)
    copies = np.ones(1, dtype=np.int64)
    for size in sizes:
        options = factorisations(size)
        starts = range(0, len(degrees), max(MOST_AT_ONCE // len(options), 1))
        every: Ints = np.ones((0, len(AXES)), dtype=np.int64)
        counts: Floats = np.zeros(0)
        for start in starts:
            if start:
                deadline.check()
            part = slice(start, start + starts.step)
            grown = (degrees[part, None] * options[None]).reshape(-1, len(AXES))
            every = np.concatenate([every, grown])
            counts = np.append(counts, np.repeat(copies[part], len(options)))
            index = np.searchsorted(known, every).T
            code = np.ravel_multi_index(tuple(index), (len(known),) * len(AXES))
            _, first, number = np.unique(code, return_index=True, return_inverse=True)
            every = every[first]
            counts = np.asarray(np.bincount(number, weights=counts), dtype=np.float64)
        degrees, copies = every, counts.astype(np.int64)
        if keep is not None:
            mask = keep(degrees)
            degrees, copies = degrees[mask], copies[mask]
    return degrees, copies


@cache
def factorisations(size: int) -> Ints:
    """Return the ordered factorisations of a level over the axes, (options, axes).

    Inner axes get the largest factors first, so that the first factorisations are the
    ones that people write.
    """
    return np.array(list(_factorisations(size, len(AXES))), dtype=np.int64)


def _factorisations(size: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(size,)]
    rests = (
        ((divisor,), _factorisations(size // divisor, parts - 1))
        for divisor in reversed(divisors(size))
    )
    pairs = itertools.chain.from_iterable(
        itertools.product([first], rest) for first, rest in rests
    )
    return [first + rest for first, rest in pairs]


def degree_rows(degrees: Ints) -> Skeletons:
    """Return plain skeletons with these degrees, for rules that ignore links."""
    return mesh_rows(degrees[:, :, None], free_paths(len(degrees), len(GROUPS)))


def mesh_rows(meshes: Meshes, paths: PathCosts) -> Skeletons:
    """Return plain skeletons with the degrees of meshes, for rules on meshes."""
    degrees = dict(zip(AXES, meshes.prod(axis=2).T, strict=True))
    columns = plain_columns(len(meshes)) | degrees
    return Skeletons(**columns, paths=paths, mesh=np.arange(len(meshes)))


def enumerate_meshes(sizes: Sequence[int], degrees: Ints) -> Meshes:
    """Return every mesh of a cluster with given degrees, (meshes, axes, levels)."""
    return _every_mesh(sizes, degrees[None])[0]


def _every_mesh(sizes: Sequence[int], degrees: Ints) -> tuple[Meshes, Ints]:
    """Return every mesh of any of the degrees, and the index of its degrees."""
    number = np.arange(len(degrees))
    left, meshes = degrees, np.ones((*degrees.shape, 0), dtype=np.int64)
    for size in sizes[:-1]:
        options = factorisations(size)
        row, option = np.nonzero((left[:, None] % options[None] == 0).all(axis=2))
        left, number = left[row] // options[option], number[row]
        meshes = np.concatenate([meshes[row], options[option][:, :, None]], axis=2)
    # The last level takes the remaining factors, if their product is its size.
    whole = left.prod(axis=1) == sizes[-1]
    every = np.concatenate([meshes[whole], left[whole][:, :, None]], axis=2)
    return every, number[whole]


def listed(fabric: Fabric, keys: Sequence[Key]) -> list[tuple[Meshes, PathCosts]]:
    """Return one mesh of each price for each key, where GPU orders do not matter.

    Specs on one fabric share the cache, and so do repeated solves of one spec.
    """
    known = _known(fabric)
    # Another thread may clear the cache in the meantime.
    found = {key: meshes for key in keys if (meshes := known.get(key)) is not None}
    new = [key for key in dict.fromkeys(keys) if key not in found]
    for start in range(0, len(new), AT_ONCE):
        part = new[start : start + AT_ONCE]
        found.update(zip(part, _listed(fabric, part), strict=True))
    if len(known) + len(new) > MOST_LISTED:
        known.clear()
    known.update((key, found[key]) for key in new)
    return [found[key] for key in keys]


@lru_cache(maxsize=MOST_FABRICS)
def _known(fabric: Fabric) -> dict[Key, tuple[Meshes, PathCosts]]:
    """Return the cache of one fabric."""
    return {}


def _listed(fabric: Fabric, keys: list[Key]) -> list[tuple[Meshes, PathCosts]]:
    """Return one mesh of each price for each key; all keys have experts, or none."""
    meshes, number = _every_mesh(fabric.sizes, np.array([sizes for sizes, _ in keys]))
    shares = np.array([share or 1 for _, share in keys])
    paths = price_groups(fabric, meshes, None if keys[0][1] is None else shares[number])
    first = first_of_equal([number[:, None], paths.s_per_byte, paths.latency_s])
    edges = np.searchsorted(number[first], np.arange(len(keys) + 1))
    parts = (first[start:end] for start, end in pairwise(edges.tolist()))
    return [(meshes[part], paths.take(part)) for part in parts]


def first_of_equal(columns: Iterable[Ints | np.ndarray]) -> Ints:
    """Return the first of each set of equal rows, in order; columns are (rows, any)."""
    first: dict[bytes, int] = {}
    for index, row in enumerate(np.concatenate(list(columns), axis=1)):
        first.setdefault(row.tobytes(), index)
    return np.array(list(first.values()), dtype=np.int64)
