"""Translates what publications say of numbers: precision, optimizer, adapters, loss.

A precision says in what matmuls are done, and some words beside it in what weights are
kept: 'bf16-true' keeps weights, gradients and moments in 16 bits, 'nf4' freezes weights
in four.
"""

from __future__ import annotations

import re
from typing import Any

from meshwright.evidence.published_terms import (
    VOCABULARY,
    Assumptions,
    Unpriced,
    has_liger,
    is_compiled,
    is_of,
    is_xla,
    named_in,
)
from meshwright.evidence.runs import Run, RunConfig
from meshwright.frameworks.base.registry import framework
from meshwright.spec.gpu import Gpu


def precision_of(config: RunConfig, gpu: Gpu, assumed: Assumptions) -> str:
    """Return the precision of the matmuls of a run; all fp8 recipes count as fp8.

    Raises:
        Unpriced: the precision is not modelled, or the GPU has no peak at it.
    """
    published = config.precision
    precision = named_in(published, VOCABULARY.precisions)
    if precision is None:
        raise Unpriced(f"config.precision: {published} is not modelled")
    if precision not in gpu.peak_tflops.known:
        raise Unpriced(f"config.precision: {precision} has no peak on {gpu.name}")
    if precision != published:
        assumed.value("config.precision", precision)
    return precision


def at_peak_of(config: RunConfig, gpu: Gpu) -> Gpu:
    """Return a GPU with the peak of a format that stands for another precision."""
    for word, factor in VOCABULARY.peaks.items():
        fp8 = gpu.peak_tflops.fp8
        if word in config.precision.lower() and fp8 is not None:
            peaks = gpu.peak_tflops.model_copy(update={"fp8": factor * fp8})
            return gpu.model_copy(update={"peak_tflops": peaks})
    return gpu


def gradients_of(config: RunConfig) -> str | None:
    """Return the precision in which gradients are summed and reduced; None if usual.

    PURE in LLM Foundry reduces in 16 bits.
    """
    if config.gradients is not None:
        return config.gradients
    is_pure = config.mixed_precision_mode == "PURE"
    is_low = is_pure or is_of(config, VOCABULARY.frameworks.bf16_gradients)
    return "bf16" if is_low else None


def gradient_sync_of(run: Run, name: str) -> str:
    """Return when a run reduced gradients under FSDP: after each micro-batch, or once.

    `name` is that of the framework. A single micro-batch is reduced at once.
    """
    config = run.config
    each = (config.dp or 1) * (config.micro_batch or 1)
    is_one = config.micro_batch is None or (config.global_batch or 0) <= each
    if is_one or not (config.gradient_sync or framework(name).has_no_sync):
        return "each"
    waits = config.fsdp is not None and is_of(
        config, VOCABULARY.frameworks.reduces_last
    )
    return config.gradient_sync or ("last" if waits else "each")


def is_pure(config: RunConfig) -> bool:
    """Return whether weights are trained in the 16 bits in which they are kept."""
    if config.master_weights is not None:
        return config.master_weights in ("none", "bf16")
    is_low = named_in(config.precision, VOCABULARY.precisions) == "bf16"
    return is_low and not _words(config.precision).isdisjoint(VOCABULARY.pure)


def state_of(run: Run, name: str, assumed: Assumptions) -> dict[str, Any]:
    """Return the fields of `training` that say what is kept of a parameter.

    `name` is that of the framework.

    Raises:
        Unpriced: the optimizer is not modelled.
    """
    config = run.config
    fields: dict[str, Any] = {
        "optimizer": _optimizer(config),
        "lora": lora_of(run, name, assumed),
        "fp8_weights": _fp8_weights(config),
        "moments": _moments(config),
        "master_weights": "none" if is_pure(config) else config.master_weights,
        "gradients": gradients_of(config),
        "gradient_sync": gradient_sync_of(run, name),
        "holds_gradients": config.fsdp is not None
        and is_of(config, VOCABULARY.frameworks.has_first_fsdp),
    }
    if is_pure(config) and config.gradients is None:
        fields["gradients"] = "bf16"
    if fields["optimizer"] in (None, "adamw"):
        fields["foreach"] = _is_foreach(run, name)
    return {name: value for name, value in fields.items() if value is not None}


def _is_foreach(run: Run, name: str) -> bool:
    """Return whether AdamW was PyTorch's, without one kernel for its whole update."""
    is_torch = framework(name).makes_gradients_late
    is_usual = is_of(run.config, VOCABULARY.frameworks.updates_by_tensor)
    is_old = run.era < VOCABULARY.since.fused_update
    is_fused = "fused" in (run.config.optimizer or "").lower()
    return is_torch and is_usual and is_old and not is_fused


def _optimizer(config: RunConfig) -> str | None:
    has_bytes = named_in(config.moments or "", VOCABULARY.frozen_weights) == "int8"
    if has_bytes:
        return "adamw-8bit"
    if config.optimizer is None:
        return None
    found = named_in(config.optimizer, VOCABULARY.optimizers)
    if found is None:
        raise Unpriced(f"config.optimizer: {config.optimizer} is not modelled")
    return found


