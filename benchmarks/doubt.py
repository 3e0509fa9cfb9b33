"""What was run, and how much to doubt plans beyond it: `python -m benchmarks.doubt`.

Combinations of decisions are counted over the runs of benchmarks/runs, those that no
fit has seen among them, and the configurations of benchmarks/experts. Those with two
runs, or that a team published, go into profiles/measured.yaml with the share of a step
that is doubted for each decision beyond them, and for degrees or a ZeRO stage other
than those that a maker publishes for the very job: pairs that differ in these alone are
printed beside the others. The share is the 80th percentile of over-optimism in pairs of
runs of one job that differ in one decision: by how much more the run that is predicted
to be the faster one of a pair takes, over its prediction, than the other one. Each
source counts equally for each decision. Predictions are by fits that have not seen the
source. With several shares the order of runs within groups is printed, every source
left out of what was run, too. Takes two minutes of one core.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import meshwright as mw
from benchmarks import without_options
from benchmarks.bands import quantile
from benchmarks.experts.read import Configuration, configurations
from benchmarks.fit_memory import rewrite
from benchmarks.published import publication
from benchmarks.runs_of import STRONG, UNFITTED, all_runs, launched_by, priced_runs
from benchmarks.truth import unseen_errors
from meshwright import DEFAULT_PROFILE
from meshwright.cost.profile import Profile, nearest_published
from meshwright.evidence.fit import Fit
from meshwright.evidence.price import Priced
from meshwright.evidence.score import groups_of, score
from meshwright.evidence.timed_runs import TimedRuns
from meshwright.plans.columns import Floats
from meshwright.plans.simplicity import (
    DEGREES_AND_ZERO,
    combination,
    familiarity,
    levels,
)
from meshwright.plans.skeletons import Skeletons, plain_columns
from meshwright.spec.plan_fields import OFFLOADS, SCHEDULES
from meshwright.spec.run_before import DECISIONS, codes_of, text_of
from meshwright.topology.fabric import free_paths

FEWEST = 2
"""Runs that show a combination; of one run alone the source may be mistaken."""

QUANTILE = 0.8

SHARES = (0.0, 0.05, 0.10, 0.15, 0.20, 0.30)

ALONE = "degrees alone"
"""In what runs differ that have other degrees or ZeRO stages, and the same decisions.
"""

Shown = dict[str, dict[str, int]]
"""By framework, the number of runs of every combination."""


def main() -> None:
    """Count, estimate, judge, write and print."""
    cases = TimedRuns(priced_runs(STRONG))
    errors = unseen_errors(Fit(cases, Profile()))
    gaps = optimism(cases.runs, errors)
    share = round(quantile(of_decisions(gaps), QUANTILE), 2)
    ran = everything_run()
    shown = what_was_run(ran)
    console = Console(width=100)
    console.print(table_of_gaps(gaps))
    console.print(table_of_orders(cases.runs, errors, ran))
    path = rewrite(DEFAULT_PROFILE, run_before=shown, doubt=share)
    count = sum(map(len, shown.values()))
    print(f"wrote {count} combinations and a doubt of {share:.0%} to {path}")


class Ran(NamedTuple):
    """One run, or one configuration that a team published."""

    framework: str
    combination: str
    source: str
    """Words that name its publication."""
    is_published: bool = False


def everything_run() -> list[Ran]:
    """Return all runs and published configurations that can be read."""
    runs = (one for folder in (STRONG, UNFITTED) for one in all_runs(folder).priced)
    published = (one for one in configurations() if not one.lacks and one.framework)
    return [
        *(
            Ran(
                launched_by(one),
                combination(one.spec, one.plan),
                f"{one.run.source_id} {one.run.source}",
            )
            for one in runs
            if one.run.measured.fits is not False
        ),
        *(
            Ran(
                one.framework,
                combination_of(one),
                one.source.get("repo") or one.from_,
                is_published=True,
            )
            for one in published
        ),
    ]


def what_was_run(ran: Iterable[Ran], without: str = "") -> Shown:
    """Return the combinations that were run, without those of a publication."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    published = set[tuple[str, str]]()
    for one in ran:
        if without and without.lower() in one.source.lower():
            continue
        counts[one.framework][one.combination] += 1
        if one.is_published:
            published.add((one.framework, one.combination))
    shown = {
        name: {
            text: count
            for text, count in found.most_common()
            if count >= FEWEST or (name, text) in published
        }
        for name, found in sorted(counts.items())
    }
    return {name: found for name, found in shown.items() if found}


def combination_of(one: Configuration) -> str:
    """Return the combination of a published configuration.

    Fields that it does not say have their plain value.
    """
    numbers = ("tp", "pp", "vpp", "cp", "ep", "zero")
    fields = {name: _number(one.plan, name) for name in numbers}
    fields["offload"] = OFFLOADS.index(one.plan.get("offload", OFFLOADS[0]))
    fields["schedule"] = SCHEDULES.index(one.plan.get("schedule", SCHEDULES[0]))
    columns = {name: np.array([value]) for name, value in fields.items()}
    row = Skeletons(
        **(plain_columns(1) | columns), paths=free_paths(1, 0), mesh=np.array([-1])
    )
    return text_of(tuple(levels(mw.load(one.spec, mw.Spec), row)[0].tolist()))


