"""Exports of frozen weights, Muon, and activations that are split or on the host."""

from __future__ import annotations

import re
from typing import Any

import pytest

import meshwright as mw
from meshwright.exports.files import NotLaunchableError
from meshwright.spec.spec import Spec
from tests.helpers.plans import best_of


def text_of(framework: str, to: str, training: dict[str, Any], **pins: Any) -> str:
    spec = {
        "model": "llama3-8b",
        "cluster": {"topology": "dgx-h100"},
        "framework": framework,
        "training": {"seq_len": 2048, "global_batch": 16, **training},
        "pins": pins,
    }
    read = mw.load(spec, Spec)
    best = best_of(read)
    assert best is not None
    return "\n".join(file.text for file in mw.export(read, best, to=to).files)


SPLIT = {"tp": 2, "recompute": "full"}

ALONE = {"tp": 1, "cp": 1}

HALF, OFFLOADS = {"offload_fraction": 0.5}, {"offload": "optimizer"}

LINES: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("megatron", "megatron", {"optimizer": "muon"}, {}, "--optimizer muon"),
    ("megatron", "megatron", {"offload_activations": 3}, {},
     "--cpu-offloading-num-layers 3"),
    ("megatron", "megatron-bridge", {"offload_activations": 3}, {},
     "cfg.model.cpu_offloading_num_layers = 3"),
    ("megatron", "megatron", HALF, OFFLOADS, "--optimizer-offload-fraction 0.5"),
    ("megatron", "megatron-bridge", HALF, OFFLOADS,
     "cfg.optimizer.optimizer_offload_fraction = 0.5"),
    ("deepspeed", "deepspeed", HALF, OFFLOADS | {"zero": 3}, '"ratio": 0.5'),
    ("megatron", "megatron", {"fp8_activation_inputs": True}, {},
     "--activation-func-fp8-input-store"),
    ("megatron", "megatron-bridge", {"fp8_activation_inputs": True}, {},
     "cfg.model.activation_func_fp8_input_store = True"),
    ("megatron", "megatron", {"partition_activations": True}, SPLIT,
     "--distribute-saved-activations"),
    ("deepspeed", "deepspeed", {"partition_activations": True}, SPLIT,
     '"partition_activations": true'),
    ("deepspeed", "deepspeed", {"lora": {"rank": 8, "targets": "q_proj"}},
     {"zero": 1},
     "`LoraConfig(r=8, target_modules=['q_proj'])`"),
    ("fsdp", "accelerate", {"lora": {"weights": "nf4"}}, {},
     "bnb_4bit_quant_type='nf4'"),
    ("fsdp", "accelerate", {"lora": {"weights": "int8"}}, {}, "load_in_8bit=True"),
    ("fsdp", "accelerate", {"lora": {"dropout": True}}, {}, "lora_dropout=0.05)"),
    ("fsdp", "axolotl", {"lora": {"dropout": True}}, ALONE, "lora_dropout: 0.05"),
    ("fsdp", "llama-factory", {"lora": {"dropout": True}}, ALONE,
     "lora_dropout: 0.05"),
    ("fsdp", "trl", {"lora": {}}, ALONE, "lora_dropout: 0.0"),
    ("fsdp", "llama-factory", {}, ALONE, 'finetuning_type: "full"'),
    ("fsdp", "llama-factory", {"lora": {}}, ALONE, 'finetuning_type: "lora"'),
    ("fsdp", "trl", {"lora": {}}, ALONE, 'dtype: "bfloat16"'),
    ("fsdp", "trl", {"lora": {"weights": "fp32"}}, ALONE, 'dtype: "float32"'),
    ("fsdp", "trl", {"lora": {"weights": "nf4"}}, ALONE, "use_bnb_nested_quant: true"),
    ("fsdp", "trl", {"offload_activations": 31}, {"zero": 3, **ALONE},
     "activation_offloading: true"),
    ("fsdp", "trl", {"loss_chunks": 8}, ALONE, 'loss_type: "chunked_nll"'),
    ("fsdp", "trl", {}, ALONE, 'loss_type: "nll"'),
    *(
        ("fsdp", to, {"lora": {"ends": "bf16"}}, ALONE, line)
        for to, line in {
            "accelerate": "modules_to_save=['embed_tokens', 'lm_head'])",
            "axolotl": 'lora_modules_to_save: ["embed_tokens", "lm_head"]',
            "llama-factory": 'additional_target: "embed_tokens,lm_head"',
            "trl": 'lora_modules_to_save: ["embed_tokens", "lm_head"]',
        }.items()
    ),
    ("fsdp", "axolotl", {"mlp_chunks": 8}, ALONE, "tiled_mlp_num_shards: 8"),
    ("fsdp", "accelerate", {}, {"zero": 3, "tp": 1, "cp": 2},
     "cp_comm_strategy: alltoall"),
    ("fsdp", "accelerate", {"context_exchange": "gather"},
     {"zero": 3, "tp": 1, "cp": 2}, "cp_comm_strategy: allgather"),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "to", "training", "pins", "line"), LINES)
