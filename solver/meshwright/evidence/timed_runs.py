"""Runs with measured times as columns, and the factors that a fit may change.

`TimedRuns` prices them at many efficiencies, `Tangents` is a linear model of that near
some efficiencies, and `unknowns` lists the log factors that runs share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.job import Efficiency, Job, make_job
from meshwright.cost.layer_kinds import mean_time_costs
from meshwright.cost.price import step_seconds
from meshwright.cost.profile import Profile, RunClass
from meshwright.evidence.price import Priced
from meshwright.evidence.published_terms import class_on_gpu
from meshwright.plans.columns import Floats, Ints, joined
from meshwright.plans.skeletons import Skeletons, Split, to_row, to_split


@dataclass(frozen=True)
class _Alike:
    """Runs of one model, GPU and framework with the same number of stages."""

    run_class: RunClass
    job: Job
    rows: Skeletons
    split: Split
    index: Ints

    def log_steps(self, efficiency: Efficiency) -> Floats:
        time = mean_time_costs(replace(self.job, efficiency=efficiency), self.rows)
        return np.log(step_seconds(self.rows, time, self.split))

    def among(self, kept: Ints) -> Iterator[_Alike]:
        """Yield these runs without those that are not kept, if any are left."""
        place = np.searchsorted(kept, self.index)
        places = np.flatnonzero(kept[np.minimum(place, len(kept) - 1)] == self.index)
        if len(places):
            split = Split(self.split.layers[places], self.split.recomputed[places])
            rows = self.rows.take(places)
            yield replace(self, rows=rows, split=split, index=place[places])


class TimedRuns:
    """Runs with a measured step time."""

    def __init__(
        self, priced: list[Priced], alike: tuple[_Alike, ...] | None = None
    ) -> None:
        """Group the runs that differ only in plan, batch and number of GPUs."""
        self.runs = priced
        self.classes = [class_of(one) for one in priced]
        tuned = [one.spec.training.tuned for one in priced]
        self.by_user = np.array([who == "user" for who in tuned], dtype=bool)
        self.log_measured = np.log([one.run.step_s or np.nan for one in priced])
        self._alike = _groups(priced) if alike is None else alike

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.runs)

    def take(self, index: Ints) -> TimedRuns:
        """Return some of the runs; `index` ascends."""
        alike = (kept for group in self._alike for kept in group.among(index))
        return TimedRuns([self.runs[i] for i in index], tuple(alike))

    def rows_of(self, run_class: RunClass) -> Ints:
        """Return the indices of the runs of a class."""
        return np.array([i for i, c in enumerate(self.classes) if c == run_class])

    def log_steps(self, efficiencies: Mapping[RunClass, Efficiency]) -> Floats:
        """Return ln(predicted) of every run whose class has an efficiency, else nan."""
        result = np.full(len(self), np.nan)
        for alike in self._alike:
            if alike.run_class in efficiencies:
                steps = alike.log_steps(efficiencies[alike.run_class])
                result[alike.index] = steps
        return result

    def errors(self, profile: Profile) -> Floats:
        """Return ln(predicted / measured) of every run under a profile."""
        found = {c: profile.efficiency_of(c, "vendor") for c in set(self.classes)}
        users_log = np.log(profile.user_time) * self.by_user
        return np.asarray(self.log_steps(found) + users_log - self.log_measured)


def _groups(priced: list[Priced]) -> tuple[_Alike, ...]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, one in enumerate(priced):
        groups[_group_key(one), one.plan.pp].append(index)
    return tuple(_group(priced, index) for index in groups.values())


def _group(priced: list[Priced], index: list[int]) -> _Alike:
    members = [priced[i] for i in index]
    rows = [to_row(make_job(one.spec).fabric, one.plan)[0] for one in members]
    splits = [to_split(one.plan) for one in members]
    return _Alike(
        class_of(members[0]),
        make_job(members[0].spec),
        joined(rows),
        Split(
            np.stack([split.layers for split in splits]),
            np.stack([split.recomputed for split in splits]),
        ),
        np.array(index),
    )


def class_of(priced: Priced) -> RunClass:
    """Return the class of a run."""
    spec = priced.spec
    return class_on_gpu(priced.run, spec.cluster.topology.gpu.name, spec.framework)


def _group_key(priced: Priced) -> Hashable:
    """Return the key of the group of a run: all inputs of its cost except its row."""
    spec = priced.spec
    ignored = {"global_batch": 0, "tuned": "vendor"}
    training = spec.training.model_copy(update=ignored)
    # How often each kind of layer stands in a pattern depends on the layers.
    layers = spec.model.n_layers if spec.model.kinds else 0
    model = spec.model.model_copy(update={"n_layers": layers, "name": ""})
    topology = spec.cluster.topology
    machine = topology.gpu, topology.host
    return model.model_dump_json(), training, machine, class_of(priced)


NAMES = tuple(Efficiency.model_fields)

CLOSE = 0.02
"""Change of a log step time up to which step times follow their tangent."""

FAR = 0.15
"""Change of a log step time from which on derivatives are computed again."""

STEP = 1e-3
"""Change of a logarithm by which derivatives are computed."""


def times_exp(base: Efficiency, log_factors: Floats) -> Efficiency:
    """Return an efficiency times factors, given as logarithms in the order of NAMES."""
    return base.times(dict(zip(NAMES, np.exp(log_factors).tolist(), strict=True)))


@dataclass(frozen=True)
class _Tangent:
    """Log step times of the runs of a class, priced at one place."""

    place: Floats
    log_steps: Floats
    slopes_place: Floats
    slopes: Floats
    """d ln(step) / d ln(efficiency), (runs, parameters)."""

    def change(self, one: Floats, other: Floats) -> float:
        """Return about how much some log step time changes between two places."""
        return float((np.abs(self.slopes) @ np.abs(one - other)).max())


class Tangents:
    """Log step times of runs as functions of the log factors of their classes."""

    def __init__(self, cases: TimedRuns, base: Mapping[RunClass, Efficiency]) -> None:
        """Price nothing yet; `base` has the efficiency of each class at no factors."""
        self.cases, self._base = cases, base
        self._rows = {c: cases.rows_of(c) for c in base}
        self._cases_of = {c: cases.take(rows) for c, rows in self._rows.items()}
        self._found: dict[RunClass, _Tangent] = {}

    def copy(self) -> Tangents:
        """Return a copy with the prices known so far, which moves independently."""
        result = object.__new__(Tangents)
        result.__dict__.update(self.__dict__)
        result._found = dict(self._found)
        return result

    def at(self, places: Mapping[RunClass, Floats]) -> tuple[Floats, Floats]:
        """Return the log step times of all runs, and their slopes."""
        log_steps = np.empty(len(self.cases))
        slopes = np.empty((len(self.cases), len(NAMES)))
        for run_class, place in places.items():
            found = self._found[run_class] = self._near(run_class, place)
            rows = self._rows[run_class]
            log_steps[rows] = found.log_steps + found.slopes @ (place - found.place)
            slopes[rows] = found.slopes
        return log_steps, slopes

    def slopes(self, run_class: RunClass, place: Floats) -> Floats:
        """Return the slopes of the runs of a class, (runs, parameters)."""
        return self._near(run_class, place).slopes

    def _near(self, run_class: RunClass, place: Floats) -> _Tangent:
        found = self._found.get(run_class)
        if found is None or found.change(found.slopes_place, place) > FAR:
            return self._priced(run_class, place)
        if found.change(found.place, place) > CLOSE:
            log_steps = self._log_steps(run_class, place)
            return replace(found, place=place, log_steps=log_steps)
        return found

    def _priced(self, run_class: RunClass, place: Floats) -> _Tangent:
        here = self._log_steps(run_class, place)
        steps = STEP * np.eye(len(NAMES))
        there = [self._log_steps(run_class, place + step) for step in steps]
        slopes = (np.stack(there, axis=1) - here[:, None]) / STEP
        return _Tangent(place, here, place, slopes)

    def _log_steps(self, run_class: RunClass, place: Floats) -> Floats:
        efficiency = times_exp(self._base[run_class], place)
        return self._cases_of[run_class].log_steps({run_class: efficiency})


Spreads = Mapping[str, float]

HARDWARE: Spreads = {"gemm": 0.2, "attention": 0.25, "memory": 0.2, "link": 0.15}
"""Standard deviation of log factors of a GPU. They are not pooled over GPUs."""

KERNELS: Spreads = {"gemm": 0.05, "attention": 0.1, "memory": 0.2, "link": 0.15}
"""Those of a set of kernels. Matmuls are the GPU vendor's in all code bases, and the
kernel of attention is known (`cost.attention`)."""

FRAMEWORK: Spreads = {
    "dispatch_s": 0.5,
    "microbatch_s": 0.3,
    "grad_overlap": 0.3,
    "gather_overlap": 0.3,
}
"""Those of a framework: its host program, and the traffic that it hides. Latencies of
links are left out: fitted to tiny models on one node they stand for the host, and make
tensor parallelism across nodes too slow."""

ONE_CLUSTER: Spreads = {**FRAMEWORK, "latency": 0.5}
"""Those of a fit to the runs of one user, whose links and host are always the same."""

SOURCE_SPREAD = 0.1
"""Standard deviation of the log factor on all times of a source."""

USERS = (0.12, 0.08)
"""Prior of the log time of users' runs over that of vendors', all else equal: mean and
standard deviation."""

SITE = (0.0, 0.12)
"""Prior of the log time of one site over that of users in the profile, likewise."""

USER, SOURCE = "user", "source"

Key = tuple[str, str, str]
"""Kind and name of the thing that has a factor, and the parameter that the factor is
on; an empty parameter stands for the whole step."""


@dataclass(frozen=True)
class Unknowns:
    """Unknown log factors with their priors."""

    keys: tuple[Key, ...]
    means: Floats
    spreads: Floats

    def place(self, run_class: RunClass, values: Floats) -> Floats:
        """Return the log factors of a class on the efficiencies, in order of NAMES."""
        columns, result = self.columns(run_class), np.zeros(len(NAMES))
        np.add.at(result, self._parameters(columns), values[columns])
        return result

    def slopes(self, run_class: RunClass, slopes: Floats) -> Floats:
        """Return derivatives by the unknowns, given those by the efficiencies.

        Both are (runs, ...).
        """
        result = np.zeros((len(slopes), len(self.keys)))
        columns = self.columns(run_class)
        result[:, columns] = slopes[:, self._parameters(columns)]
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

    def _parameters(self, columns: list[int]) -> list[int]:
        """Return the place in NAMES of the parameter that each unknown is on."""
        return [NAMES.index(self.keys[column][2]) for column in columns]


PARTS = ("gpus", "kernels", "frameworks")
"""The parts of a profile, in the order of `RunClass`."""


def unknowns(
    classes: Iterable[RunClass],
    sources: Collection[str],
    users: tuple[float, float] | None,
) -> Unknowns:
    """Return the unknowns of a fit to runs of some classes.

    `sources` are those that have a factor on their times, none if all runs are of one
    user; `users` is the prior of the factor of all users' runs, None without one.
    """
    found: dict[Key, tuple[float, float]] = {}
    spreads = (HARDWARE, KERNELS, FRAMEWORK if sources else ONE_CLUSTER)
    for run_class in classes:
        for part, name, of_part in zip(PARTS, run_class, spreads, strict=True):
            found |= {(part, name, p): (0.0, spread) for p, spread in of_part.items()}
    found |= {(SOURCE, source, ""): (0.0, SOURCE_SPREAD) for source in sources}
    if users is not None:
        found[USER, USER, ""] = users
    means, spreads_ = np.array(list(found.values())).T
    return Unknowns(tuple(found), means, spreads_)
