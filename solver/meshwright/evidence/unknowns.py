"""The unknowns of a fit: log factors of GPUs, kernels and frameworks, with priors.

A prior is normal about no change. It is narrow, since most of what differs between two
sources is no property of their class: the more a class has to move, the more sources
must say so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.cost.profile import RunClass
from meshwright.evidence.tangents import NAMES
from meshwright.plans.columns import Floats, Ints

Spreads = Mapping[str, float]

HARDWARE: Spreads = {"gemm": 0.2, "attention": 0.25, "memory": 0.2, "link": 0.15}
"""Standard deviation of log factors of a GPU. They are not pooled over GPUs."""

KERNELS: Spreads = {"gemm": 0.05, "attention": 0.1, "memory": 0.2, "link": 0.15}
"""Those of who owns the kernels. Matmuls are the GPU vendor's in all code bases, and
the kernel of attention is known (`cost.attention_kernels`)."""

OWN: Spreads = {
    "dispatch_s": 0.5,
    "microbatch_s": 0.3,
    "grad_overlap": 0.3,
    "gather_overlap": 0.3,
}
"""Those of a framework itself: its host, and what it hides. Latencies of links are not
its own: fitted to tiny models on one node they stand for the host, and make tensor
parallelism across nodes too slow."""

ONE_CLUSTER: Spreads = {**OWN, "latency": 0.5}
"""Those of a fit to somebody's own runs, whose links and host are always the same."""

SOURCE_SPREAD = 0.1
"""Standard deviation of what multiplies all times of a source, as a logarithm."""

USERS = (0.12, 0.08)
"""Prior of the log time of users' runs over that of vendors', all else equal: mean and
standard deviation."""

SITE = (0.0, 0.12)
"""That of the log time of one user's runs over what a profile says of users' runs."""

USER, SOURCE = "user", "source"

Key = tuple[str, str, str]
"""What has a factor, its name, and on which parameter; empty for all of the step."""


@dataclass(frozen=True)
class Unknowns:
    """Unknown log factors with their priors."""

    keys: tuple[Key, ...]
    means: Floats
    spreads: Floats

    def place(self, run_class: RunClass, values: Floats) -> Floats:
        """Return the log factors of a class on the efficiencies, in order of NAMES."""
        result = np.zeros(len(NAMES))
        np.add.at(result, *self._terms(run_class, values))
        return result

    def slopes(self, run_class: RunClass, slopes: Floats) -> Floats:
        """Return derivatives by the unknowns, given those by the efficiencies.

        Both are (runs, ...).
        """
        result = np.zeros((len(slopes), len(self.keys)))
        columns = self.columns(run_class)
        result[:, columns] = slopes[:, [NAMES.index(self.keys[c][2]) for c in columns]]
        return result

    def columns(self, run_class: RunClass) -> list[int]:
        """Return which unknowns are factors of a class."""
        parts = dict(zip(PARTS, run_class, strict=True))
        return [i for i, key in enumerate(self.keys) if parts.get(key[0]) == key[1]]

    def index_of(self, part: str, names: Iterable[str]) -> Ints:
        """Return the unknown of each name, -1 where it has none."""
        place = {key[1]: i for i, key in enumerate(self.keys) if key[0] == part}
        return np.array([place.get(name, -1) for name in names], dtype=np.int64)

    def factors(self, part: str, values: Floats) -> dict[str, dict[str, float]]:
        """Return the log factors of GPUs, kernels or frameworks, by name."""
        result: dict[str, dict[str, float]] = {}
        for (kind, name, parameter), value in zip(self.keys, values, strict=True):
            if kind == part:
                result.setdefault(name, {})[parameter] = float(value)
        return result

    def _terms(self, run_class: RunClass, values: Floats) -> tuple[list[int], Floats]:
        columns = self.columns(run_class)
        return [NAMES.index(self.keys[c][2]) for c in columns], values[columns]


PARTS = ("gpus", "kernels", "frameworks")
"""The parts of a profile, in the order of `RunClass`."""


def unknowns(
    classes: Iterable[RunClass],
    sources: Collection[str],
    users: tuple[float, float] | None,
) -> Unknowns:
    """Return the unknowns of a fit to runs of some classes.

    `sources` are those that have a factor of their own, none if the runs are somebody's
    own; `users` is the prior of that of all users' runs, None where they have none.
    """
    found: dict[Key, tuple[float, float]] = {}
    spreads = (HARDWARE, KERNELS, OWN if sources else ONE_CLUSTER)
    for run_class in classes:
        for part, name, of_part in zip(PARTS, run_class, spreads, strict=True):
            found |= {(part, name, p): (0.0, spread) for p, spread in of_part.items()}
    found |= {(SOURCE, source, ""): (0.0, SOURCE_SPREAD) for source in sources}
    if users is not None:
        found[USER, USER, ""] = users
    means, spreads_ = np.array(list(found.values())).T
    return Unknowns(tuple(found), means, spreads_)
