"""Megatron Core's checks of what a recipe of Megatron Bridge sets.

Bridge itself needs Transformer Engine and more to be imported. Its providers and
containers are stood in for by the classes of Megatron Core that they extend, with the
fields that Bridge adds (megatron-bridge 0.6.2); its own `validate` is not run.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import types
from typing import Any, Literal

from common import Launch, expect, main, mark_overrides, same, stand_in_for_kernels


@dataclasses.dataclass
class _Added:
    """What GPTModelProvider has beside TransformerConfig."""

    share_embeddings_and_output_weights: bool = True
    position_embedding_type: Literal["learned_absolute", "rope", "yarn"] = "rope"
    seq_length: int = 1024
    vocab_size: int | None = None
    should_pad_vocab: bool = False
    init_model_with_meta_device: bool = False
    rotary_base: int = 10000
    rotary_percent: float = 1.0
    rope_scaling: bool = False
    rope_scaling_factor: float = 1.0
    cross_entropy_loss_fusion: bool = True


def prepare() -> None:
    """Import what takes long."""
    mark_overrides()
    import megatron.core.optimizer
    import megatron.core.transformer.transformer_config  # noqa: F401

    stand_in_for_kernels()


def check(job: Launch) -> None:
    """Build the configuration of a recipe out of Megatron Core's classes."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.num_microbatches_calculator import (
        ConstantNumMicroBatchesCalculator,
    )
    from megatron.core.optimizer.optimizer_config import OptimizerConfig

    words = job.program_words()
    _stand_in()
    spec = importlib.util.spec_from_file_location("recipe", job.folder / words[0])
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    cfg = recipe.plan()
    cfg.model = _built(cfg.model)
    DistributedDataParallelConfig(**vars(cfg.ddp))
    OptimizerConfig(**vars(cfg.optimizer))
    plan = job.facts["plan"]
    counted = ConstantNumMicroBatchesCalculator(
        cfg.train.global_batch_size,
        cfg.train.micro_batch_size,
        job.facts["data_parallel"],
        False,
        0,
    )
    same("micro-batches", counted.get(), plan["microbatches"])
    expect(cfg.train.train_iters <= 100, f"{cfg.train.train_iters} steps of a trial")
    cfg.train.train_iters // cfg.validation.eval_interval
    _compare(job, cfg)


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


def _built(provider: types.SimpleNamespace) -> Any:
    """Return a provider's fields as Megatron Core checks them when Bridge is done."""
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    fields = vars(provider)
    is_latent = fields.get("multi_latent_attention", False)
    base = MLATransformerConfig if is_latent else TransformerConfig
    whole = dataclasses.make_dataclass("Provider", [], bases=(_Added, base))
    return whole(**fields)


class _Hub:
    """A model of the Hugging Face hub, which no check downloads."""

    def to_megatron_provider(self, load_weights: bool) -> types.SimpleNamespace:
        return types.SimpleNamespace()


def _stand_in() -> None:
    """Put modules of Bridge's names into place; Megatron Core's classes come later."""
    provider = types.SimpleNamespace
    hub = types.SimpleNamespace(from_hf_pretrained=lambda _name: _Hub())
    _module("megatron.bridge.models.gpt_provider", GPTModelProvider=provider)
    _module("megatron.bridge.models.mla_provider", MLAModelProvider=provider)
    _module("megatron.bridge", AutoBridge=hub)
    _module("megatron.bridge.recipes.common", _pretrain_common=_container)
    _module("megatron.bridge.training.config", ConfigContainer=object)
    _module("megatron.bridge.training.gpt_step", forward_step=None)
    _module("megatron.bridge.training.pretrain", pretrain=None)
    _module(
        "megatron.bridge.training.mixed_precision",
        get_mixed_precision_config=lambda name: types.SimpleNamespace(name=name),
    )


def _module(name: str, **names: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module
    for end in range(2, name.count(".") + 1):
        parent = ".".join(name.split(".")[:end])
        sys.modules.setdefault(parent, types.ModuleType(parent))


def _container() -> types.SimpleNamespace:
    sections = (
        "train",
        "dataset",
        "tokenizer",
        "ddp",
        "optimizer",
        "checkpoint",
        "dist",
        "validation",
        "scheduler",
        "logger",
    )
    return types.SimpleNamespace(**{name: types.SimpleNamespace() for name in sections})


if __name__ == "__main__":
    main(check, prepare)
