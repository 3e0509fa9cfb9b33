"""The command: a table of readers, and the inputs that one of them did not take."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.child import input_of
from tests.fuzz.driver import Tally, run, table
from tests.fuzz.readers import READERS

KEPT = Path("build/fuzz")
"""Where inputs are left that led to a fault."""

TOLD = 3
"""Faults of each reader that are printed; all are kept."""


def main() -> None:
    """Read the words of the command line, run, and exit with 1 if there is a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="of each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("readers", nargs="*", help=f"of {', '.join(READERS)}")
    words = parser.parse_args()
    tallies = []
    for name in words.readers or READERS:
        tallies.append(run(name, words.examples, words.seed, words.first))
        _keep(tallies[-1], words.seed)
        print(list(table(tallies[-1:]))[-1], file=sys.stderr, flush=True)
    print("\n".join(table(tallies)))
    sys.exit(any(tally.faults for tally in tallies))


def _keep(tally: Tally, seed: int) -> None:
    """Write the inputs of faults to files, and say what the first ones led to."""
    for place, fault in enumerate(tally.faults):
        KEPT.mkdir(parents=True, exist_ok=True)
        path = KEPT / f"{tally.name.replace(' ', '-')}-{seed}-{fault.number}"
        path.write_bytes(input_of(tally.name, seed, fault.number))
        if place < TOLD:
            print(f"{path}: {fault.kind}\n{fault.told}", file=sys.stderr)


if __name__ == "__main__":
    main()
