"""What Axolotl, LLaMA-Factory and TRL read of their own files, by their own parsers.

Accelerate's file and DeepSpeed's beside them have validators of their own.
"""

from __future__ import annotations

import contextlib
import os
import socket
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from common import Launch, main, same


class _Read(NamedTuple):
    """What a program has read."""

    micro_batch: int
    microbatches: int
    sequence: int
    recompute: str
    degrees: dict[str, int]
    is_of_pairs: bool


def prepare() -> None:
    """Let a CPU pass for a GPU that has bf16."""
    os.environ |= {"DISABLE_VERSION_CHECK": "1", "ACCELERATE_USE_CPU": "1"}
    import transformers.training_args

    for name in ("trl", "llamafactory.hparams.parser", "axolotl.utils.schemas.config"):
        with contextlib.suppress(ImportError):  # of one that no launch needs
            import_module(name)
    transformers.training_args.is_torch_bf16_gpu_available = lambda *_a, **_k: True


def check(job: Launch) -> None:
    """Read the file of a launch, and compare it with the plan."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    # Arguments that name a file of DeepSpeed join a group of ranks, here of one.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    file = next(
        word for word in job.words if word.endswith(".yaml") and "acc" not in word
    )
    read, plan = READERS[file](job.folder / file), job.facts["plan"]
    same("pairs", read.is_of_pairs, job.facts["has_pairs"])
    each = 2 if read.is_of_pairs else 1
    same("micro-batch", each * read.micro_batch, plan["micro_batch"])
    same("micro-batches", read.microbatches, plan["microbatches"])
    same("sequence", read.sequence, job.facts["seq_len"])
    for axis, degree in read.degrees.items():
        same(axis, degree, plan[axis])
    by_fsdp = plan["zero"] >= 2 and not (job.folder / "deepspeed.json").exists()
    # Axolotl moves the inputs of its recomputation, not of FSDP's.
    leaves = file == "axolotl.yaml" and plan["recompute"] == "full-cpu"
    wanted = "none" if by_fsdp and not leaves else plan["recompute"]
    same("recompute", read.recompute, wanted)


def _axolotl(path: Path) -> _Read:
    import yaml
    from axolotl.utils.schemas.config import (
        AxolotlConfigWCapabilities,
        AxolotlInputConfig,
    )

    given = yaml.safe_load(path.read_text())
    unknown = {*given} - {*AxolotlInputConfig.model_fields}
    same("unknown keys", unknown, set())
    gpu = {"bf16": True, "fp8": True, "n_gpu": 8, "compute_capability": "sm_90"}
    # Its ring of sequences is a package that compiles kernels.
    ring = given.pop("context_parallel_size", 1)
    if ring > 1:
        same("attention", given["attn_implementation"], "flash_attention_2")
    read = AxolotlConfigWCapabilities(
        **given, capabilities=gpu, env_capabilities={"torch_version": "2.13.0"}
    )
    degrees = {"cp": ring or 1, "tp": read.tensor_parallel_size or 1}
    if read.dp_shard_size:
        degrees |= {"dp_shard": read.dp_shard_size}
        degrees |= {"dp_replicate": read.dp_replicate_size}
    return _Read(
        read.micro_batch_size,
        read.gradient_accumulation_steps,
        read.sequence_len,
        _mode(read.gradient_checkpointing, read.activation_offloading),
        degrees,
        read.rl is not None and read.rl.value == "dpo",
    )


def _factory(path: Path) -> _Read:
    import yaml
    from llamafactory.hparams.parser import _parse_train_args

    given = yaml.safe_load(path.read_text())
    model, data, training, tuning, *_ = _parse_train_args(given)
    kind = "lora" if "lora_rank" in given else "full"
    same("finetuning_type", tuning.finetuning_type, kind)
    mode = _mode(not model.disable_gradient_checkpointing, model.use_unsloth_gc)
    is_of_pairs = tuning.stage == "dpo" and tuning.use_ref_model
    return _of_trainer(training, data.cutoff_len, mode, is_of_pairs)


def _trl(path: Path) -> _Read:
    from trl import DPOConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser

    is_of_pairs = "trl.scripts.dpo" in (path.parent / "launch.sh").read_text()
    config = DPOConfig if is_of_pairs else SFTConfig
    parser = TrlParser((ScriptArguments, config, ModelConfig))
    _, training, _ = parser.parse_args_and_config(["--config", str(path)])
    if not is_of_pairs:
        packed = (training.packing, training.packing_strategy)
        same("packing", packed, (True, "wrapped"))
    mode = _mode(training.gradient_checkpointing, training.activation_offloading)
    return _of_trainer(training, training.max_length, mode, is_of_pairs)


def _mode(recomputes: object, leaves: object) -> str:
    """Return how layers are recomputed, by whether they are and inputs leave."""
    return ("full-cpu" if leaves else "full") if recomputes else "none"


def _of_trainer(
    training: Any, sequence: int, recompute: str, is_of_pairs: bool
) -> _Read:
    return _Read(
        training.per_device_train_batch_size,
        training.gradient_accumulation_steps,
        sequence,
        recompute,
        {},
        is_of_pairs,
    )


READERS = {
    "axolotl.yaml": _axolotl,
    "llama_factory.yaml": _factory,
    "trl.yaml": _trl,
}


if __name__ == "__main__":
    main(check, prepare)
