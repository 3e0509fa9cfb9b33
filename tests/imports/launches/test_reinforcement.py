"""Trainings by reinforcement or preferences: what of them is priced, and what not."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw

VERL = """\
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=4 \\
  actor_rollout_ref.actor.use_kl_loss=True algorithm.use_kl_in_reward=False \\
  actor_rollout_ref.ref.fsdp_config.param_offload=True trainer.n_gpus_per_node=8
"""

NEMO_RL = """\
{}: {{max_num_steps: 150, reference_policy_kl_penalty: 0.05}}
policy:
  train_global_batch_size: 128
  train_micro_batch_size: 1
  dtensor_cfg: {{enabled: false}}
  megatron_cfg: {{enabled: true, expert_model_parallel_size: 8}}
  generation: {{vllm_cfg: {{tensor_parallel_size: 2}}}}
"""

OPENRLHF = """\
deepspeed --module openrlhf.cli.train_dpo --train_batch_size 64 \\
  --micro_train_batch_size 2 --ref_offload --vllm_tensor_parallel_size 4
"""

LLAMA_FACTORY = "stage: {}\nfinetuning_type: full\ncutoff_len: 2048\n"


def imported(folder: Path, text: str) -> mw.ImportedFile:
    path = folder / "launch"
    path.write_text(text)
    return mw.import_file(path)


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        (VERL, "actor_rollout_ref.rollout.tensor_model_parallel_size"),
        (VERL, "actor_rollout_ref.ref.fsdp_config.param_offload"),
        (VERL, "actor_rollout_ref.actor.use_kl_loss"),
        (NEMO_RL.format("dpo"), "dpo.reference_policy_kl_penalty"),
        (NEMO_RL.format("dpo"), "policy.generation.vllm_cfg.tensor_parallel_size"),
        (OPENRLHF, "--ref_offload"),
        (OPENRLHF, "--vllm_tensor_parallel_size"),
    ],
)
def test_options_of_other_models_and_of_generation_are_not_called_idle(
    tmp_path: Path, text: str, apart: str
) -> None:
    notes = imported(tmp_path, text).notes
    about = [note for note in notes if apart in note]
    assert ["which are not modelled" in note for note in about] == [True], notes


def test_a_second_model_that_is_switched_off_is_not_told(tmp_path: Path) -> None:
    notes = imported(tmp_path, VERL).notes
    about = [note for note in notes if "algorithm.use_kl_in_reward" in note]
    assert ["without effect" in note for note in about] == [True]


@pytest.mark.parametrize(("section", "each"), [("dpo", 2), ("rm", 2), ("sft", 1)])
def test_a_pair_of_answers_is_two_sequences(
    tmp_path: Path, section: str, each: int
) -> None:
    """NeMo-RL doubles both of its batches: nemo_rl/algorithms/dpo.py and rm.py."""
    found = imported(tmp_path, NEMO_RL.format(section))
    assert found.fields["pins"]["micro_batch"] == each
    assert found.fields["training"]["global_batch"] == 128 * each
    assert any("pairs of sequences" in note for note in found.notes) == (each == 2)


@pytest.mark.parametrize(("stage", "count"), [("kto", 1), ("ppo", 1), ("sft", 0)])
def test_kinds_of_training_with_a_second_model_are_named(
    tmp_path: Path, stage: str, count: int
) -> None:
    notes = imported(tmp_path, LLAMA_FACTORY.format(stage)).notes
    assert sum(f"stage: {stage} is not judged: a second" in note for note in notes) == (
        count
    )


AUTOMODEL = """\
step_scheduler: {global_batch_size: 256, local_batch_size: 8}
model: {pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B, torch_dtype: bfloat16}
distributed:
  pp_size: 4
  ep_size: 8
  moe: {reshard_after_forward: %s}
"""


@pytest.mark.parametrize(("said", "zero"), [("false", 2), ("true", 3), ("null", 3)])
def test_a_switch_of_automodel_that_is_off_counts(
    tmp_path: Path, said: str, zero: int
) -> None:
    assert imported(tmp_path, AUTOMODEL % said).fields["pins"]["zero"] == zero


def test_options_of_openrlhf_before_its_sections_are_known(tmp_path: Path) -> None:
    text = (
        "deepspeed --module openrlhf.cli.train_sft --train_batch_size 64 --bf16 "
        "--micro_train_batch_size 2 --packing_samples --flash_attn --overlap_comm\n"
    )
    found = imported(tmp_path, text)
    assert not any("not known" in note for note in found.notes), found.notes
    assert found.fields["training"]["attention"] == "flash2"
    assert found.fields["training"]["overlap"] == {"gradients": True}
