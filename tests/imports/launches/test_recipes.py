"""YAML and commands of torchtune, LitGPT and LLM Foundry beside the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.cost.whole_model import total_params
from meshwright.errors import SpecError
from meshwright.imports.launches.launch import Launch
from meshwright.imports.read import launch_kind, read_launch
from meshwright.spec.model import Model

IMPORTS = Path(__file__).parents[2] / "data/imports"
TUNE = (IMPORTS / "torchtune.1.txt").read_text()
LIT = (IMPORTS / "litgpt.1.txt").read_text()
FOUNDRY = (IMPORTS / "llm_foundry.1.txt").read_text()


def read(folder: Path, text: str, old: str = "", new: str = "") -> Launch:
    assert old in text
    path = folder / "train.txt"
    path.write_text(text.replace(old, new))
    return read_launch(path)


BUILDER = "qwen2_5.lora_qwen2_5_1_5b_instruct"
ADAMW = "torch.optim.AdamW"
CROSS = "torchtune.modules.loss.LinearCrossEntropyLoss"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (TUNE[TUNE.index(BUILDER):TUNE.index("batch_size:")], "llama3_1.llama3_1_8b\n",
         {"model": "llama3.1-8b", "training.lora.rank": None,
          "training.lora.weights": None}),
        (BUILDER, "phi3.qlora_phi3_mini",
         {"model": "phi3-mini", "training.lora.weights": "nf4"}),
        (BUILDER, "qwen3.lora_qwen3_0_6b_base", {"model": "qwen3-0.6b-base"}),
        (f"torchtune.models.{BUILDER}", "ours.build", {"model": "ours.build"}),
        ("lora_rank: 64", "quantize_base: True",
         {"training.lora.rank": 8, "training.lora.weights": "nf4"}),
        ("apply_lora_to_mlp: True", "apply_lora_to_mlp: False",
         {"training.lora.targets": ["q_proj", "v_proj", "o_proj"]}),
        ("model: True", "model: False", {"training.compile": False,
                                         "training.fused.norm": False}),
        ("dtype: bf16", "dtype: fp32", {"precision": ["fp32", "tf32"],
                                        "training.master_weights": None}),
        ("dtype: bf16", "dtype: bf16\nenable_fp8_training: True",
         {"precision": "fp8", "training.master_weights": "none"}),
        (ADAMW, "bitsandbytes.optim.PagedAdamW8bit",
         {"training.optimizer": "adamw-8bit"}),
        (CROSS, f"{CROSS}\n  num_output_chunks: 16", {"training.loss_chunks": 16}),
        (CROSS, "torch.nn.CrossEntropyLoss", {"training.loss_chunks": 1}),
        ("dtype: bf16", "dtype: bf16\nfsdp_cpu_offload: True",
         {"offload": "parameters"}),
        ("dtype: bf16", "dtype: bf16\ncontext_parallel_dim: 2",
         {"cp": 2, "training.context_exchange": "gather"}),
        ("checkpointing: False", "checkpointing: True\n"
         "enable_activation_offloading: True", {"recompute": "full-cpu"}),
        ("ac_mode: full", "", {"recompute": "none"}),
    ],
)  # fmt: skip
def test_recipes_of_torchtune(
    tmp_path: Path, old: str, new: str, expected: dict[str, Any]
) -> None:
    launch = read(tmp_path, TUNE, old, new)
    assert {name: launch.value(name) for name in expected} == expected
    assert not launch.unknown


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("packed: True", "packed: False", "as long as the longest"),
        ("seed: null", "optimizer_in_bwd: True", "kept until the update"),
        ("seed: null", "custom_sharded_layers: ['output']", "gathered whole"),
        ("seed: null", "tensor_parallel_dim: 2\n"
         "tensor_parallel_plan: {_component_: torchtune.models.llama3.tp}",
         "sequences are priced as whole"),
        ("to_output: False", "to_output: True", "head is priced without adapters"),
        ("lora_rank", "use_dora: True\n  lora_rank", "DoRA"),
        (ADAMW, "bitsandbytes.optim.PagedAdamW", "moments in fp32"),
        (ADAMW, "ours.Lion", "optimizer of the spec"),
        (CROSS, "torchtune.rlhf.loss.DPOLoss", "loss of one model"),
        ("ac_mode: full", "ac_mode: selective", "no layer is priced as recomputed"),
        ("seed: null", "quantizer: {_component_: ours.Quantizer}", "in 16 bits"),
    ],
)  # fmt: skip
def test_what_no_price_of_torchtune_has_is_told(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    launch = read(tmp_path, TUNE, old, new)
    (note,) = launch.unjudged
    assert told in note
    assert note.startswith(f"{tmp_path / 'train.txt'}:")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("num_nodes: 2", "num_nodes: 1",
         {"gpus": 8, "recompute": "full", "training.gradient_sync": "last",
          "training.foreach": True, "training.compile": False}),
        ("devices: 8\nnum_nodes: 2", "", {"gpus": 1, "recompute": "none",
                                          "training.gradient_sync": None}),
        ("devices: 8", "devices: auto", {"gpus": None, "recompute": None}),
        ("bf16-true", "bf16-mixed", {"precision": "bf16", "training.gradients": "bf16",
                                     "training.master_weights": None}),
        ("bf16-true", "", {"precision": ["bf16", "fp16"]}),
        ("  micro_batch_size: 4\n", "  micro_batch_size: 2\n",
         {"micro_batch": 2, "training.global_batch": 64}),
        ("checkpoint_dir: checkpoints/meta-llama/Meta-Llama-3-8B",
         "model_name: tiny-llama-1.1b",
         {"model": "tiny-llama-1.1b", "dp_replicate": 2, "recompute": "none",
          "training.compile": True, "training.foreach": None}),
        ("seed: 1337", "lora_r: 16\nlora_mlp: true\nlora_value: false",
         {"training.lora.rank": 16, "training.lora.dropout": True,
          "training.lora.weights": None, "training.lora.targets":
          ["q_proj", "gate_proj", "up_proj", "down_proj"]}),
        ("torch.optim.AdamW", "bitsandbytes.optim.AdamW8bit",
         {"training.optimizer": "adamw-8bit", "training.foreach": None}),
    ],
)  # fmt: skip
def test_configurations_of_litgpt(
    tmp_path: Path, old: str, new: str, expected: dict[str, Any]
) -> None:
    launch = read(tmp_path, LIT, old, new)
    assert {name: launch.value(name) for name in expected} == expected
    assert not launch.unknown


def test_weights_of_litgpt_beside_mixed_precision_are_wide(tmp_path: Path) -> None:
    """Adapters too: fabric casts for matmuls alone."""
    text = LIT.replace("bf16-true", "bf16-mixed")
    launch = read(tmp_path, text, "seed: 1337", "lora_r: 8")
    kept = {name: launch.value(f"training.lora.{name}") for name in ("weights", "rank")}
    assert kept == {"weights": "fp32", "rank": 8}
    assert launch.value("training.lora.adapters") == "autocast"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("litgpt pretrain pythia-14m --devices 4",
         {"model": "pythia-14m", "gpus": 4, "micro_batch": 4,
          "training.global_batch": 512}),
        ("python -m litgpt finetune full --checkpoint_dir checkpoints/EleutherAI/"
         "pythia-1b", {"model": "pythia-1b", "micro_batch": 1, "gpus": 1,
                       "training.global_batch": 16, "training.lora.rank": None}),
        ("litgpt finetune EleutherAI/pythia-1b", {"training.lora.rank": 8}),
        (LIT.replace("seed", "command"), {"recompute": "full", "gpus": 16}),
    ],
)  # fmt: skip
def test_commands_of_litgpt_have_its_defaults(
    tmp_path: Path, command: str, expected: dict[str, Any]
) -> None:
    launch = read(tmp_path, f"{command}\n")
    assert {name: launch.value(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("PURE", "DEFAULT", {"training.gradients": "fp32"}),
        ("amp_bf16", "amp_fp8", {"precision": "fp8"}),
        ("amp_bf16", "fp32", {"precision": ["fp32", "tf32"],
                              "training.gradients": None}),
        ("FULL_SHARD", "SHARD_GRAD_OP", {"zero": 2}),
        ("FULL_SHARD", "HYBRID_SHARD", {"zero": 3, "has_replicas": True}),
        ("  activation_checkpointing_reentrant: false\n", "",
         {"training.reentrant": True}),
        ("limit_all_gathers", "activation_cpu_offload", {"recompute": "full-cpu"}),
        (FOUNDRY[FOUNDRY.index("fsdp_config"):], "compile_config: {}\n",
         {"zero": 0, "recompute": "none", "training.compile": True}),
        ("device_train_microbatch_size: 8", "device_train_microbatch_size: auto",
         {"micro_batch": None}),
        ("attn_impl: flash", "attn_impl: torch\n    alibi: true",
         {"training.attention": "plain", "model.alibi": True,
          "model.learned_positions": None}),
        ("expansion_ratio: 4", "ffn_config: {ffn_type: mptglu, ffn_hidden_size: 64}",
         {"model.d_ff": 64, "model.gated_mlp": True}),
        ("expansion_ratio: 4", "loss_fn: torch_crossentropy\n  no_bias: true",
         {"training.fused.loss": False, "model.bias": "none"}),
        ("attn_impl: flash", "attn_type: multiquery_attention",
         {"model.n_kv_heads": 1, "training.attention": "flash2"}),
        ("expansion_ratio: 4", "ffn_config: {ffn_type: mb_dmoe, moe_num_experts: 8}",
         {"model.moe.n_experts": 8, "model.moe.d_ff": 16384}),
    ],
)  # fmt: skip
def test_configurations_of_llm_foundry(
    tmp_path: Path, old: str, new: str, expected: dict[str, Any]
) -> None:
    launch = read(tmp_path, FOUNDRY, old, new)
    assert {name: launch.value(name) for name in expected} == expected
    assert not launch.unknown


HUB = """\
  name: hf_causal_lm
  pretrained_model_name_or_path: meta-llama/Meta-Llama-3-8B
  use_flash_attention_2: true
  peft_config: {r: 32, lora_dropout: 0.05, target_modules: [Wqkv, out_proj]}
