"""Trains three steps of exported plans on CPU: `python -m benchmarks.run_exported`.

Small models on two "GPUs" are exported for torchtitan, and the exported script starts
torchrun with two processes that talk over gloo. Each reports the degrees of its meshes,
the steps it took and what of the model it holds; they are compared with the plan.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import meshwright as mw
from benchmarks.launch_scripts import caught, written
from benchmarks.launch_validators import PACKAGES, VALIDATORS

MODEL: dict[str, Any] = {
    "name": "tiny",
    "n_layers": 4,
    "d_model": 64,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_ff": 128,
    "vocab": 256,
    "gated_mlp": True,
    "norm": "rmsnorm",
    "bias": "none",
    "tied_embeddings": False,
}

PINS: dict[str, dict[str, Any]] = {
    "tp=2": {"tp": 2},
    "pp=2": {"pp": 2},
    "dp_shard=2": {"dp_shard": 2, "zero": 3},
}
"""What each case asks for; the rest is the solver's to choose."""

PROGRAM = "torchtitan.train"
"""What the exported script starts, in whose place `run_torchtitan.py` runs."""

STEPS = 3


def main() -> None:
    """Run all cases and print a line for each."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--python", required=True, help=f"with {PACKAGES}")
    given = options.parse_args()
    wrong = 0
    for name, pins in PINS.items():
        plan, reports = trained(pins, given.python)
        problems = [*differences(plan, reports)]
        losses = ", ".join(f"{loss:.3f}" for loss in reports[-1]["losses"])
        said = "; ".join(problems) or "as the plan says"
        print(f"{name}: {STEPS} steps, losses {losses}: {said}")
        wrong += bool(problems)
    raise SystemExit(1 if wrong else 0)


def trained(pins: dict[str, Any], python: str) -> tuple[mw.Plan, list[dict[str, Any]]]:
    """Return the best plan under some pins, and what its ranks report after training.

    Raises:
        RuntimeError: the ranks failed; the message is the end of what they said.
    """
    spec = mw.load(
        {
            "model": MODEL,
            "cluster": {"topology": "h100-nvlink-2", "count": 1},
            "framework": "torchtitan",
            "training": {"seq_len": 64, "global_batch": 8},
            "pins": pins,
        },
        mw.Spec,
    )
    best = mw.solve(spec, by_kind=False).best
    assert best is not None
    exported = mw.export(spec, best, to="torchtitan")
    with tempfile.TemporaryDirectory() as name:
        folder = written(exported, Path(name) / "plan")
        started = caught(folder, {})
        done = subprocess.run(
            [*_torchrun(python), *_words(started["words"])],
            cwd=folder,
            env={**os.environ, **started["environment"], "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RAN ")]
    if done.returncode or len(lines) != best.plan.world_size:
        raise RuntimeError(f"{exported.version}: {done.stdout}{done.stderr[-4000:]}")
    reports = [json.loads(line.removeprefix("RAN ")) for line in lines]
    return best.plan, sorted(reports, key=lambda report: int(report["rank"]))


def _torchrun(python: str) -> list[str]:
    return [python, "-m", "torch.distributed.run"]


def _words(words: list[str]) -> list[str]:
    """Return the words behind torchrun with another program."""
    at = words.index(PROGRAM)
    assert words[at - 1] == "-m"
    return [*words[1 : at - 1], str(VALIDATORS / "run_torchtitan.py"), *words[at + 1 :]]


def differences(plan: mw.Plan, reports: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what the ranks did otherwise than the plan says."""
    degrees = {axis: getattr(plan, axis) for axis in reports[0]["degrees"]}
    for own in reports:
        if own["degrees"] != degrees:
            yield f"rank {own['rank']} has {own['degrees']}"
        if own["backend"] != "gloo" or own["steps"] != STEPS:
            yield f"{own['steps']} steps over {own['backend']}"
        layers = plan.stages[own["rank"] * plan.pp // plan.world_size].layers
        if own["layers"] != layers:
            yield f"rank {own['rank']} has {own['layers']} layers"
        is_whole = own["local_parameters"] == own["parameters"]
        if is_whole != (plan.tp == 1 and plan.zero < 2):
            yield f"rank {own['rank']} holds {own['local_parameters']} parameters"


if __name__ == "__main__":
    main()
