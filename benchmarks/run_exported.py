"""Trains three steps of exported plans on CPU: `python -m benchmarks.run_exported`.

Small models on two "GPUs" are exported for torchtitan, DeepSpeed, Megatron-LM and
Accelerate, and what the exported script starts runs as two processes that talk over
gloo. Each reports its degrees, the steps it took and what of the model it holds; they
are compared with the plan.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import meshwright as mw
from benchmarks.launch_scripts import caught, written
from benchmarks.launch_validators import PACKAGES, VALIDATORS
from meshwright.exports.target import target as target_named

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

EXPERTS = {"moe": {"n_experts": 4, "top_k": 2, "d_ff": 64}}
"""What the model has beside, where experts are split."""

PINS: dict[str, dict[str, Any]] = {
    "tp=2": {"tp": 2},
    "pp=2": {"pp": 2},
    "dp_shard=2": {"dp_shard": 2, "zero": 3},
}
"""What each case of torchtitan asks for; the rest is the solver's to choose."""

DEEPSPEED: dict[str, dict[str, Any]] = {
    "zero=1": {"zero": 1, "tp": 1, "pp": 1, "cp": 1},
    "zero=2": {"zero": 2, "tp": 1, "pp": 1, "cp": 1},
    "zero=3": {"zero": 3, "tp": 1, "pp": 1, "cp": 1},
    "offload=optimizer": {"zero": 2, "offload": "optimizer", "tp": 1, "pp": 1, "cp": 1},
    "tp=2": {"tp": 2, "pp": 1},
    "cp=2": {"cp": 2, "zero": 2},
    "pp=2": {"zero": 0, "pp": 2},
}
"""The same of DeepSpeed. One rank of data parallelism adds up in fp32 by ZeRO-1."""

MEGATRON: dict[str, dict[str, Any]] = {
    "tp=2": {"tp": 2},
    "pp=2": {"pp": 2},
    "pp=2 vpp=2": {"pp": 2, "vpp": 2},
    "cp=2": {"cp": 2},
    "ep=2": {"ep": 2},
    "zero=0": {"dp_replicate": 2, "zero": 0},
    "zero=1": {"dp_shard": 2, "zero": 1},
    "zero=2": {"dp_shard": 2, "zero": 2},
    "zero=3": {"dp_shard": 2, "zero": 3},
}
"""Of Megatron-LM, whose ZeRO-2 and 3 are Megatron-FSDP."""

ACCELERATE: dict[str, dict[str, Any]] = {
    "zero=0": {"dp_replicate": 2, "zero": 0},
    "zero=2": {"dp_shard": 2, "zero": 2},
    "zero=3": {"dp_shard": 2, "zero": 3},
    "inputs on the host": {"dp_shard": 2, "zero": 3, "recompute": "full-cpu"},
}
"""Of Accelerate: FSDP2, and DDP."""

CASES = {
    "torchtitan": PINS,
    "deepspeed": DEEPSPEED,
    "megatron": MEGATRON,
    "accelerate": ACCELERATE,
}

PROGRAMS = {
    "torchtitan": "torchtitan.train",
    "deepspeed": "program.py",
    "megatron": "program.py",
}
"""What the exported script starts, in whose place `run_TARGET.py` runs."""

BY_TRANSFORMERS = {"attention": "cudnn"}
TRAINING = {"accelerate": BY_TRANSFORMERS, "deepspeed": BY_TRANSFORMERS}
"""The word of specs for PyTorch's attention, which a CPU has too."""

STEPS = 3
SEQUENCE = 64


