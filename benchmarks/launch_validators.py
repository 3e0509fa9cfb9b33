"""Puts exported plans through the frameworks' own checks, in their environment."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import meshwright as mw
from benchmarks.launch_scripts import caught, written
from meshwright.cost.whole_model import total_params

VALIDATORS = Path(__file__).parent / "validators"

PACKAGES = VALIDATORS / "requirements.txt"
"""What the environment of the frameworks has."""


CHECKS = {
    "megatron-bridge": "megatron_bridge",
    **dict.fromkeys(("axolotl", "llama-factory", "trl"), "hf_trainers"),
}
"""Names of validators, where they are not those of the targets."""


@dataclass(frozen=True)
class Launch:
    """A plan and its files for one target."""

    target: str
    spec: mw.Spec
    plan: mw.Plan
    files: mw.Export
    starts: bool = False
    """Whether the program is started as far as a CPU can, on a small model."""


class UnavailableError(SystemExit):
    """The sources of a framework are not there for its validator."""


def verdicts(target: str, launches: list[Launch], python: str) -> list[str]:
    """Return what the checks of a target say against each launch, empty for nothing.

    `python` is that of an environment with the packages of `PACKAGES`.

    Raises:
        UnavailableError: the framework is on no registry, and not on this machine.
    """
    script = VALIDATORS / f"check_{CHECKS.get(target, target)}.py"
    if not script.exists():
        raise UnavailableError(f"{target}: its parser needs packages for GPUs")
    with tempfile.TemporaryDirectory() as name:
        jobs = [_job(launch, Path(name) / str(i)) for i, launch in enumerate(launches)]
        done = subprocess.run(
            [python, str(script)],
            input=json.dumps(jobs),
            capture_output=True,
            text=True,
        )
    if done.returncode == os.EX_UNAVAILABLE:
        raise UnavailableError(f"{target}: {done.stderr.strip()}")
    if done.returncode:
        raise SystemExit(f"{script.name}: {done.stderr[-2000:]}")
    found: list[str] = json.loads(done.stdout)
    return found


def _job(launch: Launch, folder: Path) -> dict[str, Any]:
    """Return what a validator is told of a launch: its folder and how it starts."""
    plan = launch.plan
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(plan.world_size)}
    started = caught(written(launch.files, folder), ranks)
    facts = _facts(launch.spec, plan) | {"starts": launch.starts}
    gpus = launch.spec.cluster.gpus
    return {"folder": str(folder), "gpus": gpus, "facts": facts, **started}


def _facts(spec: mw.Spec, plan: mw.Plan) -> dict[str, Any]:
    return {
        "plan": plan.model_dump(mode="json"),
        "data_parallel": plan.dp_replicate * plan.dp_shard,
        "capability": _capability(spec),
        "global_batch": spec.training.global_batch,
        "seq_len": spec.training.seq_len,
        "has_pairs": spec.training.has_reference,
        "parameters": total_params(spec.model),
        "n_layers": spec.model.n_layers,
        "d_model": spec.model.d_model,
        "vocab": spec.model.vocab,
        "n_heads": spec.model.n_heads,
        "n_kv_heads": spec.model.n_kv_heads,
        "d_ff": spec.model.d_ff,
    }


def _capability(spec: mw.Spec) -> int:
    """Return the major compute capability of a spec's GPU."""
    gpu = spec.cluster.topology.gpu.name
    majors = {"v100": 7, "h100": 9, "h200": 9, "b200": 10, "4090": 8}
    return next((major for name, major in majors.items() if name in gpu), 8)
