"""Law: a plan that is exported and read again is the same plan at the same price.

The gate draws fewer plans than `--all`.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from benchmarks.launch_specs import BUNDLED, TARGETS
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.exports import TARGETS as NAMES
from meshwright.exports.files import NotLaunchableError
from tests.helpers.extent import gate
from tests.helpers.launches import solved_again
from tests.helpers.plans import best_of

FRAMEWORKS = {
    "megatron": "megatron",
    "megatron-bridge": "megatron",
    "deepspeed": "deepspeed",
    "torchtitan": "torchtitan",
    "accelerate": "fsdp",
    "axolotl": "fsdp",
    "llama-factory": "deepspeed",
    "trl": "fsdp",
    "nanotron": "nanotron",
    "verl": "megatron",
    "slime": "megatron",
}

LLAMA = {
    "name": "llama",
    "n_layers": 16,
    "d_model": 2048,
    "n_heads": 16,
    "n_kv_heads": 8,
    "d_ff": 5632,
    "vocab": 32000,
    "gated_mlp": True,
    "norm": "rmsnorm",
    "bias": "none",
    "tied_embeddings": False,
}
EXPERTS = {"n_experts": 8, "top_k": 2, "d_ff": 1024}

DEGREE = st.sampled_from([1, 2, 4])
PINS: dict[str, st.SearchStrategy[Any]] = {
    "zero": st.integers(0, 3),
    "micro_batch": DEGREE,
    "recompute": st.sampled_from(["none", "full"]),
    "offload": st.sampled_from(["none", "none", "optimizer", "parameters"]),
}
SPLITS = {"tp": DEGREE, "pp": DEGREE, "ep": DEGREE}
LONG = {"cp": st.sampled_from([1, 2]), "dp_replicate": st.sampled_from([1, 2])}
MEGATRON = PINS | SPLITS | LONG | {
    "vpp": st.sampled_from([1, 2]),
    "sequence_parallel": st.booleans(),
    "recompute": st.sampled_from(["none", "full", "selective"]),
}  # fmt: skip
BY_TARGET = {
    "megatron": MEGATRON,
    "megatron-bridge": MEGATRON,
    "deepspeed": PINS | SPLITS | {"cp": LONG["cp"]},
    "torchtitan": {name: one for name, one in MEGATRON.items() if name != "offload"},
    "accelerate": PINS | {"dp_replicate": LONG["dp_replicate"]},
    "axolotl": PINS | LONG | {"tp": DEGREE},
    "llama-factory": PINS,
    "trl": PINS | LONG,
    "verl": MEGATRON,
    "slime": MEGATRON,
    "nanotron": PINS | {"tp": DEGREE, "pp": DEGREE, "sequence_parallel": st.booleans()},
}


def test_every_target_is_drawn() -> None:
    assert {*BY_TARGET} == {*NAMES}


@st.composite
def questions(draw: st.DrawFn, target: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a spec without pins, and pins for it."""
    has_parts = FRAMEWORKS[target] != "fsdp" and target != "llama-factory"
    has_experts = draw(st.integers(0, 3)) == 0 and has_parts
    training: dict[str, Any] = {
        "seq_len": 4096,
        "global_batch": draw(st.sampled_from([32, 64])),
        "precision": draw(st.sampled_from(["bf16", "bf16", "fp16", "fp8"])),
    }
    if target != "torchtitan":
        training["gradients"] = draw(st.sampled_from([None, None, "fp32", "bf16"]))
        training["optimizer"] = draw(st.sampled_from(["adamw", "adamw", "sgd"]))
    spec = {
        "model": LLAMA | ({"moe": EXPERTS} if has_experts else {}),
        "cluster": {"topology": "dgx-h100", "count": draw(st.sampled_from([1, 2]))},
        "framework": FRAMEWORKS[target],
        "training": training,
    }
    names = draw(st.sets(st.sampled_from(sorted(BY_TARGET[target]))))
    pins = {name: draw(BY_TARGET[target][name]) for name in sorted(names)}
    if target.startswith("megatron") and pins.get("recompute") == "full":
        share = draw(st.sampled_from([None, 1, 2, 4]))
        if share:
            pp = pins.setdefault("pp", 2)
            pins["recompute_layers"] = [share] * pp
    return spec, pins


