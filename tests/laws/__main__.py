"""Holds laws against fresh random specs: `python -m tests.laws --examples 300`."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.laws.book import LAWS
from tests.laws.law import Data, Law, as_yaml, hold

MOST_TOLD = 5
"""Failures of a law that are printed; all are written."""

MOST_LETTERS = 400
"""Of a failure that is printed; its file has all."""


@dataclass
class Tally:
    """What a law found on many specs."""

    law: Law
    folder: Path
    """Gets the specs that break the law."""
    specs: int = 0
    checks: int = 0
    failed: int = 0
    cpu_s: float = 0.0

    def take(self, data: Data) -> None:
        """Hold the law against one more spec."""
        start_s = time.process_time()
        found = hold(self.law, data)
        self.cpu_s += time.process_time() - start_s
        self.specs += 1
        self.checks += found.checks
        if found.failures:
            self._keep(data, found.failures)

    def _keep(self, data: Data, failures: tuple[str, ...]) -> None:
        """Write a spec that breaks the law, and say so at once."""
        path = self.folder / f"{self.law.name}-{self.failed}.yaml"
        lines = [line for failure in failures for line in failure.splitlines()]
        remarks = "".join(f"# {line}\n" for line in lines)
        path.write_text(remarks + as_yaml(data), encoding="utf-8")
        if self.failed < MOST_TOLD:
            print(f"  {path}: {failures[0][:MOST_LETTERS]}", flush=True)
        self.failed += 1


def hold_against(tally: Tally, examples: int, number: int) -> None:
    """Hold a law against so many specs; the number decides which."""
    law = tally.law
    for data in law.always:
        tally.take(data)

    @seed(f"{law.name} {number}")
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(law.specs)
    def take(data: Data) -> None:
        tally.take(data)

    take()


def row(tally: Tally) -> str:
    """Return a law's row of the table."""
    counts = f"{tally.specs:>6,} {tally.checks:>9,} {tally.failed:>9,}"
    return f"{tally.law.name:<12} {counts} {tally.cpu_s:>9.1f}  {tally.law.sentence}"


def main() -> int:
    """Run the laws that were asked for; 1 where any is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.laws", description=__doc__)
    parser.add_argument("--examples", type=int, default=300, help="specs of each law")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    names = [law.name for law in LAWS]
    parser.add_argument("--law", action="append", choices=names)
    parser.add_argument("--spec", type=Path, help="one spec, as a failure wrote it")
    asked = parser.parse_args()
    chosen = [law for law in LAWS if asked.law is None or law.name in asked.law]
    folder = Path(tempfile.mkdtemp(prefix="laws-"))
    print(f"seed {asked.seed}")
    print(f"{'law':<12} {'specs':>6} {'checks':>9} {'failures':>9} {'CPU s':>9}")
    has_failed = False
    for law in chosen:
        tally = Tally(law, folder)
        if asked.spec is None:
            hold_against(tally, asked.examples, asked.seed)
        else:
            tally.take(yaml.safe_load(asked.spec.read_text(encoding="utf-8")))
        print(row(tally), flush=True)
        has_failed |= bool(tally.failed)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
