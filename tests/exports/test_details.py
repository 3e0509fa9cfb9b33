"""What training needs and no price does is written of a model, and read again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright import catalog
from meshwright.exports.megatron_model import model_arguments, model_refusals
from meshwright.imports.hf import parse
from meshwright.imports.read import read_launch
from meshwright.spec.model import Model
from meshwright.spec.model_parts import Details
from tests.exports.small import exported, spec_of


def preset(name: str) -> Model:
    path = catalog.bundled(catalog.MODELS, name)
    return Model.model_validate(catalog.read(path).data)


WRITTEN = {
    "llama3-8b": ["--rotary-base 500000", "--norm-epsilon 1e-05"],
    "llama3.1-8b": ["--use-rope-scaling", "--rope-scaling-factor 8.0"],
    "qwen3-8b": ["--rotary-base 1000000", "--norm-epsilon 1e-06"],
    "mistral-7b": ["--rotary-base 10000"],
    "nemotron-4-15b": ["--squared-relu", "--rotary-percent 0.5"],
    "deepseek-v2-lite": ["--moe-router-pre-softmax", "--mscale 0.707"],
    "deepseek-v3": [
        "--qk-layernorm", "--moe-router-topk-scaling-factor 2.5",
        "--moe-router-dtype fp32", "--moe-permute-fusion", "--rope-type yarn",
        "--rotary-scaling-factor 40.0", "--mscale-all-dim 1.0",
        "--attention-dropout 0.0",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_arguments_of_megatron_say_the_model(name: str) -> None:
    lines = [
        shlex.join(model_argument.words)
        for model_argument in model_arguments(preset(name))
    ]
    assert {*WRITTEN[name]} <= {*lines}


NOT_IN_FILES = {
    "hub", "activation", "router_score", "router_sums_to_one", "mtp_layers",
}  # fmt: skip
"""Fields that arguments leave out, or say of every model."""


@pytest.mark.parametrize("name", catalog.names(catalog.MODELS))
def test_arguments_are_read_as_the_same_model(name: str, tmp_path: Path) -> None:
    model = preset(name)
    if [*model_refusals(model)]:
        return
    words = [
        word
        for model_argument in model_arguments(model)
        for word in model_argument.words
    ]
    script = tmp_path / "launch.sh"
    script.write_text(f"pretrain_gpt.py --micro-batch-size 1 {shlex.join(words)}\n")
    launch = read_launch(script)
    read = launch.values
    expected = model.details.model_dump(exclude=NOT_IN_FILES, exclude_none=True)
    scaling = expected.pop("rope_scaling", {})
    if model.learned_positions:
        expected["rope_theta"] = Details().rope_theta
    usual = Details().model_dump()
    for key, value in expected.items():
        got = launch.value(f"model.details.{key}")
        assert (usual[key] if got is None else got) == value
    for key in ("form", "factor", "mscale", "original_positions"):
        assert launch.value(f"model.details.rope_scaling.{key}") == scaling.get(key)
    assert ("model.details.router_score" in read) == (model.moe is not None)
    assert not [*launch.unset, *launch.unjudged]


def test_latent_norms_that_are_left_out_are_told(tmp_path: Path) -> None:
    words = [
        word
        for model_argument in model_arguments(preset("deepseek-v3"))
        for word in model_argument.words
        if word != "--qk-layernorm"
    ]
    script = tmp_path / "launch.sh"
    script.write_text(f"pretrain_gpt.py --micro-batch-size 1 {shlex.join(words)}\n")
    assert "latent vectors count with their norms" in str(read_launch(script).unjudged)


def test_bridge_takes_a_model_of_the_hub_from_there() -> None:
    details = {"hub": "Qwen/Qwen3-8B", "rope_theta": 1e6}
    text = exported("megatron-bridge", details=details)["meshwright_plan.py"]
    made = "AutoBridge.from_hf_pretrained('Qwen/Qwen3-8B').to_megatron_provider("
    assert made in text
    assert "cfg.model.rotary_base = 1000000 " in text
    found = exported("megatron-bridge")["meshwright_plan.py"]
    assert "cfg.model = GPTModelProvider()" in found
    assert "cfg.train.train_iters = 10 " in found
    folders = {line for line in text.splitlines() if ".checkpoint." in line}
    assert len(folders) == 2


def test_torchtitan_gets_the_base_of_the_model() -> None:
    details = {"rope_theta": 12345.0, "norm_eps": 1e-6}
    text = exported("torchtitan", vocab=32000, details=details)["meshwright_plan.py"]
    assert "theta=12345.0," in text
    assert "norm.eps = 1e-06" in text


def test_config_json_says_them() -> None:
    config: dict[str, Any] = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100,
        "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
            "original_max_position_embeddings": 8192,
        },
    }  # fmt: skip
    read = parse(json.dumps(config), "config.json")
    assert read.fields["details"] == {
        "norm_eps": 1e-6,
        "activation": "silu",
        "rope_theta": 5e5,
        "rope_scaling": {"form": "llama3", "factor": 8.0, "original_positions": 8192},
    }
    config["rope_parameters"]["rope_type"] = "longrope"
    assert "longrope" in str(parse(json.dumps(config), "config.json").notes)
    config["rms_norm_eps"] = "small"
    with pytest.raises(mw.SpecError, match="norm_eps: 'small': expected a number"):
        parse(json.dumps(config), "config.json")


def test_another_base_than_the_spec_is_a_note(tmp_path: Path) -> None:
    details = {"rope_theta": 500_000}
    script = tmp_path / "launch.sh"
    script.write_text(exported("megatron", details=details)["launch.sh"])
    notes: list[str] = []
    from meshwright.loading.plan_text import read_plan

    read_plan(str(script), spec_of("megatron", details={"rope_theta": 1e6}), notes)
    assert any("no price depends on it" in note for note in notes)