def _moments(config: RunConfig) -> str | None:
    """Return the precision of AdamW's moments where the optimizer's name says it."""
    words = _words(f"{config.optimizer} {config.moments}")
    return None if words.isdisjoint({"bf16", "bfloat16"}) else "bf16"


def _fp8_weights(config: RunConfig) -> str | None:
    """Return whether fp8 weights stand for those in 16 bits, as in Megatron-Bridge.

    Its fp8 recipes set `fp8_param_gather` (training/mixed_precision.py).
    """
    if not _is_fp8(config):
        return None
    if config.primary_weights is not None:
        return "primary" if "fp8" in config.primary_weights.lower() else None
    has_them = is_of(config, VOCABULARY.frameworks.primary_fp8_weights)
    # Frozen weights need no others, since no optimizer reads them.
    return "primary" if has_them or has_adapters(config) else None


def _is_fp8(config: RunConfig) -> bool:
    return named_in(config.precision, VOCABULARY.precisions) == "fp8"


def has_adapters(config: RunConfig) -> bool:
    """Return whether a run trains adapters beside frozen weights, as far as it says."""
    names_them = not _words(config.task or "").isdisjoint({"lora", "qlora"})
    return config.lora_rank is not None or names_them


def lora_of(run: Run, name: str, assumed: Assumptions) -> dict[str, object] | None:
    """Return the adapters of a run; None where all weights are trained.

    `name` is that of the framework. Frozen weights in four or eight bits have adapters,
    since nothing else trains them.
    """
    config, said = run.config, dict[str, object]()
    told = config.frozen_weights or f"{config.task or ''} {config.precision}"
    frozen = named_in(told, VOCABULARY.frozen_weights)
    frozen = None if _is_fp8(config) and frozen == "int8" else frozen
    # A precision of 32 bits is one in which all weights are trained.
    is_named = config.frozen_weights is not None or has_adapters(config)
    frozen = None if frozen == "fp32" and not is_named else frozen
    if config.lora_rank is not None:
        said["rank"] = config.lora_rank
    switches = {
        "dropout": config.lora_dropout,
        "upcast": config.upcast,
        "adapters": config.adapters,
    }
    said |= {name: value for name, value in switches.items() if value is not None}
    if targets := _targets(config.lora_targets or ""):
        said["targets"] = targets
    if config.frozen_weights is not None:
        said["weights"] = frozen or "bf16"
    if not said and frozen is None and not has_adapters(config):
        return None
    usual: dict[str, object] = {
        "targets": list(framework(name).published_lora),
        "weights": frozen or "bf16",
    }
    casts = is_of(config, VOCABULARY.frameworks.casts_adapters)
    if casts and run.era >= VOCABULARY.since.fp32_adapters:
        usual["adapters"] = "autocast"
    left = {field: value for field, value in usual.items() if field not in said}
    if left:
        assumed.value("config.lora", left)
    if config.fsdp is not None and is_of(config, VOCABULARY.frameworks.reentrant):
        left["keeps_results"] = True
    if config.fsdp is not None and is_of(
        config, VOCABULARY.frameworks.flattens_adapters
    ):
        left["frozen_gradients"] = True
    if frozen == "nf4" and _keeps_inputs(run, told):
        left["keeps_inputs"] = True
        holds = is_of(config, VOCABULARY.frameworks.holds_logits)
        left["keeps_graph"] = holds and config.recompute == "none"
    return left | said


def _keeps_inputs(run: Run, told: str) -> bool:
    """Return whether matmuls in four bits were those of an old bitsandbytes.

    `told` are the words of the run on its frozen weights.
    """
    others = VOCABULARY.frameworks.quantises_itself
    is_by_others = is_of(run.config, others) or any(
        word in told.lower() for word in others
    )
    since = VOCABULARY.since
    is_pinned = is_of(run.config, VOCABULARY.frameworks.pins_bitsandbytes)
    frees = since.pinned_frees_inputs if is_pinned else since.frees_inputs
    return run.era < frees and not is_by_others


def _targets(text: str) -> list[str]:
    """Return the matrices that a text lists, as specs name them."""
    named = (VOCABULARY.lora_targets.get(word, ()) for word in _in_order(text))
    return list(dict.fromkeys(name for names in named for name in names))


def _words(text: str) -> set[str]:
    return {*_in_order(text)}


def _in_order(text: str) -> list[str]:
    return re.split(r"\W+", text.lower())


_TRANSFORMERS = re.compile(r"transformers (\d+)\.(\d+)", re.IGNORECASE)

LAST_LOSS_IN_PLACE = (2, 17)
"""Version of Transformer Engine."""

_TRANSFORMER_ENGINE = re.compile(r"\bTE (\d{1,3})\.(\d{1,3})")