def as_told(target: str, plan: mw.Plan) -> mw.Plan:
    """Return a plan as files have it: torchtitan shards nothing over one rank."""
    is_alone = plan.dp_shard == plan.dp_replicate == plan.cp == 1
    if target == "torchtitan" and is_alone:
        return plan.model_copy(update={"zero": 0})
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("target", NAMES)
@settings(
    max_examples=gate(3, everything=25),
    suppress_health_check=[HealthCheck.filter_too_much],
)
@given(st.data())
def test_drawn_plan_is_the_same_after_its_files(
    target: str, data: st.DataObject
) -> None:
    fields, pins = data.draw(questions(target))
    try:
        free, asked = (
            mw.load(fields, mw.Spec),
            mw.load(fields | {"pins": pins}, mw.Spec),
        )
    except mw.SpecError:
        assume(False)
    best = best_of(asked)
    assume(best is not None)
    assert best is not None
    with TemporaryDirectory() as folder:
        try:
            again = solved_again(free, best.plan, target, Path(folder))
        except NotLaunchableError:
            assume(False)
    assert again is not None
    assert again.plan == as_told(target, best.plan)
    assert again.step_s == best.step_s
    assert mw.price(free, again.plan).step_s == best.step_s


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_plan_is_the_same_after_its_files(name: str, tmp_path: Path) -> None:
    spec = mw.load(name, mw.Spec)
    best = mw.solve(spec, by_kind=False, safety=False, repair=False).best
    assert best is not None
    for target in TARGETS[spec.framework]:
        try:
            again = solved_again(spec, best.plan, target, tmp_path)
        except NotLaunchableError:
            continue
        assert again is not None
        assert (again.plan, again.step_s) == (best.plan, best.step_s)


def test_trl_without_recomputation_is_read_as_such(tmp_path: Path) -> None:
    """TRL recomputes by itself, but not where its file says no; nor does FSDP here."""
    fields: dict[str, Any] = {
        "model": LLAMA,
        "cluster": {"topology": "dgx-h100"},
        "framework": "fsdp",
        "training": {"seq_len": 4096, "global_batch": 32},
    }
    free = mw.load(fields, mw.Spec)
    asked = mw.load(fields | {"pins": {"zero": 0, "recompute": "none"}}, mw.Spec)
    best = best_of(asked)
    assert best is not None
    again = solved_again(free, best.plan, "trl", tmp_path)
    assert again is not None
    assert again.plan == best.plan


@pytest.mark.parametrize("target", ["axolotl", "llama-factory", "trl"])
@pytest.mark.parametrize("targets", [["attention", "mlp"], ["q_proj", "v_proj"]])
def test_adapters_are_the_same_after_their_files(
    target: str, targets: list[str], tmp_path: Path
) -> None:
    """Programs name matrices one by one; a spec may name them by group."""
    fields: dict[str, Any] = {
        "model": LLAMA,
        "cluster": {"topology": "dgx-h100"},
        "framework": "fsdp",
        "training": {
            "seq_len": 4096,
            "global_batch": 32,
            "lora": {"rank": 16, "targets": targets},
        },
        "pins": {"zero": 2, "recompute": "full"},
    }
    asked = mw.load(fields, mw.Spec)
    best = best_of(asked)
    assert best is not None
    again = solved_again(asked, best.plan, target, tmp_path)
    assert again is not None
    assert (again.plan, again.step_s) == (best.plan, best.step_s)


@pytest.mark.parametrize(
    ("schedule", "word"), [("zb-v", "ZBVZeroBubble"), ("dualpipe-v", "DualPipeV")]
)
def test_v_is_the_same_after_its_files(
    schedule: str, word: str, tmp_path: Path
) -> None:
    """Parts stand in the order of the model: the last is the first rank's again."""
    fields: dict[str, Any] = {
        "model": LLAMA | {"n_layers": 15},
        "cluster": {"topology": "dgx-h100"},
        "framework": "torchtitan",
        "training": {"seq_len": 4096, "global_batch": 32},
    }
    free = mw.load(fields, mw.Spec)
    pins = {"schedule": schedule, "pp": 2, "layers": [7, 8]}
    best = best_of(mw.load(fields | {"pins": pins}, mw.Spec))
    assert best is not None
    assert best.plan.chunk_layers() == (3, 4, 4, 4)
    text = mw.export(free, best)["meshwright_plan.py"]
    assert repr(word) in text
    again = solved_again(free, best.plan, "torchtitan", tmp_path)
    assert again is not None
    assert (again.plan, again.step_s) == (best.plan, best.step_s)
