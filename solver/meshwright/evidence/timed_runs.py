"""Runs with measured times as columns, for pricing at many efficiencies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.hardware_efficiency import Efficiency
from meshwright.cost.job import Job, make_job
from meshwright.cost.price import step_seconds
from meshwright.cost.timing import time_costs
from meshwright.evidence.price import Priced
from meshwright.evidence.published_terms import kernels_of
from meshwright.plans.columns import Floats, Ints, joined
from meshwright.plans.encoding import to_row, to_split
from meshwright.plans.skeletons import Skeletons
from meshwright.plans.split import Split

RunClass = tuple[str, str]
"""The name of a GPU and whose kernels it ran; efficiencies are fitted by class."""


@dataclass(frozen=True)
class _RunGroup:
    """Runs of one model, GPU and framework, which are priced together."""

    run_class: RunClass
    job: Job
    rows: Skeletons
    splits: dict[int, tuple[Ints, Split]]
    """By number of stages, the rows that have so many, and their splits."""
    index: list[int]

    def log_steps(self, efficiency: Efficiency) -> Floats:
        time = time_costs(replace(self.job, efficiency=efficiency), self.rows)
        steps = np.empty(len(self.rows))
        for rows, split in self.splits.values():
            steps[rows] = step_seconds(self.rows.take(rows), time.take(rows), split)
        return np.log(steps)


class TimedRuns:
    """Runs with a measured step time."""

    def __init__(self, priced: list[Priced]) -> None:
        """Group the runs that differ only in plan, batch and number of GPUs."""
        self.runs = priced
        self.classes = [class_of(one) for one in priced]
        self.log_measured = np.log([one.run.step_s or np.nan for one in priced])
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for index, one in enumerate(priced):
            groups[_group_key(one)].append(index)
        self._alike = [self._group(index) for index in groups.values()]

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.runs)

    def take(self, index: Ints) -> TimedRuns:
        """Return some of the runs."""
        return TimedRuns([self.runs[i] for i in index])

    def errors(self, efficiencies: Mapping[RunClass, Efficiency]) -> Floats:
        """Return ln(predicted / measured) of every run."""
        result = np.empty(len(self))
        for alike in self._alike:
            result[alike.index] = alike.log_steps(efficiencies[alike.run_class])
        return np.asarray(result - self.log_measured)

    def _group(self, index: list[int]) -> _RunGroup:
        members = [self.runs[i] for i in index]
        rows = [to_row(make_job(one.spec).fabric, one.plan)[0] for one in members]
        return _RunGroup(
            class_of(members[0]),
            make_job(members[0].spec),
            joined(rows),
            _splits_by_stages([to_split(one.plan) for one in members]),
            index,
        )


def _splits_by_stages(splits: list[Split]) -> dict[int, tuple[Ints, Split]]:
    counts = np.array([len(split.layers) for split in splits])
    result = {}
    for count in np.unique(counts).tolist():
        rows = np.flatnonzero(counts == count)
        layers = np.stack([splits[i].layers for i in rows])
        recomputed = np.stack([splits[i].recomputed for i in rows])
        result[count] = rows, Split(layers, recomputed)
    return result


def class_of(priced: Priced) -> RunClass:
    """Return the class of a run."""
    spec = priced.spec
    return spec.cluster.topology.gpu.name, kernels_of(priced.run, spec.framework)


def _group_key(priced: Priced) -> Hashable:
    """Return the key of the group of a run: all that costs depend on beside its row."""
    spec = priced.spec
    training = spec.training.model_copy(update={"global_batch": 0})
    model = spec.model.model_copy(update={"n_layers": 0, "name": ""})
    return model, training, class_of(priced)
