"""How long a solve takes: `python -m benchmarks.solve`.

Each spec is solved in this process on one worker with the bundled profile, to the
proven optimum and the recommended plan, after one run that is not counted; imports are
timed apart, whole commands in processes of their own. Targets are for two ordinary
cores.
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import without_options
from benchmarks.timing import children_cpu_s, peak_mib, timed

RUNS = 5

CORNERS = Path(__file__).parent / "corners"

TARGET_S = {
    "llama3-8b-2xh100-nvlink": 0.15,
    "llama3-70b-128xa100": 0.3,
    "gpt3-175b-1024xa100": 0.5,
    "llama3-405b-16384xh100": 1.5,
    str(CORNERS / "deepseek-v3-16384xh100.yaml"): 1.5,
    str(CORNERS / "llama2-13b-16xa100-idle.yaml"): 1.0,
}
"""CPU seconds for 2, 128, 1,024 and 16,384 GPUs, with experts, with a link limit."""

COMMANDS = {
    "meshwright solve llama3-8b-2xh100-nvlink": 2.0,
    "meshwright --help": 0.4,
}
MOST_MIB = 1024


def main() -> None:
    """Measure and print."""
    start = time.process_time()
    from meshwright import DEFAULT_PROFILE
    from meshwright.cost.job import Job, make_job
    from meshwright.cost.profile import load_profile
    from meshwright.loading.load import load_spec
    from meshwright.planner.options import Options, tolerance_of
    from meshwright.planner.rows import build_lattice
    from meshwright.planner.solve import solve

    def count_rows(job: Job) -> int:
        # A user never holds two lattices: that of a run ends with it.
        return len(build_lattice(job))

    import_s, profile = time.process_time() - start, load_profile(DEFAULT_PROFILE)
    table = Table(title=f"Seconds to a proven optimum, median of {RUNS}")
    for heading in ("spec", "GPUs", "skeletons", "wall s", "CPU s", "target", "ratio"):
        table.add_column(heading, justify="left" if heading == "spec" else "right")
    for heading in ("lattice rows/s", "peak MiB"):
        table.add_column(heading, justify="right")
    for name, target_s in TARGET_S.items():
        spec = load_spec(name)
        tolerance = tolerance_of(spec, profile).share
        options = Options(tolerance=tolerance, profile=profile)
        outcome = solve(spec, options)
        if outcome.status != "optimal" or outcome.certificate is None:
            raise SystemExit(f"{name}: {outcome.status}, not optimal")
        _, solving = timed(partial(solve, spec, options), RUNS)
        _, building = timed(partial(count_rows, make_job(spec)), RUNS)
        skeletons = outcome.certificate.counts.skeletons
        table.add_row(
            Path(name).stem,
            f"{outcome.gpus:,}",
            f"{skeletons:,}",
            f"{solving.wall_s:.3f}",
            f"{solving.cpu_s:.3f}",
            f"{target_s:.2f}",
            f"{solving.cpu_s / target_s:.2f}",
            f"{skeletons / building.cpu_s:,.0f}",
            f"{peak_mib():,.0f}",
        )
    console = Console(width=120)
    console.print(table)
    peak = f"peak {peak_mib():,.0f} of {MOST_MIB:,} MiB"
    console.print(f"imports {import_s:.2f} CPU s; {peak}")
    for command, target_s in COMMANDS.items():
        words = [sys.executable, "-m", *command.split()]
        run = partial(subprocess.run, words, capture_output=True, check=True)
        before_s = children_cpu_s()
        _, times = timed(run, RUNS)
        cpu_s = (children_cpu_s() - before_s) / (RUNS + 1)
        console.print(
            f"{command}: {times.wall_s:.2f} s, {cpu_s:.2f} CPU s, target "
            f"{target_s:.1f}, ratio {cpu_s / target_s:.2f}"
        )


if __name__ == "__main__":
    without_options(__doc__)
    main()