def main() -> None:
    """Run all cases and print a line for each."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--python", required=True, help=f"with {PACKAGES}")
    options.add_argument("--to", choices=[*CASES], help="one target alone")
    given = options.parse_args()
    wrong = 0
    for target, cases in CASES.items():
        for name in cases if given.to in (None, target) else ():
            said, is_right = outcome(target, name, given.python)
            print(f"{target} {name}: {said}")
            wrong += not is_right
    raise SystemExit(1 if wrong else 0)


def outcome(target: str, name: str, python: str) -> tuple[str, bool]:
    """Return what three steps of a case show, and whether it is as the plan says."""
    try:
        plan, reports = trained(CASES[target][name], python, target)
    except RuntimeError as error:
        return f"FAILED: {error}", False
    problems = [*differences(plan, reports)]
    losses = ", ".join(f"{loss:.3f}" for loss in reports[-1]["losses"])
    said = "; ".join(problems) or "as the plan says"
    return f"{STEPS} steps, losses {losses}: {said}", not problems


def trained(
    pins: dict[str, Any], python: str, target: str = "torchtitan"
) -> tuple[mw.Plan, list[dict[str, Any]]]:
    """Return the best plan under some pins, and what its ranks report after training.

    Raises:
        RuntimeError: the ranks failed; the message is the end of what they said.
    """
    spec = mw.load(
        {
            "model": MODEL | (EXPERTS if "ep" in pins else {}),
            "cluster": {"topology": "h100-nvlink-2", "count": 1},
            "framework": target_named(target).framework,
            "training": {"seq_len": SEQUENCE, "global_batch": 8}
            | TRAINING.get(target, {}),
            "pins": pins,
        },
        mw.Spec,
    )
    best = mw.solve(spec, by_kind=False).best
    assert best is not None
    exported = mw.export(spec, best, to=target)
    with tempfile.TemporaryDirectory() as name:
        folder = written(exported, Path(name) / "plan")
        started = caught(folder, {})
        done = subprocess.run(
            [*_torchrun(python), *_words(started["words"], target, best.plan)],
            cwd=folder,
            env={**os.environ, **started["environment"], **_alone(best.plan)},
            capture_output=True,
            text=True,
        )
    said = done.stdout.replace("RAN ", "\nRAN ").splitlines()  # ranks share a line
    lines = [line for line in said if line.startswith("RAN ")]
    if done.returncode or len(lines) != best.plan.world_size:
        raise RuntimeError(first_error(done.stderr))
    reports = [json.loads(line.removeprefix("RAN ")) for line in lines]
    return best.plan, sorted(reports, key=lambda report: int(report["rank"]))


def first_error(said: str) -> str:
    """Return the first error of a rank, which those of others and torchrun follow."""
    errors = re.findall(r"^(?:\[rank\d+\]: *)?(\w*Error: .*)$", said, re.M)
    found = [error for error in errors if not error.startswith("ChildFailed")]
    return found[0] if found else said[-2000:]


def _alone(plan: mw.Plan) -> dict[str, str]:
    """Return what the programs on CPU read: threads, a device, and the plan."""
    experts = EXPERTS if plan.ep > 1 else {}
    facts = {**MODEL, **experts, "seq_len": SEQUENCE, **plan.model_dump(mode="json")}
    return {
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "FACTS": json.dumps(facts),
    }


def _torchrun(python: str) -> list[str]:
    return [python, "-m", "torch.distributed.run"]


def _words(words: list[str], target: str, plan: mw.Plan) -> list[str]:
    """Return the words behind torchrun with another program."""
    runner = str(VALIDATORS / f"run_{target}.py")
    if words[0] == "accelerate":  # which starts as many ranks by itself
        return [f"--nproc-per-node={plan.world_size}", runner, *words[2:]]
    at = words.index(PROGRAMS[target])
    before = at - (words[at - 1] == "-m")
    return [*words[1:before], runner, *words[at + 1 :]]


def differences(plan: mw.Plan, reports: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what the ranks did otherwise than the plan says."""
    degrees = {axis: getattr(plan, axis) for axis in reports[0]["degrees"]}
    for report in reports:
        if report["degrees"] != degrees:
            yield f"rank {report['rank']} has {report['degrees']}"
        if report["backend"] != "gloo" or report["steps"] != STEPS:
            yield f"{report['steps']} steps over {report['backend']}"
        layers = plan.stages[report["rank"] * plan.pp // plan.world_size].layers
        if report["layers"] != layers:
            yield f"rank {report['rank']} has {report['layers']} layers"
        if not report["losses"][-1] < report["losses"][0]:
            yield f"rank {report['rank']} does not learn"
        stage = report.get("zero", plan.zero)
        if stage != plan.zero and plan.dp * plan.cp > 1:  # a single rank shards nothing
            yield f"rank {report['rank']} has ZeRO {stage}"
        if report.get("vpp", plan.vpp) != plan.vpp:
            yield f"rank {report['rank']} has {report['vpp']} virtual stages"
        is_whole = report["local_parameters"] >= report["parameters"]
        least = report.get("whole_below", 2)  # FSDP's ZeRO-2 keeps shards between steps
        if is_whole != (plan.tp == plan.ep == 1 and plan.zero < least):
            yield f"rank {report['rank']} holds {report['local_parameters']} parameters"


if __name__ == "__main__":
    main()
