"""Starts a search and kills it, many times: `killed_search.py SWEEP STORE TIMES SEED`.

A process that has imported everything forks one that searches; which is killed after a
random time, with no chance to clean up. As long as nothing was stored, lives were too
short for this machine: the next may last twice as long. Prints how many rows were
stored each time.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import meshwright.planner.model  # noqa: F401  # imported by the first proof otherwise
from meshwright.sweeps.cases import SolveSettings, fingerprint
from meshwright.sweeps.pools import InProcessPool
from meshwright.sweeps.run_search import SearchRun
from meshwright.sweeps.store import Store
from meshwright.sweeps.sweep import read_search

LONGEST_S = 0.3
"""A life at first; a case takes about a third of that."""


def search(sweep: str, store: Path) -> None:
    with Store(store) as found:
        run = SearchRun(read_search(sweep).cases, SolveSettings(), found)
        run.resume()
        run.solve(InProcessPool())


def stored(sweep: str, store: Path) -> int:
    """Return how many rows can be read."""
    with Store(store) as found:
        run = SearchRun(read_search(sweep).cases, SolveSettings(), found)
        run.resume()
        return len(run.found)


def main(sweep: str, store: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    fingerprint()
    longest_s = LONGEST_S
    for _ in range(times):
        child = os.fork()
        if child == 0:
            search(sweep, store)
            os._exit(0)
        time.sleep(rng.uniform(0, longest_s))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        rows = stored(sweep, store)
        if rows == 0:
            longest_s *= 2
        print(rows)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
