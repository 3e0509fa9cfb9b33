"""How well predictions rank runs: groups of runs that are alike, and the regret."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from meshwright.cost.profile import Ranking
from meshwright.evidence.price import Priced
from meshwright.plans.columns import Floats, Ints

LEAST_GROUP = 3
"""Least number of runs of a group that is ranked."""


def groups_of(priced: Sequence[Priced]) -> list[Ints]:
    """Return the runs of one source on the same model, GPUs and batch, by index.

    Groups that are too small to be ranked are left out.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(priced):
        run = one.run
        key = (run.source_id, run.model, run.hardware, run.config.global_batch)
        groups[str(key)].append(index)
    return [np.array(own) for own in groups.values() if len(own) >= LEAST_GROUP]


def regret(measured: Floats, predicted: Floats) -> float:
    """Return the measured time of the run predicted fastest, over the fastest."""
    return float(measured[predicted.argmin()] / measured.min())


def rankings(priced: Sequence[Priced], errors: Floats) -> Iterator[Ranking]:
    """Yield the regret by framework and kind of model, where runs are predicted anew.

    `errors` are ln(predicted / measured) of runs that no fit had seen.
    """
    measured = np.array([one.run.step_s for one in priced], dtype=float)
    found: dict[tuple[str, bool], list[Ints]] = defaultdict(list)
    for group in groups_of(priced):
        spec = priced[group[0]].spec
        found[spec.framework, spec.model.moe is not None].append(group)
    for (framework, has_experts), groups in sorted(found.items()):
        lost = [
            regret(measured[own], measured[own] * np.exp(errors[own])) - 1
            for own in groups
        ]
        sources = {priced[own[0]].run.source_id for own in groups}
        yield Ranking(
            framework=framework,
            has_experts=has_experts,
            groups=len(groups),
            sources=len(sources),
            regret=float(np.median(lost)),
            mean_regret=float(np.mean(lost)),
        )