def _number(plan: Mapping[str, Any], name: str) -> int:
    """Return the number that a plan has, or the least that it may have."""
    value = plan.get(name, 0 if name == "zero" else 1)
    if isinstance(value, dict):
        return int(value["min"])
    return int(value[0] if isinstance(value, list) else value)


def optimism(runs: list[Priced], errors: Floats) -> dict[tuple[str, str], list[float]]:
    """Return the over-optimism of pairs of runs, by source and by what they differ in.

    `errors` are ln(predicted / measured) of the runs.
    """
    codes = [codes_of(combination(one.spec, one.plan)) for one in runs]
    gaps: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for group in groups_of(runs):
        for pair in combinations(group.tolist(), 2):
            here, there = (codes[place] for place in pair)
            differ = [
                decision.name
                for decision, a, b in zip(DECISIONS, here, there, strict=True)
                if a != b
            ]
            if not differ and _degrees(runs[pair[0]]) != _degrees(runs[pair[1]]):
                differ = [ALONE]
            if len(differ) == 1:
                first, last = _in_predicted_order(runs, errors, *pair)
                key = differ[0], runs[first].run.source_id
                gaps[key].append(float(errors[last] - errors[first]))
    return gaps


def _degrees(one: Priced) -> list[int]:
    return [getattr(one.plan, name) for name in DEGREES_AND_ZERO]


def _in_predicted_order(
    runs: list[Priced], errors: Floats, one: int, other: int
) -> tuple[int, int]:
    pair = (one, other)
    steps = [runs[place].off_by(float(errors[place])).step_s for place in pair]
    return pair if steps[0] <= steps[1] else (other, one)


def table_of_gaps(gaps: Mapping[tuple[str, str], list[float]]) -> Table:
    """Return the over-optimism of pairs by decision and source."""
    table = Table(title="Over-optimism of pairs of runs that differ in one decision")
    for name in ("decision", "source"):
        table.add_column(name)
    for name in ("pairs", "median", f"p{QUANTILE * 100:.0f}"):
        table.add_column(name, justify="right")
    for (name, source), found in sorted(gaps.items()):
        cells = (f"{quantile([found], share):+.1%}" for share in (0.5, QUANTILE))
        table.add_row(name, source, str(len(found)), *cells)
    alone = [found for (name, _), found in gaps.items() if name == ALONE]
    for name, every in ("decisions", of_decisions(gaps)), (ALONE, alone):
        cells = (f"{quantile(every, share):+.1%}" for share in (0.5, QUANTILE))
        table.add_row(f"all {name}", "", str(sum(map(len, every))), *cells)
    return table


def of_decisions(gaps: Mapping[tuple[str, str], list[float]]) -> list[list[float]]:
    """Return the over-optimism of pairs that differ in a decision."""
    return [found for (name, _), found in gaps.items() if name != ALONE]


def table_of_orders(runs: list[Priced], errors: Floats, ran: list[Ran]) -> Table:
    """Return how well groups of runs are ordered with several shares of doubt."""
    title = "Order of runs of one job, sources left out; right: of mixed distances"
    table = Table(title=title)
    for name in ("doubt", *2 * ("groups", "tau", "regret")):
        table.add_column(name, justify="right")
    far = list(distances(runs, ran))
    mixed = [
        place
        for group in groups_of(runs)
        if len({far[place] for place in group}) > 1
        for place in group
    ]
    for share in SHARES:
        doubted = [
            one.off_by(error + float(np.log1p(share * d)))
            for one, error, d in zip(runs, errors.tolist(), far, strict=True)
        ]
        among_mixed = [doubted[place] for place in mixed]
        table.add_row(f"{share:.0%}", *_order(doubted), *_order(among_mixed))
    return table


def _order(runs: list[Priced]) -> tuple[str, ...]:
    found = score(runs).ranking
    if found is None:
        return "-", "-", "-"
    tau, regret = found.kendall_tau_mean, found.regret_mean
    return str(found.groups), f"{tau:.3f}", f"{regret:.4f}"


def distances(runs: list[Priced], ran: list[Ran]) -> Iterator[int]:
    """Yield the distance of each run from what other sources and teams ran."""
    known: dict[tuple[str, str], Any] = {}
    for one in runs:
        key = one.run.source_id, one.spec.framework
        if key not in known:
            shown = what_was_run(ran, one.run.source_id)
            profile = Profile(run_before=shown, doubt=1.0)
            known[key] = profile.runs_like(one.spec.framework)
        published = nearest_published(one.spec, publication(one).partition(",")[0])
        changed = known[key].model_copy(update={"published": published})
        found = familiarity(one.spec.with_run_before(changed), one.plan)
        yield len(found.beyond) if found else 0


if __name__ == "__main__":
    without_options(__doc__)
    main()
