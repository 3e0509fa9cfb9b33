"""Runs with measured times as columns, for pricing at many efficiencies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.hardware_efficiency import Efficiency
from meshwright.cost.job import Job, make_job
from meshwright.cost.layer_kinds import mean_time_costs
from meshwright.cost.price import step_seconds
from meshwright.cost.profile import Profile, RunClass
from meshwright.evidence.price import Priced
from meshwright.evidence.published_terms import class_on_gpu
from meshwright.plans.columns import Floats, Ints, joined
from meshwright.plans.encoding import to_row, to_split
from meshwright.plans.skeletons import Skeletons
from meshwright.plans.split import Split


@dataclass(frozen=True)
class _Alike:
    """Runs of one model, GPU and framework that have as many stages."""

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
        own = np.flatnonzero(kept[np.minimum(place, len(kept) - 1)] == self.index)
        if len(own):
            split = Split(self.split.layers[own], self.split.recomputed[own])
            rows = self.rows.take(own)
            yield replace(self, rows=rows, split=split, index=place[own])


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
    """Return the key of the group of a run: all that costs depend on beside its row."""
    spec = priced.spec
    ignored = {"global_batch": 0, "tuned": "vendor"}
    training = spec.training.model_copy(update=ignored)
    # How often each kind of layer stands in a pattern depends on the layers.
    layers = spec.model.n_layers if spec.model.kinds else 0
    model = spec.model.model_copy(update={"n_layers": layers, "name": ""})
    return model.model_dump_json(), training, class_of(priced)
