"""How fast a search is: `python -m benchmarks.search`; minutes.

The sweep in `search.yaml` is solved by the command, each time into a new store: on two
processes, then a part of it on one and on two. A few of its cases are solved in fresh
processes, one by one, as without a search. Where others use the cores too, seconds of
CPU per case say what two free ones would do.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks import without_options
from benchmarks.family import Used, used_by
from meshwright.sweeps.cases import Case
from meshwright.sweeps.sweep import read_search

SWEEP = Path(__file__).with_name("search.yaml")
PART = 300
"""Cases on one process and on two."""

FRESH = 12
"""Cases in fresh processes."""

TARGETS = {"cases/s": 15.0, "scaling": 1.7, "MiB": 1024.0}


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        whole_s, cases, used = swept(Path(folder), SWEEP.read_text(), 2)
        part = SWEEP.read_text().replace("cases: 1000", f"cases: {PART}")
        one_s, _, _ = swept(Path(folder), part, 1)
        two_s, _, _ = swept(Path(folder), part, 2)
        fresh_s = fresh(Path(folder), read_search(str(SWEEP)).cases)
    table = Table(title=f"{cases:,} cases on 2 processes")
    for heading in ("what", "measured", "target"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    per_s = cases / whole_s
    table.add_row("cases per second", f"{per_s:.1f}", f"{TARGETS['cases/s']:.0f}")
    table.add_row("seconds in all, with imports", f"{whole_s:.0f}", "")
    free_per_s = 2 * cases / used.cpu_s
    table.add_row("CPU seconds per case", f"{used.cpu_s / cases:.3f}", "")
    table.add_row("cases per second, were both cores free", f"{free_per_s:.1f}", "")
    most = f"{TARGETS['MiB']:,.0f}"
    table.add_row("largest process, MiB", f"{used.peak_mib:,.0f}", most)
    table.add_row(
        f"{PART} cases: 2 processes over 1",
        f"{one_s / two_s:.2f}",
        f"{TARGETS['scaling']:.1f}",
    )
    table.add_row("seconds of a case in a fresh process", f"{fresh_s:.2f}", "")
    table.add_row("times as fast as those", f"{fresh_s * per_s:.1f}", "")
    Console(width=80).print(table)


def swept(folder: Path, sweep: str, workers: int) -> tuple[float, int, Used]:
    """Return the seconds and the cases of a sweep, and what its processes used."""
    file, store = folder / "search.yaml", folder / "search.sqlite"
    file.write_text(sweep, encoding="utf-8")
    store.unlink(missing_ok=True)
    words = ["search", str(file), "--store", str(store), "--workers", str(workers)]
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "meshwright", *words], stdout=subprocess.DEVNULL
    ) as process:
        used = used_by(process)
    if process.returncode:
        raise SystemExit(f"the search ended with {process.returncode}")
    return time.perf_counter() - start, len(read_search(str(file)).cases), used


def fresh(folder: Path, cases: list[Case]) -> float:
    """Return the mean seconds of some cases, each in a process of its own."""
    specs = [case.spec for case in random.Random(0).sample(cases, FRESH) if case.spec]
    start = time.perf_counter()
    for spec in specs:
        data = spec.model_dump(mode="json", exclude_unset=True)
        file = folder / "spec.yaml"
        file.write_text(yaml.safe_dump(data), encoding="utf-8")
        words = [sys.executable, "-m", "meshwright", "solve", str(file), "--no-by-kind"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stderr)
    return (time.perf_counter() - start) / len(specs)


if __name__ == "__main__":
    without_options(__doc__)
    main()