"""


def test_models_of_the_hub_in_llm_foundry(tmp_path: Path) -> None:
    """Weights are loaded in fp32 (llmfoundry/models/consts.py)."""
    start, end = FOUNDRY.index("  name: mpt"), FOUNDRY.index("\ntokenizer:")
    text = FOUNDRY[:start] + HUB + FOUNDRY[end:]
    launch = read(tmp_path, text, "name: text", "name: finetuning")
    assert launch.preset == "llama3-8b"
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    expected = {"rank": 32, "targets": targets, "weights": "fp32", "dropout": True}
    assert {k: launch.value(f"training.lora.{k}") for k in expected} == expected
    assert launch.value("training.attention") == "flash2"
    (note,) = launch.unjudged
    assert "train_loader.name: finetuning" in note


def test_an_mpt_has_the_parameters_that_its_makers_count(tmp_path: Path) -> None:
    """6,658,859,008 in scripts/train/benchmarking/README.md."""
    launch = read(tmp_path, FOUNDRY)
    sizes = launch.values.items()
    said = {k.removeprefix("model."): v.value for k, v in sizes if k[:6] == "model."}
    assert total_params(Model.model_validate(said)) == 6_658_859_008


COMMANDS = {
    "torchtune": (
        TUNE,
        "tune run --nproc_per_node 4 lora_finetune_distributed --config train.yaml "
        "batch_size=6 model.lora_rank=16 tokenizer.max_seq_len=512\n",
        {"micro_batch": 6, "training.lora.rank": 16, "training.seq_len": 512,
         "gpus": 4, "zero": 2, "model": "qwen2.5-1.5b-instruct"},
    ),
    "litgpt": (
        LIT,
        "litgpt finetune_full --config train.yaml --num_nodes 4 "
        "--train.micro_batch_size=1\n",
        {"gpus": 32, "micro_batch": 1, "recompute": "full", "zero": 3},
    ),
    "llm_foundry": (
        FOUNDRY,
        "composer -n 8 train/train.py train.yaml variables.max_seq_len=8192 "
        "fsdp_config.activation_checkpointing=false model.n_layers=16\n",
        {"gpus": 8, "training.seq_len": 8192, "recompute": "none",
         "model.n_layers": 16, "training.reentrant": None, "zero": 3},
    ),
}  # fmt: skip
"""By kind, a configuration, a command that replaces some of it, and what counts."""


@pytest.mark.parametrize("kind", COMMANDS)
def test_options_of_a_command_replace_those_of_its_file(
    kind: str, tmp_path: Path
) -> None:
    text, command, expected = COMMANDS[kind]
    (tmp_path / "train.yaml").write_text(text)
    (tmp_path / "run.sh").write_text(command)
    launch = read_launch(tmp_path / "run.sh")
    assert launch.kind == kind
    assert {name: launch.value(name) for name in expected} == expected
    assert not [*launch.unknown, *launch.idle, *launch.unset]
    (tmp_path / "train.yaml").unlink()
    launch = read_launch(tmp_path / "run.sh")
    assert any("no such file beside it" in note for note in launch.unset)
    assert (launch.value("pp"), launch.value("zero")) == (1, None)
    assert not launch.unknown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TUNE.replace("dtype: bf16", "dtype: int4"),
         "train.txt:37: dtype: int4: accepted: bf16, fp16, fp32"),
        (LIT.replace("bf16-true", "64-true"), "train.txt:3: precision: 64-true: accep"),
        (FOUNDRY.replace("FULL_SHARD", "SOME"),
         "fsdp_config.sharding_strategy: SOME: accepted: FULL_SHARD"),
        (FOUNDRY.replace("n_layers: 32", "n_layers: ${n_layers}"),
         "a spec needs: cluster, model.n_layers"),
    ],
)  # fmt: skip
def test_values_that_no_program_takes_name_their_line(
    text: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.txt"
    path.write_text(text)
    if "needs" in told:
        assert any(told in note for note in mw.import_file(path).notes)
        return
    with pytest.raises(SpecError) as caught:
        read_launch(path)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        (TUNE, "gradient_accumulation_step", "gradient_accumulation_steps"),
        (LIT, "max_seq_lenght", "train.max_seq_length"),
        (FOUNDRY, "mixed_precison", "fsdp_config.mixed_precision"),
    ],
)
def test_a_misspelt_option_names_the_one_that_is_meant(
    text: str, wrong: str, right: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.txt"
    path.write_text(text.replace(right.rpartition(".")[2], wrong))
    told = [note for note in mw.import_file(path).notes if "not known" in note]
    assert [f"{wrong} (did you mean {right}?)" in note for note in told] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "model: {_component_: torchtune.models.llama2.llama2_7b}\ntemperature: 0.6\n",
        "litgpt chat meta-llama/Llama-3.2-1B\n",
        "# composer train/train.py ours.yaml\necho done\n",
        "train: {micro_batch_size: 1}\nmodel: {tp: 1}\n",
    ],
)
def test_what_trains_nothing_is_no_launch_of_theirs(text: str) -> None:
    assert launch_kind(text) is None


def test_variables_that_name_each_other_end(tmp_path: Path) -> None:
    text = FOUNDRY.replace("max_seq_len: 2048", "max_seq_len: ${max_seq_len}")
    launch = read(tmp_path, text)
    assert launch.value("training.seq_len") is None
    assert any("max_seq_len is not set" in note or "left open" in note
               for note in launch.unset)  # fmt: skip
