"""Options by which what layers keep for their backward waits in host memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw

AXOLOTL = """\
base_model: Qwen/Qwen3-8B
sequence_len: 4096
micro_batch_size: 1
"""
TRL = """\
model_name_or_path: Qwen/Qwen3-8B
max_length: 4096
per_device_train_batch_size: 1
"""
LLAMA_FACTORY = """\
model_name_or_path: Qwen/Qwen3-8B
cutoff_len: 4096
finetuning_type: full
per_device_train_batch_size: 1
"""
ACCELERATE = """\
distributed_type: FSDP
num_processes: 8
fsdp_config:
  fsdp_version: 2
"""
ON, AGAIN = "activation_offloading: true\n", "gradient_checkpointing: true\n"
LORA = "adapter: lora\nlora_r: 16\n"
SHARDS = "fsdp_config:\n  reshard_after_forward: true\n"
OF_FSDP = "  fsdp_activation_checkpointing: {}\n"
LEAVES = "  fsdp_activation_checkpointing_offload: {}\n"

SAVED = "what layers save is priced on the GPU"
KEPT = "what layers keep is priced on the GPU"
BETWEEN = "its copies are priced between kernels"
ELSEWHERE = "another file says if layers are recomputed"
NOTHING = "changes nothing: no layer is recomputed"
REASONS = SAVED, KEPT, BETWEEN, ELSEWHERE, NOTHING


def read(folder: Path, text: str, name: str = "launch.yaml") -> tuple[str | None, str]:
    """Return the recomputation of a launch, and what its notes say of the option."""
    path = folder / name
    path.write_text(text)
    found = mw.import_file(path)
    told = [why for why in REASONS if any(why in note for note in found.notes)]
    return found.fields.get("pins", {}).get("recompute"), " ".join(told)


@pytest.mark.parametrize(
    ("options", "mode", "told"),
    [
        (AGAIN + ON, "full-cpu", BETWEEN),
        (AGAIN + "activation_offloading: hidden_states\n", "full-cpu", BETWEEN),
        (AGAIN + "activation_offloading: legacy\n", "full-cpu", ""),
        (AGAIN + "activation_offloading: disk\n", "full", KEPT),
        (AGAIN + "activation_offloading: false\n", "full", ""),
        ("gradient_checkpointing: offload\n", "full-cpu", BETWEEN),
        ("gradient_checkpointing: unsloth\n", "full-cpu", BETWEEN),
        ("gradient_checkpointing: offload_disk\n", "full", KEPT),
        # Beside adapters all that layers save leaves, and nothing is recomputed.
        (AGAIN + ON + LORA, "none", ""),
        ("gradient_checkpointing: offload\n" + LORA, "none", ""),
        (AGAIN + "activation_offloading: hidden_states\n" + LORA, "full-cpu", BETWEEN),
    ],
)
def test_axolotl(tmp_path: Path, options: str, mode: str, told: str) -> None:
    assert read(tmp_path, AXOLOTL + options + SHARDS) == (mode, told)


@pytest.mark.parametrize(
    ("options", "mode", "told"),
    [
        (ON, "full-cpu", BETWEEN),  # TRL recomputes unless told
        (AGAIN + ON, "full-cpu", BETWEEN),
        ("gradient_checkpointing: false\n" + ON, None, ELSEWHERE),
        ("gradient_checkpointing: false\n" + ON + SHARDS, "none", ""),
        (
            AGAIN + "gradient_checkpointing_kwargs: {offload: true}\n",
            "full-cpu",
            "",
        ),
        (AGAIN + "activation_offloading: false\n", "full", ""),
    ],
)
def test_trl(tmp_path: Path, options: str, mode: str | None, told: str) -> None:
    assert read(tmp_path, TRL + options) == (mode, told)


@pytest.mark.parametrize(
    ("text", "leaves"),
    [
        (TRL + "gradient_checkpointing: false\n" + ON + SHARDS, 35),
        (TRL + ON + SHARDS, None),
        (AXOLOTL + AGAIN + ON + LORA + SHARDS, 35),
        (AXOLOTL + AGAIN + "activation_offloading: legacy\n" + LORA + SHARDS, 35),
    ],
)
def test_all_that_layers_save_leaves_where_none_is_recomputed(
    tmp_path: Path, text: str, leaves: int | None
) -> None:
    """Of 36 layers the one at work has its own on the GPU; a model that is not known
    has no number of layers, so that its own stay.
    """
    found = mw.import_file(_written(tmp_path, text)).fields
    assert found["training"].get("offload_activations") == leaves
    other = text.replace("Qwen/Qwen3-8B", "nobody/unknown")
    assert (
        "offload_activations"
        not in (mw.import_file(_written(tmp_path, other)).fields["training"])
    )
    recompute, told = read(tmp_path, other)
    assert (SAVED in told) == (recompute == "none")


def _written(folder: Path, text: str) -> Path:
    path = folder / "launch.yaml"
    path.write_text(text)
    return path


def test_llama_factory(tmp_path: Path) -> None:
    found = read(tmp_path, LLAMA_FACTORY + "use_unsloth_gc: true\n")
    assert found == ("full-cpu", "")


@pytest.mark.parametrize(
    ("again", "leaves", "found"),
    [
        ("true", "true", ("full-cpu", "")),
        ("true", "false", ("full", "")),
        ("false", "true", ("none", NOTHING)),
    ],
)
def test_accelerate(
    tmp_path: Path, again: str, leaves: str, found: tuple[str, str]
) -> None:
    text = ACCELERATE + OF_FSDP.format(again) + LEAVES.format(leaves)
    assert read(tmp_path, text) == found


@pytest.mark.parametrize(
    ("again", "leaves", "found"),
    [
        ("True", "True", ("full-cpu", BETWEEN)),
        ("True", "False", ("full", "")),
        ("False", "True", ("none", SAVED)),
    ],
)
def test_verl(tmp_path: Path, again: str, leaves: str, found: tuple[str, str]) -> None:
    model = "actor_rollout_ref.model."
    text = (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=fsdp2 "
        f"{model}enable_gradient_checkpointing={again} "
        f"{model}enable_activation_offload={leaves}\n"
    )
    assert read(tmp_path, text, "run.sh") == found
