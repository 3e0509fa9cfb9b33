"""Megatron Bridge's own checks of a recipe, and its model on the meta device.

Bridge imports packages that need a GPU to be built; empty ones stand in for them, and
no check calls them. A model of the hub is a provider without numbers, which the recipe
sets.
"""

from __future__ import annotations

import importlib.util
import os
import types
from typing import Any

from common import Launch, MissingError, expect, main, same, stand_in_for
from megatron_on_cpu import (
    mark_overrides,
    stand_in_for_kernels,
    whole_parameters,
)
from start_megatron import local_layers, make_groups, without_weights

NOT_HERE = (
    "transformer_engine", "modelopt", "nvidia_resiliency_ext", "diffusers",
    "megatron.energon",
)  # fmt: skip


def prepare() -> None:
    """Import what takes long."""
    mark_overrides()
    import accelerate  # noqa: F401
    import megatron.core.optimizer
    import megatron.training.training
    import peft  # noqa: F401

    stand_in_for_kernels()
    stand_in_for(*NOT_HERE)  # after those that ask which of them are there
    try:
        import megatron.bridge.training.pretrain  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "megatron.bridge":
            raise
        raise MissingError("megatron-bridge is not installed") from None


def check(job: Launch) -> None:
    """Run a recipe and what `pretrain` validates of it, and build its first stage."""
    from megatron import bridge

    words, plan = job.program_words(), job.facts["plan"]
    bridge.AutoBridge.from_hf_pretrained = _from_hub
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(job.gpus), "LOCAL_RANK": "0"}
    spec = importlib.util.spec_from_file_location("recipe", job.folder / words[0])
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    cfg = recipe.plan()
    cfg.validate()
    rows = cfg.train.micro_batch_size * cfg.data_parallel_size
    same("micro-batches", cfg.train.global_batch_size // rows, plan["microbatches"])
    expect(cfg.train.train_iters <= 100, f"{cfg.train.train_iters} steps of a trial")
    cfg.train.train_iters // cfg.validation.eval_interval
    _compare(job, cfg)
    held = whole_parameters(_first_stage(job, cfg))
    if plan["pp"] == 1:
        same("parameters", held, job.facts["parameters"] + _padding(job, cfg.model))


def _first_stage(job: Launch, cfg: Any) -> Any:
    from megatron.core.process_groups_config import ProcessGroupCollection

    provider, chunks = cfg.model, cfg.model.virtual_pipeline_model_parallel_size
    make_groups(job.gpus, provider, cfg.ddp.num_distributed_optimizer_instances)
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    provider.transformer_layer_spec = local_layers
    is_last = provider.pipeline_model_parallel_size == 1
    with without_weights(provider):
        return provider.provide(
            pre_process=True, post_process=is_last, vp_stage=0 if chunks else None
        )


def _padding(job: Launch, provider: Any) -> int:
    """Return the parameters of words that the vocabulary is padded with."""
    multiple = (
        provider.make_vocab_size_divisible_by * provider.tensor_model_parallel_size
    )
    tables = 1 if provider.share_embeddings_and_output_weights else 2
    return int(-job.facts["vocab"] % multiple * tables * job.facts["d_model"])


def _compare(job: Launch, cfg: Any) -> None:
    plan, model = job.facts["plan"], cfg.model
    same("tp", model.tensor_model_parallel_size, plan["tp"])
    same("pp", model.pipeline_model_parallel_size, plan["pp"])
    same("cp", model.context_parallel_size, plan["cp"])
    same("ep", model.expert_model_parallel_size, plan["ep"])
    same("virtual stages", model.virtual_pipeline_model_parallel_size or 1, plan["vpp"])
    same("layers", model.num_layers, job.facts["n_layers"])
    world = plan["tp"] * plan["pp"] * plan["cp"] * job.facts["data_parallel"]
    same("ranks", world, job.gpus)
    expect(job.facts["seq_len"] % (2 * plan["cp"]) == 0 or plan["cp"] == 1, "sequence")


def _from_hub(_name: str) -> Any:
    """Return a model of the hub, of which no check loads numbers."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.models.mla_provider import MLAModelProvider

    is_latent = "deepseek" in _name.lower()
    provider = MLAModelProvider if is_latent else GPTModelProvider
    return types.SimpleNamespace(to_megatron_provider=lambda load_weights: provider())


if __name__ == "__main__":
    main(check, prepare)
