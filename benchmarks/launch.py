"""Which best plans launch as printed: `python -m benchmarks.launch --python PYTHON`.

Varied specs are solved and exported. Each script is run with a `torchrun` that only
says how it was called, and what it was called with goes through the framework's own
checks on CPU, in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import meshwright as mw
from benchmarks.launch_specs import cases
from meshwright.exports.refusals import NotLaunchableError

VALIDATORS = Path(__file__).parent / "validators"

PACKAGES = VALIDATORS / "requirements.txt"
"""What the environment of `--python` has, on Python 3.12."""

CATCHER = """#!{python}
import json, os, sys
with open(os.environ["CAUGHT"], "w") as file:
    words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    json.dump({{"words": words, "environment": dict(os.environ)}}, file)
"""

CAUGHT_COMMANDS = ("torchrun", "accelerate", "python")


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
    options.add_argument("--least", type=int, default=0, help="fail below so many")
    given = options.parse_args()
    done = [
        exported(name, target, spec)
        for name, target, spec in cases()
        if given.to in (None, target)
    ]
    if given.python:
        for target in dict.fromkeys(case.target for case in done):
            validate(target, [case for case in done if case.target == target], given)
    report(done)
    accepted = sum(case.verdict == "" for case in done)
    if given.python and (accepted < given.least or any(case.verdict for case in done)):
        raise SystemExit(1)


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
        case.refused = [f"{own.field}: {own.check}" for own in error.refusals]
    return case


def validate(target: str, own: list[Case], given: argparse.Namespace) -> None:
    """Put the scripts of a target through its framework's checks."""
    script = VALIDATORS / f"check_{target.replace('-', '_')}.py"
    ready = [case for case in own if case.files is not None]
    if not ready or not script.is_file():
        return
    with tempfile.TemporaryDirectory() as name:
        jobs = [job(case, Path(name) / str(i)) for i, case in enumerate(ready)]
        text = json.dumps([own for own in jobs if own])
        done = subprocess.run(
            [given.python, str(script)], input=text, capture_output=True, text=True
        )
    if done.returncode:
        raise SystemExit(f"{script.name}: {done.stderr[-2000:]}")
    for case, verdict in zip(ready, json.loads(done.stdout), strict=True):
        case.verdict = verdict


def job(case: Case, folder: Path) -> dict[str, Any]:
    """Return what a validator is told of a case: its folder and how it starts."""
    assert case.files is not None
    assert case.plan is not None
    folder.mkdir()
    for file in case.files.files:
        (folder / file.name).write_text(file.text)
    plan = case.plan
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(plan.world_size)}
    facts = {
        "plan": plan.model_dump(mode="json"),
        "data_parallel": plan.dp_replicate * plan.dp_shard,
        "capability": capability(case.spec),
        "global_batch": case.spec.training.global_batch,
        "seq_len": case.spec.training.seq_len,
        "n_layers": case.spec.model.n_layers,
        "d_model": case.spec.model.d_model,
        "vocab": case.spec.model.vocab,
    }
    started = caught(folder, ranks)
    return {"folder": str(folder), "gpus": plan.world_size, "facts": facts, **started}


def capability(spec: mw.Spec) -> int:
    """Return the major compute capability of a spec's GPU."""
    gpu = spec.cluster.topology.gpu.name
    majors = {"v100": 7, "h100": 9, "h200": 9, "b200": 10, "4090": 8}
    return next((major for name, major in majors.items() if name in gpu), 8)


def caught(folder: Path, ranks: dict[str, str]) -> dict[str, Any]:
    """Return how the script of a folder starts its program, without starting it."""
    commands = folder / "caught-commands"
    commands.mkdir()
    for name in CAUGHT_COMMANDS:
        (commands / name).write_text(CATCHER.format(python=sys.executable))
        (commands / name).chmod(0o755)
    clean = {
        "NODE_RANK": "0",
        "MASTER_ADDR": "node0",
        "SLURMD_NODENAME": "node0",
        **ranks,
    }
    clean |= {"PROGRAM": "program.py"}
    clean |= {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "CAUGHT": str(folder / "caught"),
    }
    subprocess.run(["bash", "launch.sh"], cwd=folder, env=clean, check=True)
    started = json.loads((folder / "caught").read_text())
    kept = {"PATH", "CAUGHT", "_", "SHLVL", "PWD", "OLDPWD", "LC_CTYPE"}
    own = {k: v for k, v in started["environment"].items() if k not in kept}
    return {"words": started["words"], "environment": own}


def report(done: list[Case]) -> None:
    """Print a line per target, and what was refused or rejected."""
    console = Console(width=150)
    table = Table(title="Best plans that launch as printed")
    headings = ("target", "plans", "no plan fits", "refused by us", "exported")
    for heading in (*headings, "accepted", "rejected", "GPUs"):
        table.add_column(heading, justify="left" if heading == "target" else "right")
    for target in [*dict.fromkeys(case.target for case in done), ""]:
        own = [case for case in done if target in (case.target, "")]
        table.add_row(target or "all", *map(str, _counts(own)))
    console.print(table)
    own = [case for case in done if case.plan and not case.spec.pins.recompute]
    count = sum(case.files is not None for case in own)
    console.print(
        f"with recompute left open: {count} of {len(own)} best plans exported"
    )
    for line, count in Counter(_complaints(done)).most_common():
        console.print(f"{count:3} x {line}", markup=False, soft_wrap=True)


def _counts(own: list[Case]) -> list[Any]:
    gpus = sorted(case.spec.cluster.gpus for case in own)
    return [
        len(own),
        sum(case.plan is None for case in own),
        sum(bool(case.refused) for case in own),
        sum(case.files is not None for case in own),
        sum(case.verdict == "" for case in own),
        sum(bool(case.verdict) for case in own),
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
