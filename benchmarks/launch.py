"""Which best plans launch as printed: `python -m benchmarks.launch --python PYTHON`.

Varied specs are solved and exported. Each script is run with a `torchrun` that only
says how it was called, and what it was called with goes through the framework's own
checks on CPU, in an environment of its own.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any

from rich.console import Console
from rich.table import Table

import meshwright as mw
from benchmarks.launch_specs import cases
from benchmarks.launch_validators import PACKAGES, Launch, UnavailableError, verdicts
from benchmarks.run_exported import CASES, outcome
from meshwright.exports.files import NotLaunchableError
from meshwright.exports.target import target as target_named
from meshwright.spec.plan_fields import Pins

Asked = tuple[str, str, mw.Spec]
"""The name, the target and the spec of a case."""

STRIDE = 11
"""Cases between two of a target that are tried one after the other; a prime that no
target's number of cases is a multiple of."""


@dataclass
class Case:
    """One spec, its best plan, and what became of it."""

    name: str
    target: str
    spec: mw.Spec
    plan: mw.Plan | None = None
    files: mw.Export | None = None
    refused: list[str] = field(default_factory=list)
    verdict: str | None = None
    """What the framework's checks say against it, empty for nothing."""


def main() -> None:
    """Solve, export, validate and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--python", help=f"of an environment with {PACKAGES}")
    options.add_argument("--to", help="one target alone")
    options.add_argument(
        "--plans", type=int, help="so many plans, of all targets in turn"
    )
    options.add_argument(
        "--train", action="store_true", help="train small plans on CPU beside them"
    )
    options.add_argument("--every", type=int, default=1, help="each so many-th case")
    options.add_argument(
        "--unpinned", action="store_true", help="plans with nothing pinned alone"
    )
    options.add_argument("--least", type=int, default=0, help="fail below so many")
    given = options.parse_args()
    asked = (
        (name, target, spec)
        for name, target, spec in cases()
        if given.to in (None, target) and not (given.unpinned and spec.pins != Pins())
    )
    chosen = in_turn(asked) if given.plans else islice(asked, 0, None, given.every)
    done = [*some((exported(*case) for case in chosen), given.plans)]
    unchecked: dict[str, str] = {}
    if given.python:
        for target in dict.fromkeys(case.target for case in done):
            found = [case for case in done if case.target == target]
            try:
                validate(target, found, given.python)
            except UnavailableError as error:
                if given.to:
                    raise
                unchecked[target] = str(error)
    report(done, unchecked)
    if given.train:
        train(given.python, given.to)
    accepted = sum(case.verdict == "" for case in done)
    if given.python and (accepted < given.least or any(case.verdict for case in done)):
        raise SystemExit(1)


def in_turn(asked: Iterable[Asked]) -> Iterator[Asked]:
    """Yield cases of all targets in turn, of each target far apart from each other."""
    by_target: dict[str, list[Asked]] = defaultdict(list)
    for case in asked:
        by_target[case[1]].append(case)
    spread = [
        [one[(i * STRIDE) % len(one)] for i in range(len(one))]
        for one in by_target.values()
    ]
    for turn in zip_longest(*spread):
        yield from (case for case in turn if case is not None)


def some(done: Iterable[Case], count: int | None) -> Iterator[Case]:
    """Yield cases until so many are exported, or all of them."""
    left = count
    for case in done:
        yield case
        if left is not None and case.files is not None:
            left -= 1
            if not left:
                return


def train(python: str, target: str | None) -> None:
    """Print what three steps of small plans show, for each target that trains here."""
    for name in CASES if target is None else {target} & {*CASES}:
        for asked in CASES[name]:
            said, _ = outcome(name, asked, python)
            print(f"{name} {asked}: {said}")


def exported(name: str, target: str, spec: mw.Spec) -> Case:
    """Return the best plan of a spec as files, or why it cannot be exported."""
    case = Case(name, target, spec)
    best = mw.solve(spec, by_kind=False).best
    if best is None:
        return case
    case.plan = best.plan
    try:
        case.files = mw.export(spec, best.plan, to=target)
    except NotLaunchableError as error:
        case.refused = [
            f"{refusal.field}: {refusal.check}" for refusal in error.refusals
        ]
    return case


def validate(target: str, given: list[Case], python: str) -> None:
    """Put the scripts of a target through its framework's checks."""
    ready = [
        (case, Launch(target, case.spec, case.plan, case.files))
        for case in given
        if case.plan is not None and case.files is not None
    ]
    found = verdicts(target, [launch for _, launch in ready], python)
    for (case, _), verdict in zip(ready, found, strict=True):
        case.verdict = verdict


def report(done: list[Case], unchecked: dict[str, str]) -> None:
    """Print a line per target, what was refused or rejected, and who was not asked."""
    console = Console(width=150)
    table = Table(title="Best plans that launch as printed")
    headings = (
        "target",
        "framework",
        "plans",
        "no plan fits",
        "refused by us",
        "exported",
    )
    for heading in (*headings, "accepted", "rejected", "GPUs"):
        is_text = heading in ("target", "framework")
        table.add_column(heading, justify="left" if is_text else "right")
    for target in [*dict.fromkeys(case.target for case in done), ""]:
        found = [case for case in done if target in (case.target, "")]
        version = target_named(target).version if target else ""
        table.add_row(target or "all", version, *map(str, _counts(found)))
    console.print(table)
    for why in unchecked.values():
        console.print(f"NOT CHECKED: {why}", markup=False, soft_wrap=True)
    unpinned = [
        case
        for case in done
        if case.plan and case.spec.pins == Pins() and case.target not in unchecked
    ]
    for target in [*dict.fromkeys(case.target for case in unpinned), ""]:
        found = [case for case in unpinned if target in (case.target, "")]
        accepted = sum(case.verdict == "" for case in found)
        text = f"{accepted} of {len(found)} accepted as printed"
        console.print(f"best plans, nothing pinned: {target or 'all'}: {text}")
    for line, count in Counter(_complaints(done)).most_common():
        console.print(f"{count:3} x {line}", markup=False, soft_wrap=True)


def _counts(given: list[Case]) -> list[Any]:
    gpus = sorted(case.spec.cluster.gpus for case in given)
    return [
        len(given),
        sum(case.plan is None for case in given),
        sum(bool(case.refused) for case in given),
        sum(case.files is not None for case in given),
        sum(case.verdict == "" for case in given),
        sum(bool(case.verdict) for case in given),
        f"{gpus[0]}-{gpus[-1]}",
    ]


def _complaints(done: list[Case]) -> Iterator[str]:
    for case in done:
        yield from (f"{case.target} refused: {why}" for why in case.refused)
        if case.verdict:
            first = case.verdict.splitlines()[0]
            yield f"{case.target} REJECTED: {case.name}: {first}"


if __name__ == "__main__":
    main()
