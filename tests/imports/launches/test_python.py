"""Programs of one's own that call the Trainer of TRL, Transformers or Unsloth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from tests.helpers.command import run

UNSLOTH = """\
from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig

max_seq_length = 4096
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "meta-llama/Meta-Llama-3-8B",
    max_seq_length = max_seq_length,
    load_in_4bit = True,
    device_map = "balanced",
)
model = FastLanguageModel.get_peft_model(
    model, r = 32, target_modules = ["q_proj", "v_proj"], lora_dropout = 0,
    use_gradient_checkpointing = "unsloth", random_state = 3407,
)
trainer = SFTTrainer(
    model = model,
    args = SFTConfig(
        per_device_train_batch_size = 2, gradient_accumulation_steps = 4,
        optim = "adamw_8bit", bf16 = True, learning_rate = 2e-4,
    ),
)
"""

TRL = '''\
"""
accelerate launch --config_file examples/fsdp.yaml train.py
"""
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

MODEL, SEQ_LEN = "Qwen/Qwen3-8B", 8_192
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen3-0.6B")

def main(size):
    args = SFTConfig(
        max_length=SEQ_LEN if size else 1,
        per_device_train_batch_size=size,
        gradient_checkpointing_kwargs={"offload": True},
    )
    SFTTrainer(model="Qwen/Qwen3-8B", args=args).train()
'''

PLAIN = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
args = TrainingArguments(per_device_train_batch_size=4, fp16=True)
"""


