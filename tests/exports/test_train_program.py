"""The programs that train under Accelerate and DeepSpeed split what the plan splits."""

from __future__ import annotations

import ast
from typing import Any

import pytest

import meshwright as mw
from tests.exports.small import spec_of

HUB = {"hub": "Qwen/Qwen3-8B"}


def files(to: str = "accelerate", training: Any = (), **pins: Any) -> mw.Export:
    found = spec_of(to, details=HUB).model_dump(exclude_unset=True)
    found |= {"training": {**found["training"], **dict(training)}}
    spec = mw.load({**found, "pins": {"zero": 3, **pins}}, mw.Spec)
    return mw.export(spec, mw.solve(spec, by_kind=False), to=to)


@pytest.mark.parametrize(
    ("pins", "line"),
    [
        ({"tp": 2}, 'tp_plan="auto",'),
        ({"tp": 2}, 'device_mesh=accelerator.torch_device_mesh["tp"]'),
        ({"cp": 2}, "attn_implementation='sdpa'"),
        ({"cp": 2}, "accelerator.maybe_context_parallel("),
        ({"cp": 1, "tp": 1}, "AutoModelForCausalLM.from_config("),
        ({}, "sync_each_batch=True"),
        ({}, "'Qwen/Qwen3-8B'"),
    ],
)
def test_program_splits_what_the_plan_splits(pins: dict[str, Any], line: str) -> None:
    exported = files(**pins)
    program = exported["train.py"]
    ast.parse(program)
    assert line in program
    assert '"${PROGRAM:-train.py}"' in exported["launch.sh"]


SHARDED = "with deepspeed.zero.Init(config_dict_or_path=arguments.deepspeed_config):"
RECOMPUTED = "model.gradient_checkpointing_enable()"


@pytest.mark.parametrize(
    ("pins", "lines", "absent"),
    [
        ({"cp": 1, "recompute": "none"}, [SHARDED, "lr=1e-5, fused=True"], RECOMPUTED),
        ({"zero": 2, "recompute": "full"}, [RECOMPUTED], SHARDED),
        ({"cp": 2}, ["sequence_parallel_size=2,", "mpu=groups"], "training_data"),
        ({"cp": 1, "offload": "optimizer"}, ["DeepSpeedCPUAdam("], "torch.optim"),
    ],
)
def test_program_of_deepspeed_builds_what_the_plan_shards(
    pins: dict[str, Any], lines: list[str], absent: str
) -> None:
    exported = files("deepspeed", pp=1, tp=1, **pins)
    program = exported["train.py"]
    ast.parse(program)
    assert all(line in program for line in lines)
    assert absent not in program
    assert '"${PROGRAM:-train.py}" --deepspeed ' in exported["launch.sh"]


@pytest.mark.parametrize(
    ("training", "pins", "why"),
    [
        ((), {"zero": 1, "pp": 2}, "its pipelines take a list of layers"),
        ({"lora": {"rank": 8}}, {}, "adapters"),
        (
            {"partition_activations": True},
            {"tp": 2, "pp": 1},
            "models of transformers recompute",
        ),
    ],
)
def test_a_program_that_deepspeed_leaves_to_the_user_says_why(
    training: Any, pins: dict[str, Any], why: str
) -> None:
    exported = files("deepspeed", training, **pins)
    assert "train.py" not in [file.name for file in exported.files]
    assert "PROGRAM:?" in exported["launch.sh"]
    assert f"No `train.py` is written: {why}" in exported["model.md"]


def test_adapters_are_for_a_program_of_the_user() -> None:
    found = spec_of("accelerate").model_dump(exclude_unset=True)
    training = {**found["training"], "lora": {"rank": 8}}
    spec = mw.load({**found, "training": training, "pins": {"zero": 3}}, mw.Spec)
    exported = mw.export(spec, mw.solve(spec, by_kind=False), to="accelerate")
    assert "train.py" not in [file.name for file in exported.files]
    assert "PROGRAM:?" in exported["launch.sh"]
