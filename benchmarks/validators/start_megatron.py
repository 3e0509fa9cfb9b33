"""What Megatron-LM checks after its arguments: groups, layers, messages, schedule.

Small models are built on CPU for the first rank of as many as the plan has; messages
between ranks go nowhere.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any

from common import Launch


class PassedError(Exception):
    """The checks of a schedule are behind it."""


def start(job: Launch, args: Any, config: Any, microbatches: int) -> None:
    """Make groups, build the first stage, embed a micro-batch, enter the schedule."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings import language_model_embedding
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group(
        "fake", rank=0, world_size=job.gpus, store=FakeStore()
    )
    chunks = args.virtual_pipeline_model_parallel_size
    parallel_state.initialize_model_parallel(
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        chunks,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
        create_gloo_process_groups=False,
    )
    config.use_cpu_initialization = True
    # PyTorch's attention and norm stand in for Transformer Engine's, which are split.
    config.context_parallel_size = 1
    WrappedTorchNorm.__new__ = _norm
    model = _model(args, config)
    tokens = torch.zeros(args.micro_batch_size, args.seq_length, dtype=torch.long)
    torch.cuda.current_device = lambda: "cpu"
    # Dropout takes its random state from a GPU; there is none, and none is drawn.
    language_model_embedding.tensor_parallel.get_cuda_rng_tracker = _NoTracker
    own = tokens.chunk(args.context_parallel_size, dim=1)[0]
    model.embedding(own, own)
    if chunks:
        _enter_schedule(args, model, microbatches)


class _NoTracker:
    """A tracker of random states that has none."""

    def fork(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that changes nothing."""
        return contextlib.nullcontext()


def _norm(_class: Any, config: Any, hidden_size: int, **_others: Any) -> Any:
    import torch

    return torch.nn.RMSNorm(hidden_size)


def _model(args: Any, config: Any) -> Any:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
    )

    chunk = 0 if args.virtual_pipeline_model_parallel_size else None
    spec = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, vp_stage=chunk
    )
    is_tied = not args.untie_embeddings_and_output_weights
    is_whole = args.pipeline_model_parallel_size == 1
    return GPTModel(
        config,
        spec,
        args.padded_vocab_size or args.vocab_size,
        args.max_position_embeddings,
        post_process=is_whole,
        share_embeddings_and_output_weights=is_tied,
        position_embedding_type=args.position_embedding_type,
        vp_stage=chunk,
    )


def _enter_schedule(args: Any, model: Any, microbatches: int) -> None:
    """Call the interleaved schedule, up to its first forward pass."""
    import torch
    from megatron.core.pipeline_parallel import schedules

    def passed(*_: Any) -> None:
        raise PassedError

    schedules.get_model_type = passed
    schedules.torch = types.SimpleNamespace(
        **{**vars(torch), "zeros": lambda *shape, **_: torch.empty(0)}
    )
    count = args.virtual_pipeline_model_parallel_size
    try:
        schedules.forward_backward_pipelining_with_interleaving(
            forward_step_func=passed,
            data_iterator=[None] * count,
            model=[model] * count,
            num_microbatches=microbatches,
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
        )
    except PassedError:
        return
