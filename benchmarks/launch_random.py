"""Random plans against the frameworks: `python -m benchmarks.launch_random --python P`.

Plans that Meshwright calls legal must be accepted by the framework's own checks, and
those that break a rule must not. The files of illegal plans are written without asking
what the target refuses. A framework refuses a plan by an error, or reads something else
than the plan says, for it has no word for it. Where a rule itself says that plans
beyond it launch and are not priced here, they may be accepted; they are counted apart.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from rich.console import Console
from rich.table import Table

from benchmarks.launch_validators import PACKAGES, Launch, verdicts
from benchmarks.random_plans import Drawn, draws
from meshwright.exports.files import Export
from meshwright.exports.target import target as target_named

TARGETS = ("megatron", "deepspeed", "torchtitan", "accelerate")

DRAWS = 3000
"""Plans drawn for each target, of which so many are taken that rules are even."""

OTHERWISE = "the framework reads"
"""What stands in a verdict of a plan that the framework has no word for."""

FAULTS = ("TypeError", "AttributeError", "NameError", "the process died", "no end")
"""How verdicts begin that tell of a fault of the check, not of the plan."""


@dataclass(frozen=True)
class Judged:
    """A plan, what the framework says, empty for nothing."""

    drawn: Drawn
    verdict: str

    @property
    def kind(self) -> str:
        """Return how the framework takes the plan."""
        if not self.verdict:
            return "unpriced" if self.drawn.is_unpriced else "accepted"
        if self.verdict.startswith(FAULTS) or "CUDA" in self.verdict.splitlines()[0]:
            return "fault"
        return "no word" if OTHERWISE in self.verdict else "refused"


def main() -> None:
    """Draw, write, validate and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--python", required=True, help=f"with {PACKAGES}")
    options.add_argument("--to", choices=TARGETS, help="one target alone")
    options.add_argument("--count", type=int, default=30, help="plans of each kind")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--all", action="store_true", help="print every verdict")
    options.add_argument("--where", action="store_true", help="print tracebacks")
    given = options.parse_args()
    done = {
        name: judged(name, given.count, given.seed, given.python)
        for name in TARGETS
        if given.to in (None, name)
    }
    report(done, given.all)
    wrong = [one for every in done.values() for one in every if is_wrong(one)]
    if given.where:
        print("\n".join(one.verdict for one in wrong))
    raise SystemExit(1 if wrong else 0)


def is_wrong(given: Judged) -> bool:
    """Return whether Meshwright and the framework do not agree."""
    is_accepted = given.kind == "accepted"
    return given.kind == "fault" or is_accepted == bool(given.drawn.broken)


def judged(target: str, count: int, seed: int, python: str) -> list[Judged]:
    """Return so many illegal plans, and so many legal ones, with verdicts."""
    launcher = target_named(target)
    every = [*islice(draws(launcher.framework, target, seed), DRAWS)]
    legal = [one for one in every if not one.broken][:count]
    chosen = [*illegal(every, count), *legal]
    launches = [
        Launch(target, one.spec, one.plan, _files(target, one), starts=True)
        for one in chosen
    ]
    found = verdicts(target, launches, python)
    return [Judged(each, said) for each, said in zip(chosen, found, strict=True)]


def illegal(every: list[Drawn], count: int) -> list[Drawn]:
    """Return so many plans that break rules, all rules in turn.

    Plans that break one rule alone come first, so that it is clear what is refused.
    """
    by_rule: dict[str, list[Drawn]] = defaultdict(list)
    for one in sorted(every, key=lambda given: len(given.broken)):
        if one.broken:
            by_rule[one.broken[0]].append(one)
    return [*islice(_in_turn(list(by_rule.values())), count)]


def _in_turn(lists: list[list[Drawn]]) -> Iterator[Drawn]:
    for place in range(max(map(len, lists))):
        yield from (one[place] for one in lists if place < len(one))


def _files(target: str, drawn: Drawn) -> Export:
    launcher = target_named(target)
    files = tuple(launcher.files(drawn.spec, drawn.plan))
    return Export(target=target, version=launcher.version, files=files)


def report(done: dict[str, list[Judged]], has_all: bool) -> None:
    """Print a line for each target, and where Meshwright and a framework differ."""
    console = Console(width=150)
    table = Table(title="Random plans, legal and not")
    columns = ("illegal", "refused", "no word for it", "not priced", "accepted")
    for heading in ("target", *columns, "rules broken", "legal", "accepted"):
        table.add_column(heading, justify="left" if heading == "target" else "right")
    for target, every in done.items():
        table.add_row(target, *map(str, _counts(every)))
    console.print(table)
    for target, every in done.items():
        for line, count in Counter(_lines(every, has_all)).most_common():
            console.print(f"{count:3} x {target} {line}", markup=False, soft_wrap=True)


def _counts(every: list[Judged]) -> list[int]:
    broken = [one for one in every if one.drawn.broken]
    kinds = Counter(one.kind for one in broken)
    rules = {one.drawn.broken[0] for one in broken}
    legal = [one for one in every if not one.drawn.broken]
    accepted = sum(one.kind == "accepted" for one in legal)
    names = ("refused", "no word", "unpriced", "accepted")
    counts = [kinds[name] for name in names]
    return [len(broken), *counts, len(rules), len(legal), accepted]


def _lines(every: list[Judged], has_all: bool) -> Iterator[str]:
    for one in every:
        if is_wrong(one) or has_all:
            rules = ", ".join(one.drawn.broken) or "legal"
            said = one.verdict.splitlines()[0][:160] if one.verdict else "accepted"
            plan = f" ({one.drawn.plan})" if is_wrong(one) else ""
            yield f"{rules}: {said}{plan}"


if __name__ == "__main__":
    main()