def test_files_say_it(
    framework: str,
    to: str,
    training: dict[str, Any],
    pins: dict[str, Any],
    line: str,
) -> None:
    assert line in text_of(framework, to, training, **pins)


@pytest.mark.parametrize("to", ["accelerate", "axolotl", "llama-factory", "trl"])
def test_adapters_are_named_that_the_model_has(to: str) -> None:
    """All MLPs of GPT-OSS are routed experts, whose weights are frozen as they are."""
    fields = {
        "model": "gpt-oss-20b",
        "cluster": "dgx-h100",
        "framework": "fsdp",
        "training": {"seq_len": 4096, "global_batch": 32, "lora": 16},
        "pins": ALONE,
    }
    spec = mw.load(fields, Spec)
    best = best_of(spec)
    assert best is not None
    files = mw.export(spec, best, to=to).files
    found = [line for file in files for line in file.text.splitlines()]
    (line,) = (line for line in found if "q_proj" in line)
    named = {*re.findall(r"[a-z]+_proj", line)}
    assert named == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_adapters_of_a_state_space_are_named_as_the_model_names_it() -> None:
    targets = {"lora": {"targets": ["attention", "state_space"]}}
    fields = {
        "model": "qwen3.5-9b",
        "cluster": "dgx-h100",
        "framework": "fsdp",
        "training": {"seq_len": 4096, "global_batch": 32, **targets},
        "pins": ALONE,
    }
    spec = mw.load(fields, Spec)
    best = best_of(spec)
    assert best is not None
    files = mw.export(spec, best, to="axolotl").files
    found = [line for file in files for line in file.text.splitlines()]
    (line,) = (line for line in found if "q_proj" in line)
    for name in ("q_proj", "o_proj", "in_proj_qkv", "in_proj_z", "out_proj"):
        assert f'"{name}"' in line
    assert '"in_proj"' not in line
    assert "down_proj" not in line


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
def test_megatron_is_told_of_no_adapters(to: str) -> None:
    with pytest.raises(NotLaunchableError, match=r"peft\.lora\.LoRA"):
        text_of("megatron", to, {"lora": {}})


def test_checkpoints_that_are_not_there_are_not_split() -> None:
    training = {"partition_activations": True}
    with pytest.raises(NotLaunchableError, match="needs full recomputation"):
        text_of("megatron", "megatron", training, tp=1)


RING = {"attention": "flash3"}


@pytest.mark.parametrize(
    ("to", "training", "pins", "said"),
    [
        ("axolotl", RING, {"cp": 2, "zero": 3}, "flash_attention_3.*flash_attention_2"),
        ("llama-factory", {}, {"tp": 2, "zero": 3}, "accepted: --pin tp=1"),
        ("trl", {"offload_activations": 7}, {"zero": 3, **ALONE}, "0, or 31"),
        ("accelerate", {"offload_activations": 31}, {"zero": 3}, "TRL alone has it"),
        ("axolotl", {"offload_activations": 31}, {"zero": 3}, "TRL alone has it"),
    ],
)
def test_what_a_trainer_would_reject_is_refused(
    to: str, training: dict[str, Any], pins: dict[str, int], said: str
) -> None:
    with pytest.raises(NotLaunchableError, match=said):
        text_of("fsdp", to, training, **pins)


ACTOR = {"tp": 2, "pp": 2, "zero": 1}


def test_the_engine_of_verl_gets_whole_weights() -> None:
    """They are copied after an update, where no hook gathers what still waits."""
    text = text_of("megatron", "verl", {}, **ACTOR)
    assert "overlap_grad_reduce=True" in text
    assert "overlap_param_gather" not in text
    assert "`training.overlap.parameters: false` prices it whole" in text
    known = text_of("megatron", "verl", {"overlap": {"parameters": False}}, **ACTOR)
    assert "overlap.parameters" not in known


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("verl", "env_vars.CUDA_DEVICE_MAX_CONNECTIONS='\"'\"'1'\"'\"''"),
        ("slime", '--train-env-vars \'{"CUDA_DEVICE_MAX_CONNECTIONS": "1"'),
    ],
)
def test_ranks_of_ray_get_their_variables_as_texts(to: str, said: str) -> None:
    """Ray hands on no variable of the driver; sleeping engines refuse growing ones."""
    text = text_of("megatron", to, {}, **ACTOR)
    assert said in text
    assert "expandable_segments" not in text


@pytest.mark.parametrize(("expands", "count"), [(True, 1), (False, 0)])
def test_segments_expand_where_the_plan_counts_on_it(expands: bool, count: int) -> None:
    text = text_of("fsdp", "accelerate", {"expandable_segments": expands})
    assert text.count("expandable_segments:True") == count
