"""Launches of sequences of a million tokens, and of experts, as TRL's guides have them.

Sources: huggingface/trl pull requests 6846 and 6869.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshwright as mw

ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_activation_checkpointing_offload: true
  fsdp_reshard_after_forward: true
  fsdp_version: 2
parallelism_config:
  parallelism_config_dp_replicate_size: 1
  parallelism_config_dp_shard_size: 1
  parallelism_config_tp_size: 1
  parallelism_config_cp_size: 8
"""
PROGRAM = """\
import torch
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="out",
    model_init_kwargs={"dtype": torch.bfloat16, "attn_implementation": "sdpa"},
    max_length=1048576,
    per_device_train_batch_size=1,
    gradient_checkpointing=False,
)
SFTTrainer(model="Qwen/Qwen3-8B", args=args).train()
"""
SCRIPT = "accelerate launch --config_file long.yaml train.py\n"
STRATEGY = "  parallelism_config_cp_comm_strategy: {}\n"


def launch(folder: Path, config: str = ACCELERATE, program: str = PROGRAM) -> Path:
    """Write a launch of three files, and return the script."""
    for name, text in {
        "long.yaml": config,
        "train.py": program,
        "run.sh": SCRIPT,
    }.items():
        (folder / name).write_text(text)
    return folder / "run.sh"


def fields(path: Path) -> dict[str, Any]:
    return mw.import_file(path).fields


def test_a_million_tokens_take_what_was_measured(tmp_path: Path) -> None:
    """Qwen3-8B on eight H100: 380 s a step, and 56.2 GB of each GPU (6846).

    PyTorch's allocator counts; the context of CUDA is not in its peak.
    """
    found = fields(launch(tmp_path, ACCELERATE + STRATEGY.format("alltoall")))
    assert found["training"]["attention"] == "cudnn"
    spec = mw.load({**found, "cluster": {"topology": "dgx-h100"}}, mw.Spec)
    best = mw.solve(spec).best
    assert best is not None
    assert best.step_s == pytest.approx(380, rel=0.2)
    (stage,) = best.stages
    peak = stage.allocated_gib
    assert peak * 2**30 == pytest.approx(56.2e9, rel=0.2)


@pytest.mark.parametrize(
    ("strategy", "exchange"),
    [(None, "gather"), ("allgather", "gather"), ("alltoall", "ring")],
)
def test_how_ranks_of_a_sequence_exchange(
    tmp_path: Path, strategy: str | None, exchange: str
) -> None:
    more = STRATEGY.format(strategy) if strategy else ""
    training = fields(launch(tmp_path, ACCELERATE + more))["training"]
    assert training["context_exchange"] == exchange


@pytest.mark.parametrize(
    ("option", "chunks"),
    [
        ("", 4096),  # of 256 tokens
        ("    loss_type='chunked_nll',\n", 4096),
        ("    loss_type='nll',\n", None),
        ("    use_liger_kernel=True,\n", 32),  # Liger's own
    ],
)
def test_the_loss_of_trl_is_in_chunks(
    tmp_path: Path, option: str, chunks: int | None
) -> None:
    program = PROGRAM.replace("    max_length", f"{option}    max_length")
    training = fields(launch(tmp_path, program=program))["training"]
    assert training.get("loss_chunks") == chunks


def test_a_program_that_is_no_trainer_is_left_alone(tmp_path: Path) -> None:
    found = mw.import_file(launch(tmp_path, program="print('hello')\n"))
    assert "model" not in found.fields
    assert not any("train.py" in note for note in found.notes)


ULYSSES = """\
distributed_type: DEEPSPEED
num_processes: 4
deepspeed_config: {zero_stage: 3, zero3_init_flag: true}
parallelism_config:
  parallelism_config_dp_shard_size: 2
  parallelism_config_sp_size: 2
  parallelism_config_sp_backend: deepspeed
  parallelism_config_sp_attn_implementation: flash_attention_2
"""


def test_ulysses_beside_deepspeed(tmp_path: Path) -> None:
    program = PROGRAM.replace("sdpa", "flash_attention_2")
    found = mw.import_file(launch(tmp_path, ULYSSES, program))
    pins = found.fields["pins"]
    assert (pins["cp"], pins["dp_shard"], pins["zero"]) == (2, 2, 3)
    assert found.fields["framework"] == "deepspeed"
    assert not any("not known" in note for note in found.notes), found.notes


EXPERTS = PROGRAM.replace(
    '"dtype": torch.bfloat16',
    '"distributed_config": DistributedConfig(\n'
    "        tp_size=8, fsdp_size=2, enable_expert_parallel=True)",
)


def test_experts_of_ranks_that_share_a_batch_are_named(tmp_path: Path) -> None:
    path = tmp_path / "experts.py"
    path.write_text(EXPERTS)
    notes = mw.import_file(path).notes
    for told in (
        "enable_expert_parallel: true is not judged: experts of ranks that share a",
        "one of torchtitan (ep)",
        "distributed_config.tp_size: 8 is not judged: its ranks are left open",
    ):
        assert any(told in note for note in notes), notes
    assert not any("not known" in note for note in notes), notes
