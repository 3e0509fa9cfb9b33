"""How accurate predictions are on runs that no fit has seen.

`python -m benchmarks.accuracy` prices the runs in benchmarks/runs at the efficiencies
of `--profile unfitted`, and at those that are fitted to all other sources (leave one
source out). vTrain's single-node runs are judged within themselves: fitted on one depth
of model, judged on the other. Takes some minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.runs_of import SINGLE_NODE, STRONG, priced_runs
from meshwright.cost.arrays import Floats, Ints
from meshwright.evidence.calibrate import left_out_errors
from meshwright.evidence.cases import Cases
from meshwright.evidence.fit import fit
from meshwright.evidence.price import Priced
from meshwright.evidence.score import score
from meshwright.profile import Profile

TEXTS = ("source", "fitted on")


def main() -> None:
    """Price, fit, price again and print."""
    priced = priced_runs(STRONG)
    console = Console(width=120)
    table = Table(title="Step time against runs that no fit has seen")
    headings = ("median", "p90", "bias", "tau", "regret")
    for heading in ("source", "rows", "unfitted", "fitted on", *headings):
        table.add_column(heading, justify="left" if heading in TEXTS else "right")
    single = [one for one in priced if one.run.source_id == SINGLE_NODE]
    others = [one for one in priced if one.run.source_id != SINGLE_NODE]
    for cells in (*_by_source(others), *_by_depth(single)):
        table.add_row(*cells)
    console.print(table)


def _by_source(runs: list[Priced]) -> Iterator[tuple[str, ...]]:
    cases = Cases(runs)
    errors, _ = left_out_errors(cases, Profile(), workers=-1)
    names = np.array([one.run.source_id for one in runs])
    for name in np.unique(names).tolist():
        yield _cells(cases, errors, np.flatnonzero(names == name), name, "the others")
    yield _cells(cases, errors, np.arange(len(runs)), "all", "")


def _by_depth(runs: list[Priced]) -> Iterator[tuple[str, ...]]:
    cases = Cases(runs)
    depths = np.array([one.spec.model.n_layers for one in runs])
    for depth in np.unique(depths).tolist():
        factors = fit(cases.take(np.flatnonzero(depths != depth)), Profile())
        errors = cases.errors({c: factors.efficiency(c) for c in cases.classes})
        own = np.flatnonzero(depths == depth)
        name = f"{SINGLE_NODE}, {depth} layers"
        yield _cells(cases, errors, own, name, "the other depth")


def _cells(
    cases: Cases, errors: Floats, own: Ints, name: str, fitted_on: str
) -> tuple[str, ...]:
    before = score([cases.runs[i] for i in own]).time
    after = score([_again(cases.runs[i], errors[i]) for i in own])
    time, ranking = after.time, after.ranking
    if before is None or time is None:
        raise ValueError(f"{name}: no run has a time")
    tau = f"{ranking.kendall_tau_mean:.2f}" if ranking else "-"
    regret = f"{ranking.regret_mean:.3f}" if ranking else "-"
    shares = (f"{time.median:.1%}", f"{time.p90:.1%}", f"{time.bias:+.1%}")
    return (
        name,
        str(time.rows),
        f"{before.median:.1%}",
        fitted_on,
        *shares,
        tau,
        regret,
    )


def _again(one: Priced, error: float) -> Priced:
    """Return a run with the prediction that has an error."""
    return replace(one, step_s=(one.run.step_s or 0.0) * float(np.exp(error)))


if __name__ == "__main__":
    main()
