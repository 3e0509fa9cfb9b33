"""Switches of training: told to a framework and read again, refused, or noted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

import meshwright as mw
from meshwright.explanations.decisions import with_pins
from meshwright.exports import TARGETS
from meshwright.exports.files import NotLaunchableError
from meshwright.frameworks.base.registry import framework
from meshwright.imports.read import read_launch
from meshwright.plans.plan import Plan
from meshwright.spec.plan_fields import Pins
from meshwright.spec.training import FusedOperation
from tests.exports.small import FRAMEWORKS, LLAMA
from tests.helpers.launches import solved_again, written
from tests.helpers.plans import best_of

EXPERTS = {"n_experts": 8, "top_k": 2, "d_ff": 1024}

SWITCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "compile": ({"compile": True}, {}),
    "cuda_graphs": ({"cuda_graphs": True}, {"pp": 1}),
    "cuda_graphs off": ({"cuda_graphs": False}, {"pp": 1}),
    "loss_chunks": ({"loss_chunks": 4}, {}),
    "mlp_chunks": ({"mlp_chunks": 4}, {}),
    "loss_parallel": ({"loss_parallel": False}, {"tp": 2}),
    "overlap.gradients": ({"overlap": {"gradients": False}}, {"zero": 1}),
    "overlap.parameters": ({"overlap": {"parameters": False}}, {"zero": 1}),
    "overlap.tp": (
        {"overlap": {"tp": True}}, {"tp": 2, "sequence_parallel": True}),
    "overlap.tp compiled": (
        {"overlap": {"tp": True}, "compile": True},
        {"tp": 2, "sequence_parallel": True}),
    "overlap.ep": ({"overlap": {"ep": True}}, {"ep": 2}),
    "overlap.pp": ({"overlap": {"pp": False}}, {"pp": 2, "vpp": 2}),
    "overlap.pp on": ({"overlap": {"pp": True}}, {"pp": 2, "vpp": 2}),
    "fused.rope": ({"fused": ["norm", "loss"]}, {}),
    "fused.loss": ({"fused": ["norm"]}, {}),
    "expert_dispatch": ({"expert_dispatch": "deepep"}, {"ep": 2}),
    "context_exchange": ({"context_exchange": "gather"}, {"cp": 2}),
}  # fmt: skip
"""By name: the switch of a spec, and pins of a plan that it concerns."""

WITH_EXPERTS = ("overlap.ep", "expert_dispatch")


def spec_of(trainer: str, name: str, **training: Any) -> mw.Spec:
    """Return the spec of a switch, for a framework whose limits may rule it out."""
    moe = {"moe": EXPERTS} if name in WITH_EXPERTS else {}
    zero = {"zero": 3} if trainer == "fsdp" else {}
    return mw.load(
        {
            "model": {**LLAMA, **moe},
            "cluster": {"topology": "dgx-h100", "count": 2},
            "framework": trainer,
            "training": {"seq_len": 8192, "global_batch": 128, **training},
            "pins": {**SWITCHES[name][1], **zero},
        },
        mw.Spec,
    )


@cache
def solved(trainer: str, name: str) -> tuple[mw.Spec, Plan] | str:
    """Return the spec of a switch and its best plan, or why there is none.

    Targets that train with the same framework share it.
    """
    try:
        spec = spec_of(trainer, name, **SWITCHES[name][0])
    except mw.SpecError as error:
        return f"{trainer}: {error}"
    best = best_of(spec)
    return (spec, best.plan) if best else f"{trainer} has no plan with these pins"


def plan_of(target: str, name: str) -> tuple[mw.Spec, Plan]:
    """Return the spec of a switch and its best plan, if a framework has any."""
    found = solved(FRAMEWORKS[target], name)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def changed(spec: mw.Spec) -> Iterator[tuple[str, object]]:
    """Yield the switches that a spec has otherwise than its framework by itself."""
    usual, training = framework(spec.framework), spec.training
    said: dict[str, tuple[object, object]] = {
        "compile": (training.compile, False),
        "cuda_graphs": (training.cuda_graphs, usual.has_cuda_graphs),
        "loss_chunks": (training.loss_chunks, usual.loss_chunks),
        "mlp_chunks": (training.mlp_chunks, 1),
        "loss_parallel": (training.loss_parallel, usual.is_loss_parallel),
        "expert_dispatch": (training.expert_dispatch, "alltoall"),
        "context_exchange": (training.context_exchange, usual.context_exchanges[0]),
    }
    for kind, one in training.overlap:
        said[f"overlap.{kind}"] = one, kind in usual.overlap
    if training.fused is not None:
        for operation in get_args(FusedOperation):
            is_fused = operation in training.fused
            said[f"fused.{operation}"] = is_fused, operation in usual.fused
    for name, (value, default) in said.items():
        if value not in (None, default):
            yield f"training.{name}", value


LEFT_OUT = {
    ("megatron", "training.fused.loss"): "--cross-entropy-loss-fusion",
    ("slime", "training.fused.loss"): "--cross-entropy-loss-fusion",
    ("verl", "training.overlap.parameters"): "overlap_param_gather",
}
"""Options of switches that programs have off by themselves, and specs have on."""


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("target", TARGETS)
def test_a_switch_is_written_refused_or_noted(
    target: str, name: str, tmp_path: Path
) -> None:
    spec, plan = plan_of(target, name)
    switches = dict(changed(spec))
    try:
        exported = mw.export(spec, plan, to=target)
    except NotLaunchableError as refused:
        names = {refusal.field for refusal in refused.refusals}
        if not names & {*switches}:
            pytest.skip(f"{target} refuses {names}")
        return
    launch = read_launch(written(exported, tmp_path))
    for field, value in switches.items():
        is_said = field in launch.values and launch.value(field) == value
        option = LEFT_OUT.get((target, field))
        is_left_out = option is not None and not value
        if is_left_out:
            texts = [path.read_text() for path in tmp_path.rglob("*.sh")]
            assert texts
            assert not any(str(option) in text for text in texts)
        noted = f"`{field}` {str(value).lower()}, which none of these files tells"
        assert is_said or is_left_out or noted in exported["model.md"], field
        assert not (is_said and noted in exported["model.md"]), field


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("target", TARGETS)
def test_a_plan_with_a_switch_is_the_same_after_its_files(
    target: str, name: str, tmp_path: Path
) -> None:
    spec, plan = plan_of(target, name)
    try:
        again = solved_again(spec, plan, target, tmp_path)
    except NotLaunchableError:
        pytest.skip(f"{target} cannot be told")
    assert again is not None
    assert again.plan == plan
    assert again.step_s == mw.price(spec, plan).step_s


EP = {"overlap": {"ep": True}}


@pytest.mark.parametrize(
    ("pins", "hides"),
    [
        ({"ep": 2, "recompute": "full"}, False),
        ({"ep": 2, "pp": 2, "vpp": 1, "recompute": "none"}, False),
        ({"ep": 2, "pp": 2, "vpp": 2, "recompute": "none"}, True),
    ],
)
def test_megatron_hides_messages_of_experts_where_its_checks_let_it(
    pins: dict[str, Any], hides: bool
) -> None:
    spec = spec_of("megatron", "overlap.ep", **EP)
    without = spec_of("megatron", "overlap.ep", overlap={"ep": False})
    best = best_of(with_pins(spec, Pins.model_validate(pins)))
    assert best is not None
    option = "--overlap-moe-expert-parallel-comm"
    assert (option in mw.export(spec, best.plan, to="megatron")["launch.sh"]) == hides
    exposed_s = mw.price(without, best.plan).time_parts["ep"]
    assert (best.time_parts["ep"] < exposed_s) == hides
