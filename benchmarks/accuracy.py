"""How accurate predictions are on runs that no fit has seen.

`python -m benchmarks.accuracy` prices the runs in benchmarks/runs at the efficiencies
of `--profile unfitted`, and at those that are fitted to all other sources (leave one
source out). vTrain's single-node runs are judged within themselves: fitted on one depth
of model, judged on the other. Takes two minutes of one core.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Table

from benchmarks.runs_of import SINGLE_NODE, STRONG, priced_runs
from meshwright.cost.profile import Profile
from meshwright.evidence.fit import Fit, errors_without
from meshwright.evidence.price import Priced
from meshwright.evidence.score import score
from meshwright.evidence.timed_runs import TimedRuns
from meshwright.plans.columns import Bools, Floats, Ints


def main() -> None:
    """Price, fit, price again and print."""
    cases = TimedRuns(priced_runs(STRONG))
    print_errors(cases, unseen_errors(Fit(cases, Profile())))


def unseen_errors(fit: Fit) -> Floats:
    """Return the error of every run under a fit that has not seen it."""
    single, errors = _is_single(fit.cases), np.empty(len(fit.cases))
    folds = [publication(fit, s) for s in np.unique(fit.sources[~single])]
    each = (delayed(errors_without)(fit, out) for out in folds)
    for out, found in zip(folds, Parallel(n_jobs=-1)(each), strict=True):
        errors[out] = found
    alone = np.flatnonzero(single)
    within = Fit(fit.cases.take(alone), Profile())
    for own, _ in _depths(fit.cases):
        errors[own] = errors_without(within, np.isin(alone, own))
    return errors


def publication(fit: Fit, source: str) -> Bools:
    """Return the runs of the publication of a source; that of vTrain has two."""
    sources = [SINGLE_NODE, "vtrain"] if source in (SINGLE_NODE, "vtrain") else [source]
    return np.isin(fit.sources, sources)


def print_errors(cases: TimedRuns, errors: Floats) -> None:
    """Print the errors by source."""
    table = Table(title="Step time against runs that no fit has seen")
    for heading in ("source", "fitted on"):
        table.add_column(heading)
    for heading in ("rows", "unfitted", "median", "p90", "bias", "tau", "regret"):
        table.add_column(heading, justify="right")
    others = np.flatnonzero(~_is_single(cases))
    names = np.array([one.run.source_id for one in cases.runs])
    for name in np.unique(names[others]).tolist():
        own = np.flatnonzero(names == name)
        table.add_row(name, "all other sources", *_cells(cases, errors, own))
    table.add_row("all of these", "", *_cells(cases, errors, others), end_section=True)
    for own, _ in _depths(cases):
        depth = cases.runs[own[0]].spec.model.n_layers
        title = f"{SINGLE_NODE}, {depth} layers"
        table.add_row(title, "the other depth", *_cells(cases, errors, own))
    Console(width=120).print(table)


def _is_single(cases: TimedRuns) -> Bools:
    return np.array([one.run.source_id == SINGLE_NODE for one in cases.runs])


def _depths(cases: TimedRuns) -> list[tuple[Ints, Ints]]:
    """Return the single-node runs of each depth, and those of the others."""
    depths = np.array([one.spec.model.n_layers for one in cases.runs])
    single = _is_single(cases)
    return [
        (np.flatnonzero(single & (depths == d)), np.flatnonzero(single & (depths != d)))
        for d in np.unique(depths[single])
    ]


def _cells(cases: TimedRuns, errors: Floats, own: Ints) -> tuple[str, ...]:
    before = score([cases.runs[i] for i in own]).time
    after = score([_again(cases.runs[i], errors[i]) for i in own])
    time, ranking = after.time, after.ranking
    if before is None or time is None:
        raise ValueError("no run has a time")
    tau = f"{ranking.kendall_tau_mean:.2f}" if ranking else "-"
    regret = f"{ranking.regret_mean:.3f}" if ranking else "-"
    shares = (f"{time.median:.1%}", f"{time.p90:.1%}", f"{time.bias:+.1%}")
    return (str(time.rows), f"{before.median:.1%}", *shares, tau, regret)


def _again(one: Priced, error: float) -> Priced:
    """Return a run with the prediction that has an error."""
    return replace(one, step_s=(one.run.step_s or 0.0) * float(np.exp(error)))


if __name__ == "__main__":
    main()
