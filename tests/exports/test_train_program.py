"""The program that trains under Accelerate splits what the plan splits."""

from __future__ import annotations

import ast
from typing import Any

import pytest

import meshwright as mw
from tests.exports.small import spec_of

HUB = {"hub": "Qwen/Qwen3-8B"}


def files(**pins: Any) -> mw.Export:
    own = spec_of("accelerate", details=HUB).model_dump(exclude_unset=True)
    spec = mw.load({**own, "pins": {"zero": 3, **pins}}, mw.Spec)
    return mw.export(spec, mw.solve(spec, by_kind=False), to="accelerate")


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
def test_program_splits_what_the_plan_splits(pins: dict[str, int], line: str) -> None:
    exported = files(**pins)
    program = exported["train.py"]
    ast.parse(program)
    assert line in program
    assert '"${PROGRAM:-train.py}"' in exported["launch.sh"]


def test_adapters_are_for_a_program_of_the_user() -> None:
    own = spec_of("accelerate").model_dump(exclude_unset=True)
    training = {**own["training"], "lora": {"rank": 8}}
    spec = mw.load({**own, "training": training, "pins": {"zero": 3}}, mw.Spec)
    exported = mw.export(spec, mw.solve(spec, by_kind=False), to="accelerate")
    assert "train.py" not in [own.name for own in exported.files]
    assert "PROGRAM:?" in exported["launch.sh"]
