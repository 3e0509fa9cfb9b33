"""How far off a step time may be on a source that no fit has seen.

Every source counts alike, however many runs it has: who asks is a new source. A band
is judged by runs of a source within the band of all others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from benchmarks.runs_of import TAKEN_FROM
from meshwright.cost.profile import LeftOutOfKind
from meshwright.evidence.fit import rounded
from meshwright.evidence.price import Priced

NINE_IN_TEN = 0.9

BySource = dict[str, list[float]]
"""|ln(predicted / measured)| of the runs of each source."""


def by_kind(runs: Iterable[tuple[Priced, float]]) -> dict[bool, BySource]:
    """Return errors of runs by whether their models have experts, and by source.

    Given are ln(predicted / measured) by what has not seen the run. Sources that gave
    the model a rate have been seen.
    """
    found: dict[bool, BySource] = {False: defaultdict(list), True: defaultdict(list)}
    for one, error in runs:
        if one.run.source_id not in TAKEN_FROM["rate"]:
            has_experts = one.spec.model.moe is not None
            found[has_experts][one.run.source_id].append(abs(error))
    return found


def gpus_of(runs: Iterable[Priced]) -> dict[bool, tuple[str, ...]]:
    """Return the GPUs of runs by whether their models have experts."""
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for one in runs:
        found[one.spec.model.moe is not None] |= {*one.spec.cluster.gpu_names}
    return {has_experts: (*sorted(names),) for has_experts, names in found.items()}


def errors_of(
    kinds: Mapping[bool, BySource],
    gpus: Mapping[bool, tuple[str, ...]] = MappingProxyType({}),
) -> Iterator[LeftOutOfKind]:
    """Yield the errors of each kind of model, as a profile has them."""
    for has_experts, sources in kinds.items():
        lists = list(sources.values())
        yield LeftOutOfKind(
            rows=sum(map(len, lists)),
            mape=rounded(float(np.mean([np.expm1(one).mean() for one in lists]))),
            median=rounded(quantile(lists, 0.5)),
            p90=rounded(quantile(lists, NINE_IN_TEN)),
            parts="a source",
            has_experts=has_experts,
            sources=len(lists),
            gpus=gpus.get(has_experts, ()),
        )


def held(sources: BySource) -> tuple[float, float]:
    """Return which shares of runs lie within the band of all other sources.

    The first is of all runs, the second the mean of the sources' shares.
    """
    within = []
    for name, errors in sources.items():
        others = [found for source, found in sources.items() if source != name]
        within.append(np.array(errors) <= quantile(others, NINE_IN_TEN))
    by_source = [float(one.mean()) for one in within]
    return float(np.concatenate(within).mean()), float(np.mean(by_source))


def quantile(found: list[list[float]], share: float) -> float:
    """Return a quantile over lists that count equally, however long they are."""
    values = np.concatenate(found)
    weights = np.concatenate([np.full(len(one), 1 / len(one)) for one in found])
    order = np.argsort(values)
    place = np.searchsorted(np.cumsum(weights[order]) / len(found), share)
    return float(values[order][place])
