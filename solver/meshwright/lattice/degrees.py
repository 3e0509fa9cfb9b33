"""Degrees: the size of each axis of a mesh, over all levels together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from meshwright.cost.job import Job
from meshwright.deadline import NEVER, Deadline
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.rule import holding
from meshwright.plans.skeletons import Skeletons, plain_columns
from meshwright.rules.legality import degree_rules, framework_degree_rules
from meshwright.spec.divisors import divisors
from meshwright.spec.plan_fields import AXES
from meshwright.topology.fabric import Meshes, PathCosts, free_paths
from meshwright.topology.groups import GROUPS

MOST_AT_ONCE = 1_000_000
"""Degrees grown at once by one more level, most of which may be equal."""


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
