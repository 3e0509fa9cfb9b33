"""Meshwright and its peers on the same problems: `python -m benchmarks.peers`.

Nothing of a peer is vendored. `--python` names an interpreter with the wheels: those of
llm-analysis, aiconfigurator, and accelerate with transformers and torch; and psutil,
numpy, pandas, sympy, tabulate and matplotlib for the others.
`--clones` is a folder with clones of calculon-ai/calculon, MooreThreads/SimuMax,
NVIDIA/Megatron-LM and PKU-DAIR/Hetu-Galvatron, whose core is built in place (`python
setup.py build_ext --inplace`, with pybind11, hydra-core and scipy). A peer that cannot
run is said so, with the reason.

Prices are of the runs of Korthikanti et al. 2022, table 5, which all fit in 80 GB; the
GPUs, model and batch of the first are a problem for searches, too. aiconfigurator plans
serving alone, and is asked about the published throughputs of `benchmarks.serving`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.searches import searches
from benchmarks.peers.serving import served
from benchmarks.runs_of import STRONG
from meshwright.cost.profile import load_profile
from meshwright.evidence.price import price_runs
from meshwright.evidence.runs import read_runs
from meshwright.reading.yaml_and_csv import read_yaml

RUNS = STRONG / "korthikanti22.yaml"
CARD_GIB = 80e9 / 2**30
PRICING = ("calculon", "llm_analysis", "simumax", "megatron", "accelerate")
Row = dict[str, Any]


def main() -> None:
    """Ask all peers and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clones", type=Path, default=Path("clones"))
    options.add_argument("--python", default=sys.executable)
    given = options.parse_args()
    console = Console(width=120)
    jobs: list[Row] = read_yaml(RUNS).data
    told: dict[str, list[Row] | str] = {
        f"meshwright, {name}": ours(name) for name in ("unfitted", "measured")
    }
    told |= {name: asked(name, jobs, given) for name in PRICING}
    console.print(prices(jobs, told))
    console.print(served(lambda some: asked("aiconfigurator", some, given)))
    console.print(searches(jobs, lambda name, some: asked(name, some, given)))


def ours(profile: str) -> list[Row]:
    """Return what Meshwright says of the runs at a profile."""
    found, _ = price_runs(read_runs(RUNS), load_profile(profile))
    return [{"step_s": one.step_s, "gib": one.peak_gib} for one in found]


def asked(name: str, jobs: list[Row], given: argparse.Namespace) -> list[Row] | str:
    """Return what a peer says of jobs, or why it does not run."""
    script = Path(__file__).with_name("adapters.py")
    words = [given.python, "-P", str(script), name, str(given.clones.resolve())]
    text = json.dumps(jobs, default=str)
    done = subprocess.run(
        words, input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"not run: {(done.stderr.splitlines() or ['no reason'])[-1]}"
    found: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return found


def prices(jobs: list[Row], told: dict[str, list[Row] | str]) -> Table:
    """Return the table of errors of step time, and of who says that runs do not fit."""
    steps = [job["measured"]["step_time_s"] for job in jobs]
    table = Table(
        title=f"{len(jobs)} runs of Korthikanti et al. 2022, all of which fit"
    )
    for heading in ("model", "step: mean error", "largest", "GiB", "said not to fit"):
        is_text = heading == "model"
        table.add_column(heading, justify="left" if is_text else "right")
    for name, rows in told.items():
        if isinstance(rows, str):
            table.add_row(name, rows, "", "", "")
            continue
        pairs = zip(rows, steps, strict=True)
        errors = [
            abs(row["step_s"] / step - 1) for row, step in pairs if "step_s" in row
        ]
        gib = [row["gib"] for row in rows]
        table.add_row(
            name,
            f"{statistics.mean(errors):.1%}" if errors else "no time",
            f"{max(errors):.1%}" if errors else "-",
            f"{min(gib):.0f} to {max(gib):.0f}",
            f"{sum(one > CARD_GIB for one in gib)} of {len(gib)}",
        )
    return table


if __name__ == "__main__":
    main()
