"""What NeMo-RL's YAML says beside the samples of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import SpecError
from meshwright.imports.launches.launch import Launch
from meshwright.imports.read import read_launch

POLICY = """\
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16}
policy:
  model_name: Qwen/Qwen3-30B-A3B
  train_global_batch_size:
    ${mul:${grpo.num_prompts_per_step}, ${grpo.num_generations_per_prompt}}
  train_micro_batch_size: 1
  max_total_sequence_length: ${data.length}
  precision: bfloat16
  megatron_cfg:
    enabled: true
    activation_checkpointing: true
    recompute_granularity: selective
    recompute_modules: [moe_act, layernorm]
    expert_model_parallel_size: 8
    fp8_cfg: {enabled: false, fp8: e4m3}
    optimizer: {bf16: true}
data: {length: 2048}
"""


def read(tmp_path: Path, text: str) -> Launch:
    path = tmp_path / "grpo.yaml"
    path.write_text(text)
    return read_launch(path)


def test_values_of_other_settings_are_put_in_their_places(tmp_path: Path) -> None:
    launch = read(tmp_path, POLICY)
    assert launch.value("training.global_batch") == 512
    assert launch.value("training.seq_len") == 2048
    assert launch.value("recompute_modules") == ["moe_act", "layernorm"]
    assert (launch.value("recompute"), launch.value("precision")) == (
        "selective",
        "bf16",
    )
    assert (launch.value("ep"), launch.value("tp"), launch.value("zero")) == (8, 1, 1)


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("enabled: false, fp8", "enabled: true, fp8", "precision", "fp8"),
        ("activation_checkpointing: true", "", "recompute", "none"),
        ("recompute_granularity: selective", "", "recompute", "full"),
        ("{length: 2048}", "{}", "training.seq_len", None),
        ("optimizer: {", "peft: {enabled: true, dim: 8}\n    optimizer: {",
         "training.lora.rank", 8),
    ],
)  # fmt: skip
def test_switches_decide_what_counts(
    tmp_path: Path, old: str, new: str, field: str, value: object
) -> None:
    assert old in POLICY
    assert read(tmp_path, POLICY.replace(old, new)).value(field) == value


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ("use_precision_aware_optimizer: true", "remainders"),
        ("use_precision_aware_optimizer: false", None),
        ("use_precision_aware_optimizer: true, store_param_remainders: false", None),
        ("use_precision_aware_optimizer: true, optimizer_cpu_offload: true", None),
    ],
)
def test_the_precision_aware_optimizer_keeps_the_rest_of_weights(
    tmp_path: Path, more: str, kept: str | None
) -> None:
    text = POLICY.replace("optimizer: {", f"optimizer: {{{more}, ")
    assert read(tmp_path, text).value("training.master_weights") == kept


def test_a_value_that_its_field_does_not_take_is_named(tmp_path: Path) -> None:
    text = POLICY.replace("granularity: selective", "granularity: some")
    with pytest.raises(SpecError, match=r"recompute_granularity: some: accepted: full"):
        read(tmp_path, text)


def test_what_a_file_of_defaults_may_set_is_left_open(tmp_path: Path) -> None:
    alone = "policy:\n  megatron_cfg: {enabled: true, expert_model_parallel_size: 4}\n"
    launch = read(tmp_path, f"{alone}  dtensor_cfg: {{enabled: false}}\n")
    assert (launch.value("tp"), launch.value("recompute")) == (1, "none")
    launch = read(tmp_path, f"defaults: base.yaml\n{alone}")
    assert launch.value("ep") == 4
    assert (launch.value("tp"), launch.value("recompute")) == (None, None)
    assert any("left open" in note for note in launch.notes())


def test_the_other_backend_is_not_read(tmp_path: Path) -> None:
    text = POLICY.replace("enabled: true\n", "enabled: false\n", 1)
    launch = read(tmp_path, text + "  # by default\n")
    assert launch.framework == "fsdp"
    assert (launch.value("zero"), launch.value("tp"), launch.value("ep")) == (3, 1, 1)