def loss_bytes_of(run: Run, name: str, assumed: Assumptions) -> float | None:
    """Return the bytes of the loss per logit beside the logit, None if usual.

    A run that names its Transformer Engine is taken to use its loss, which wrote the
    gradient over the logits up to version 2.17 (pytorch/triton/cross_entropy.py), as
    llm.q does (b77d969 src/kernels/fused_classifier.cu).
    """
    if run.config.loss_bytes is not None:
        return run.config.loss_bytes
    if casts_logits(run):
        return assumed.value("config.loss_bytes", _cast_loss_bytes(run))
    if _leaves_logits(run):
        return assumed.value("config.loss_bytes", LOSS_IN_16_BITS)
    if is_of(run.config, VOCABULARY.frameworks.all_fused):
        return assumed.value("config.loss_bytes", 0.0)
    found = _TRANSFORMER_ENGINE.search(run.config.framework)
    if found is None or (int(found[1]), int(found[2])) > LAST_LOSS_IN_PLACE:
        return _uncompiled_loss_bytes(run, name)
    return assumed.value("config.loss_bytes", 0.0)


def _uncompiled_loss_bytes(run: Run, name: str) -> float | None:
    """Return the bytes of a loss that was not compiled with the model, None if usual.

    torchtitan has compiled its loss with the model since 2 April 2025 (bbb1b61, pull
    request 1033), and for some weeks before 18 December 2024 (e8977b0); MaxText and
    Paxml, which are priced like it, have losses that are not known to be so small.
    """
    config, like = run.config, framework(name)
    is_apart = run.era < VOCABULARY.since.compiled_loss or is_xla(run)
    is_apart = is_apart and is_compiled(run) and "loss" not in (config.fused or ())
    if like.compiled_loss is None or not is_apart:
        return None
    is_split = (config.tp or 1) > 1 and config.loss_parallel is not False
    return like.loss.parallel if is_split else like.loss.whole


def casts_logits(run: Run) -> bool:
    """Return whether the model of a run casts logits to fp32 before the loss."""
    config = run.config
    is_whole = config.loss_bytes is None and not config.loss_kernel
    is_whole = is_whole and not has_liger(run) and not _leaves_logits(run)
    return is_whole and is_of(config, VOCABULARY.frameworks.casts_logits)


LOSS_IN_16_BITS = 4.0
"""Bytes per logit of a loss in 16 bits: a shifted copy of the logits and logarithms,
then these and the gradients of both."""


def _leaves_logits(run: Run) -> bool:
    """Return whether the loss of a run was taken in the 16 bits of its logits.

    DeepSpeed casts a model and has no autocast, which would cast what a loss reads.
    """
    frameworks = VOCABULARY.frameworks
    leaves = is_of(run.config, frameworks.leaves_logits)
    return leaves and is_of(run.config, frameworks.without_autocast)


def _cast_loss_bytes(run: Run) -> float:
    """Return the bytes per logit of the loss of a model in Transformers.

    Its logits are cast to fp32, which up to 4.45 takes the place of those in 16 bits
    (models/llama/modeling_llama.py), and up to 4.48 copied to be shifted
    (loss/loss_utils.py: `ForCausalLMLoss`; pull request 35646). PyTorch's loss keeps
    logarithms beside them; its backward has two gradients beside those. A kernel writes
    the gradient over what it has read, which shifting copies once more.
    """
    said = _TRANSFORMERS.search(run.config.framework)
    since = VOCABULARY.since
    if said is not None:
        version = int(said[1]), int(said[2])
        is_apart, is_copied = version >= (4, 46), version < (4, 49)
    else:
        is_apart, is_copied = run.era >= since.logits_apart, run.era < since.logits_once
    logits = 2.0 * is_apart + 4
    if _fuses_loss_alone(run):
        return logits + 4 * is_copied - 2
    return max(logits + 4 * is_copied + 4, 12) - 2


def _fuses_loss_alone(run: Run) -> bool:
    """Return whether a run has a kernel for the loss that reads whole logits."""
    return "loss" in (run.config.fused or ()) and not run.config.loss_kernel


RECIPE_CHUNKS = 8
"""Parts of the loss of the code bases in `frameworks.chunks_loss`."""


def loss_chunks_of(run: Run) -> int | None:
    """Return the parts of the sequence that the loss took, None if as usual now.

    torchtitan has chunked it since 27 April 2026 (786e26f, pull request 2937); MaxText
    and Paxml, which are priced like it, do not.
    """
    if run.config.loss_chunks is not None:
        return run.config.loss_chunks
    vocab, width = run.model.vocab, run.model.d_model
    if (run.config.loss_kernel or has_liger(run)) and vocab and width:
        # Liger-Kernel ops/fused_linear_cross_entropy.py: `inc_factor`.
        return -(-vocab // width)
    if is_of(run.config, VOCABULARY.frameworks.chunks_loss):
        return RECIPE_CHUNKS
    is_whole = run.era < VOCABULARY.since.chunked_loss or is_xla(run)
    return 1 if is_whole else None
