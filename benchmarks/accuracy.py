"""How accurate predictions are on runs that no fit has seen.

`python -m benchmarks.accuracy` prices the runs in benchmarks/runs twice: at default
efficiencies, and at efficiencies fitted to the other sources of the same GPU and
framework (leave one source out). vTrain's single-node runs are judged within
themselves: fitted on one depth of model, judged on the other. Takes some minutes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from meshwright.check import check
from meshwright.cost.efficiency import Efficiency
from meshwright.evidence.calibrate import calibrate
from meshwright.evidence.price import Priced, price_runs
from meshwright.evidence.read import read_runs
from meshwright.evidence.score import score
from meshwright.job import make_job

RUNS = Path(__file__).parent / "runs"
SINGLE_NODE = "vtrain_single"
LEAST_ROWS = 3


def main() -> None:
    """Price, fit, price again and print."""
    priced, _ = price_runs(read_runs(RUNS))
    sound = [p for p in priced if p.run.step_s and not p.run.is_contradictory]
    groups: dict[tuple[str, str], list[Priced]] = defaultdict(list)
    for one in sound:
        is_single = one.run.source_id == SINGLE_NODE
        name = one.spec.cluster.topology.gpu.name
        groups[name, SINGLE_NODE if is_single else one.spec.framework].append(one)
    table = Table(title="Step time against runs that no fit has seen")
    headings = ("source", "GPU", "rows", "default MAPE", "median")
    for heading in (*headings, "fitted on", "MAPE", "median", "tau", "regret"):
        is_text = heading in ("source", "GPU", "fitted on")
        table.add_column(heading, justify="left" if is_text else "right")
    for (gpu, _), members in sorted(groups.items()):
        for name, own, others in _splits(members):
            table.add_row(*_cells(name, gpu, own, others))
    Console(width=130).print(table)


def _splits(members: list[Priced]) -> list[tuple[str, list[Priced], list[Priced]]]:
    """Return, for each part of a group, its runs and the runs to fit on."""

    def part(one: Priced) -> str:
        if one.run.source_id == SINGLE_NODE:
            return f"{SINGLE_NODE}, {one.spec.model.n_layers} layers"
        return one.run.source_id

    names = sorted({part(one) for one in members})
    return [
        (
            name,
            [one for one in members if part(one) == name],
            [one for one in members if part(one) != name],
        )
        for name in names
    ]


def _cells(
    name: str, gpu: str, own: list[Priced], others: list[Priced]
) -> tuple[str, ...]:
    default = score(own).time
    mape = f"{default.mape:.1%}" if default else "-"
    median = f"{default.median:.1%}" if default else "-"
    start = (name, gpu, str(len(own)), mape, median)
    if len(others) < LEAST_ROWS:
        return (*start, "no other source", "-", "-", "-", "-")
    (fitted,) = calibrate(others, is_validating=False).profiles
    after = score([_again(one, fitted.efficiency) for one in own])
    sources = f"{fitted.rows} rows of {len(fitted.sources)}"
    time, ranking = after.time, after.ranking
    tau = f"{ranking.kendall_tau_mean:.2f}" if ranking else "-"
    regret = f"{ranking.regret_mean:.3f}" if ranking else "-"
    errors = (f"{time.mape:.1%}", f"{time.median:.1%}") if time else ("-", "-")
    return (*start, sources, *errors, tau, regret)


def _again(one: Priced, efficiency: Efficiency) -> Priced:
    return replace(one, step_s=check(make_job(one.spec, efficiency), one.plan).step_s)


if __name__ == "__main__":
    main()