def imported(folder: Path, text: str) -> mw.ImportedFile:
    path = folder / "train.py"
    path.write_bytes(text.encode())
    return mw.import_file(path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_arguments_of_calls_become_plan_and_job(tmp_path: Path, end: str) -> None:
    found = imported(tmp_path, UNSLOTH.replace("\n", end)).fields
    assert found["model"] == "llama3-8b"
    assert found["training"] == {
        "seq_len": 4096,
        "optimizer": "adamw-8bit",
        "loss_chunks": 4,  # of 15.7 GiB, at most 4 at a time
        "lora": {
            "rank": 32,
            "dropout": False,
            "targets": ["q_proj", "v_proj"],
            "weights": "nf4",
            "adapters": "fused",
        },
        "precision": "bf16",
    }
    pins = found["pins"]
    assert (pins["micro_batch"], pins["microbatches"]) == (2, 4)
    assert pins["recompute"] == "full-cpu"


def test_what_is_not_modelled_of_unsloth_is_named(tmp_path: Path) -> None:
    notes = imported(tmp_path, UNSLOTH).notes
    assert sum("device_map: balanced is not" in note for note in notes) == 1, notes
    assert not any("random_state" in note for note in notes)


def test_a_program_that_accelerate_starts_is_read_and_not_its_docstring(
    tmp_path: Path,
) -> None:
    found = imported(tmp_path, TRL)
    assert found.fields["model"] == "qwen3-8b"
    assert found.fields["pins"]["recompute"] == "full-cpu"
    assert "micro_batch" not in found.fields["pins"]
    told = ":13: per_device_train_batch_size: size: left open: only a run knows it"
    assert any(told in note for note in found.notes), found.notes
    assert not any("kwargs.offload" in note for note in found.notes), found.notes


def test_the_trainer_of_transformers_has_no_defaults_of_trl(tmp_path: Path) -> None:
    found = imported(tmp_path, PLAIN).fields
    assert found["model"] == "qwen3-8b"
    assert found["pins"] == {"micro_batch": 4, "precision": "fp16"}


@pytest.mark.parametrize("kind", ["GRPO", "KTO", "Reward"])
def test_trainings_with_a_second_model_say_what_is_not_priced(
    tmp_path: Path, kind: str
) -> None:
    notes = imported(tmp_path, TRL.replace("SFTConfig(", f"{kind}Config(")).notes
    assert sum("a second model" in note for note in notes) == 1, notes


@pytest.mark.parametrize(
    ("call", "rank"),
    [("LoraConfig()", 8), ("LoraConfig(r=4)", 4), ("LoraConfig(lora_dropout=0.1)", 8)],
)
def test_adapters_of_peft_have_its_defaults(
    tmp_path: Path, call: str, rank: int
) -> None:
    text = TRL.replace("args=args", f"args=args, peft_config={call}")
    lora = imported(tmp_path, text).fields["training"]["lora"]
    assert (lora["rank"], lora.get("dropout", False)) == (rank, "dropout" in call)


def test_what_is_no_python_is_told_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(mw.SpecError, match=r"train.py:3: not valid Python"):
        imported(tmp_path, PLAIN.replace("4, fp16=True)", "4,"))


def test_a_program_of_unsloth_is_judged_where_it_runs(tmp_path: Path) -> None:
    """The names of matrices in a list are those of the spec that is made of them."""
    path = tmp_path / "train.py"
    path.write_text(UNSLOTH)
    command = ["explain", "--plan", str(path), "--gpu", "a100-sxm-80gb", "--count", "1"]
    told = run(*command)
    assert told.code == 0, told.stderr
    assert "Fits" in told.stdout


SWIFT = """\
NPROC_PER_NODE=4 swift sft --model Qwen/Qwen3-8B --torch_dtype bfloat16 \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps 4 \\
    --max_length 8192 --attn_impl flash_attn --fsdp fsdp2.json
"""


def test_scripts_of_swift_say_their_ranks_and_precision(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SWIFT)
    found = mw.import_file(path)
    assert (found.fields["pins"]["dp_shard"], found.fields["pins"]["precision"]) == (
        4,
        "bf16",
    )
    assert found.fields["training"]["global_batch"] == 16
    assert found.fields["training"]["attention"] == "flash"
    assert any("its file is not read" in note for note in found.notes)


OWN_FILES = [
    ("--deepspeed zero2", "deepspeed", {"zero": 2, "offload": "none"}),
    ("--deepspeed default-zero3", "deepspeed", {"zero": 3, "offload": "none"}),
    ("--deepspeed zero3_offload", "deepspeed", {"zero": 3, "offload": "parameters"}),
    ("--deepspeed zero1 --deepspeed_autotp_size 2", "deepspeed", {"zero": 1, "tp": 2}),
    ("--fsdp fsdp2 --gradient_checkpointing false", "fsdp",
     {"zero": 3, "recompute": "full"}),
    ("--gradient_checkpointing false", "fsdp", {"zero": 0, "recompute": "none"}),
]  # fmt: skip
"""Ways in which ms-swift shards by files of its own, or not at all."""


@pytest.mark.parametrize(("options", "framework", "pins"), OWN_FILES)
def test_swift_shards_by_the_files_that_it_brings(
    options: str, framework: str, pins: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "NPROC_PER_NODE=4 swift sft --model Qwen/Qwen3-8B --max_length 8192 \\\n"
        f"    --per_device_train_batch_size 1 --torch_dtype bfloat16 {options}\n"
    )
    found = mw.import_file(path)
    assert found.fields["framework"] == framework
    assert found.fields["pins"] | pins == found.fields["pins"]
    assert not any("no such file" in note for note in found.notes)


@pytest.mark.parametrize(("ranks", "told"), [(1, "(1 GPU)"), (2, "(2 GPUs)")])
def test_one_gpu_is_no_several(ranks: int, told: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SWIFT.replace("NPROC_PER_NODE=4", f"NPROC_PER_NODE={ranks}"))
    assert any(f"a spec needs: cluster {told}" in n for n in mw.import_file(path).notes)


def test_swift_trains_adapters_unless_told_otherwise(tmp_path: Path) -> None:
    """In 4 bits by its own option; every layer is recomputed by itself."""
    path = tmp_path / "run.sh"
    start = "swift sft --model Qwen/Qwen3-8B --max_length 2048 --quant_bits 4"
    path.write_text(f"{start} --quant_method bnb --target_modules q_proj v_proj\n")
    found = mw.import_file(path).fields
    assert found["training"]["lora"] == {
        "rank": 8,
        "dropout": True,
        "targets": ["q_proj", "v_proj"],
        "weights": "nf4",
    }
    assert found["pins"]["recompute"] == "full"
    path.write_text(f"{start} --tuner_type full\n")
    assert "lora" not in mw.import_file(path).fields["training"]


ALL_SEVEN = """["q_proj", "k_proj", "v_proj", "o_proj",
                      "gate_proj", "up_proj", "down_proj"]"""


@pytest.mark.parametrize(
    ("model", "targets", "read"),
    [
        ("unsloth/gpt-oss-20b", ALL_SEVEN, 7),
        ("unsloth/gemma-3-12b-it", ALL_SEVEN, 7),
        ("Qwen/Qwen3.5-9B", '["q_proj", "in_proj_qkv", "in_proj_z", "out_proj"]', 3),
    ],
)
def test_adapters_stand_beside_what_a_model_has(
    model: str, targets: str, read: int, tmp_path: Path
) -> None:
    """GPT-OSS has no MLP but experts; Qwen3.5's state space has names of its own."""
    path = tmp_path / "train.py"
    text = UNSLOTH.replace("meta-llama/Meta-Llama-3-8B", model)
    path.write_text(text.replace('["q_proj", "v_proj"]', targets))
    found = mw.import_file(path).fields["training"]["lora"]["targets"]
    assert len(found) == read
    told = run("explain", "--plan", str(path), "--cluster", "1xH100", "--batch", "8")
    assert told.code == 0, told.stderr


def test_a_program_that_names_no_framework_is_read_as_that_of_the_trainer(
    tmp_path: Path,
) -> None:
    """Liger's kernels are told from those that the framework fuses by itself."""
    program = PLAIN.replace("fp16=True)", "fp16=True, use_liger_kernel=True)")
    found = imported(tmp_path, program)
    assert found.fields["framework"] == "fsdp"
    assert "loss" in found.fields["training"]["fused"]
    assert any("assumed the framework fsdp" in note for note in found.notes)


@pytest.mark.parametrize("repeats", ["true", "false"])
def test_a_switch_that_is_off_counts_unless_the_file_of_fsdp_has_it_on(
    repeats: str, tmp_path: Path
) -> None:
    program = PLAIN.replace("fp16=True", "gradient_checkpointing=False, bf16=True")
    assert imported(tmp_path, program).fields["pins"]["recompute"] == "none"
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\n"
        "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true, "
        f"fsdp_activation_checkpointing: {repeats}}}\n"
    )
    path = tmp_path / "run.sh"
    path.write_text("accelerate launch --config_file fsdp.yaml train.py\n")
    pins = mw.import_file(path).fields["pins"]
    assert pins["recompute"] == ("full" if repeats == "true" else "none")


ACCELERATE = "accelerate launch {} train.py --per_device_train_batch_size 2\n"


@pytest.mark.parametrize(
    ("options", "pins"),
    [
        ("--multi_gpu --num_processes 4", {"zero": 0, "dp_replicate": 4}),
        ("--num_processes 2", {"zero": 0, "dp_replicate": 2}),  # of itself
        ("--use_fsdp --num_processes 4", {"zero": 3, "dp_shard": 4}),
        ("--use_fsdp --fsdp_version 1 --fsdp_sharding_strategy SHARD_GRAD_OP "
         "--fsdp_offload_params true", {"zero": 2, "offload": "parameters"}),
        ("--use_fsdp --fsdp_version 2 --fsdp_activation_checkpointing true "
         "--mixed_precision fp16", {"recompute": "full", "precision": "fp16"}),
    ],
)  # fmt: skip
def test_options_of_accelerate_stand_in_the_place_of_a_configuration(
    options: str, pins: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(ACCELERATE.format(options))
    found = mw.import_file(path)
    assert found.fields["framework"] == "fsdp"
    assert found.fields["pins"] | pins == found.fields["pins"]
    assert found.fields["pins"]["micro_batch"] == 2
    assert not any("not known" in note for note in found.notes)
