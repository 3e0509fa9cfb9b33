"""Trains three steps of exported Megatron-LM arguments on CPU; torchrun starts it.

The words are those of `launch.sh`. Groups, model, optimizer, schedule and step are
those of `megatron.training`. What it asks of a GPU is answered by the CPU (`OnDevice`),
and its local layers, PyTorch's norm and attention stand in for Transformer Engine's.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from megatron_on_cpu import (
    OnDevice,
    be_a_gpu,
    counts_of_tokens,
    mark_overrides,
    split_attention,
    stand_in_for_kernels,
    stand_in_for_norms,
    whole_parameters,
    zero_stage,
)

STEPS = 3

ON_CPU = (
    "--transformer-impl", "local", "--distributed-backend", "gloo",
    "--no-rope-fusion", "--no-gradient-accumulation-fusion",
    "--no-persist-layer-norm", "--attention-backend", "unfused",
    "--no-masked-softmax-fusion", "--use-cpu-initialization",
)  # fmt: skip
"""What is said of kernels after the words of the plan, which it overrides."""


def main() -> None:
    """Train, and let each rank print what it holds."""
    be_a_gpu()
    mark_overrides()
    import megatron.training.training as training
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher
    from megatron.training import arguments, global_vars, initialize

    stand_in_for_kernels()
    stand_in_for_norms()
    random.CudaRNGStatesTracker.fork = lambda *_: nullcontext()
    token_dispatcher.maybe_move_tensor_to_cpu = counts_of_tokens
    facts = json.loads(os.environ["FACTS"])
    arguments.get_device_arch_version = lambda: 9
    initialize._compile_dependencies = lambda: None  # an index of data in files
    sys.argv = [*sys.argv, *ON_CPU]
    args = arguments.validate_args(arguments.parse_args(), {})
    args.padded_vocab_size, args.moe_permute_fusion = facts["vocab"], False
    global_vars.set_global_variables(args, build_tokenizer=False)
    torch.distributed.init_process_group("gloo")
    with OnDevice():
        initialize.initialize_megatron(allow_no_cuda=True, skip_random_seed=True)
        torch.manual_seed(1)
        config = arguments.core_transformer_config_from_args(args)
        model, optimizer, rates = training.setup_model_and_optimizer(
            training.ModelType.encoder_or_decoder, partial(_stage, args, config)
        )
        _as_in_training(args, config, model, optimizer)
        losses = _steps(args, config, facts, model, optimizer, rates)
    print("RAN " + json.dumps(_report(model, losses, args)), flush=True)
    torch.distributed.destroy_process_group()


def _as_in_training(args: Any, config: Any, model: Any, optimizer: Any) -> None:
    """Set what `megatron.training.training.train` sets before its first step."""
    from megatron.core.distributed import finalize_model_grads

    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if args.overlap_grad_reduce:
        pauses = [chunk.no_sync for chunk in model]
        config.no_sync_func = pauses if len(pauses) > 1 else pauses[0]


def _stage(args: Any, core: Any, vp_stage: int | None = None, **given: Any) -> Any:
    """Return a chunk of the model, as `pretrain_gpt.py` builds it of local layers."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    layers = get_gpt_decoder_block_spec(
        core, use_transformer_engine=False, vp_stage=vp_stage
    )
    is_tied = not args.untie_embeddings_and_output_weights
    if args.context_parallel_size > 1:
        for layer in layers.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = (
                split_attention()
            )
    return GPTModel(
        core,
        layers,
        args.padded_vocab_size,
        args.max_position_embeddings,
        pre_process=given["pre_process"],
        post_process=given["post_process"],
        share_embeddings_and_output_weights=is_tied,
        position_embedding_type=args.position_embedding_type,
        vp_stage=vp_stage,
        pg_collection=given["pg_collection"],
    )


def _steps(
    args: Any, config: Any, facts: Any, model: Any, optimizer: Any, rates: Any
) -> list[float]:
    import megatron.training.training as training
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    source = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
    run = get_forward_backward_func()
    losses = []
    for step in range(STEPS):
        done = training.train_step(
            partial(_forward, facts, source),
            [None] * len(model) if len(model) > 1 else None,
            model,
            optimizer,
            rates,
            config,
            run,
            iteration=step,
        )
        loss = torch.tensor([float(done[0].get("lm loss", 0))])
        if facts["pp"] > 1:  # of the last stage
            group = parallel_state.get_pipeline_model_parallel_group()
            torch.distributed.all_reduce(loss, group=group)
        losses.append(float(loss))
    return losses


def _forward(facts: Any, source: Any, _batches: Any, model: Any) -> Any:
    """Return the losses of a rank's part of a micro-batch, and how they are summed."""
    from megatron.core import parallel_state
    from megatron.core.utils import get_batch_on_this_cp_rank

    rows, length = facts["micro_batch"], facts["seq_len"]
    tokens = torch.randint(0, 16, (rows, length + 1), generator=source)
    batch = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}
    batch |= {"places": torch.arange(length).expand(rows, -1)}
    if facts["cp"] > 1:
        batch = get_batch_on_this_cp_rank(batch, is_hybrid_cp=False)
    places = batch["places"].contiguous()
    every = [torch.empty_like(places) for _ in range(facts["cp"])]
    group = parallel_state.get_context_parallel_group()
    torch.distributed.all_gather(every, places, group=group)
    mask = torch.cat(every, dim=1)[0] > places[0, :, None]
    labels = batch["labels"].contiguous()
    losses = model(batch["tokens"], places, mask[None, None], labels=labels)

    def summed(losses: Any) -> Any:
        total, count = losses.float().sum(), torch.tensor(losses.numel())
        return total, count.int(), {"lm loss": torch.stack([total.detach(), count])}

    return losses, summed


def _report(model: list[Any], losses: list[float], args: Any) -> dict[str, Any]:
    from megatron.core import parallel_state as state
    from megatron.core.transformer.transformer_layer import TransformerLayer

    tp = state.get_tensor_model_parallel_world_size()
    ep = state.get_expert_model_parallel_world_size()
    layers = [m for chunk in model for m in chunk.modules()]
    return {
        "rank": torch.distributed.get_rank(),
        "backend": torch.distributed.get_backend(),
        "steps": STEPS,
        "losses": losses,
        "degrees": {
            "tp": tp,
            "pp": state.get_pipeline_model_parallel_world_size(),
            "cp": state.get_context_parallel_world_size(),
            "ep": ep,
        },
        "vpp": len(model),
        "whole_below": 3,
        "zero": zero_stage(args),
        "layers": sum(isinstance(layer, TransformerLayer) for layer in layers),
        "parameters": sum(map(whole_parameters, model)),
        "local_parameters": _held(model),
    }


def _held(model: list[Any]) -> int:
    """Return the weights that a rank keeps; Megatron-FSDP gathers more of them."""
    if hasattr(model[0], "param_and_grad_buffer"):
        groups = model[0].param_and_grad_buffer.parameter_groups
        return sum(group.model_weight_buffer.data.numel() for group in groups)
    return sum(p.numel() for chunk in model for p in chunk.parameters())


if __name__ == "__main__":
    main()
