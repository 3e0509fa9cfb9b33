"""How long a solve takes: `python -m benchmarks.solve`.

Each spec is solved to a proven optimum in this process on one worker, after one run
that is not counted; imports are timed apart, whole commands in processes of their own.
Targets are for two ordinary cores.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks.timing import timed

RUNS = 5

TARGET_S = {
    "llama3-8b-2xh100-nvlink": 0.15,
    "llama3-70b-128xa100": 0.3,
    "gpt3-175b-1024xa100": 0.5,
    "llama3-405b-16384xh100": 1.5,
}
"""Seconds for 2, 128, 1,024 and 16,384 GPUs."""

COMMANDS = {
    "meshwright solve llama3-8b-2xh100-nvlink": 2.0,
    "meshwright --help": 0.4,
}
MOST_MIB = 1024


def main() -> None:
    """Measure and print."""
    start = time.perf_counter()
    from meshwright.job import make_job
    from meshwright.lattice import build_lattice
    from meshwright.solve import solve
    from meshwright.spec.load import load_spec

    import_s = time.perf_counter() - start
    table = Table(title=f"Seconds to a proven optimum, median of {RUNS}")
    for heading in ("spec", "GPUs", "skeletons", "solve", "target", "ratio"):
        table.add_column(heading, justify="left" if heading == "spec" else "right")
    table.add_column("lattice rows/s", justify="right")
    for name, target_s in TARGET_S.items():
        spec = load_spec(name)
        outcome = solve(spec)
        if outcome.status != "optimal" or outcome.certificate is None:
            raise SystemExit(f"{name}: {outcome.status}, not optimal")
        _, solve_s = timed(partial(solve, spec), RUNS)
        _, lattice_s = timed(partial(build_lattice, make_job(spec)), RUNS)
        skeletons = outcome.certificate.counts.skeletons
        table.add_row(
            name,
            f"{outcome.gpus:,}",
            f"{skeletons:,}",
            f"{solve_s:.3f}",
            f"{target_s:.2f}",
            f"{solve_s / target_s:.2f}",
            f"{skeletons / lattice_s:,.0f}",
        )
    console = Console(width=110)
    console.print(table)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(f"imports {import_s:.2f} s; peak {peak_mib:,.0f} of {MOST_MIB:,} MiB")
    for command, target_s in COMMANDS.items():
        words = [sys.executable, "-m", *command.split()]
        run = partial(subprocess.run, words, capture_output=True, check=True)
        _, run_s = timed(run, RUNS)
        console.print(
            f"{command}: {run_s:.2f} s, target {target_s:.1f}, "
            f"ratio {run_s / target_s:.2f}"
        )


if __name__ == "__main__":
    main()
