"""What Megatron-LM checks after its arguments: groups, layers, messages, schedule.

The model is built on the meta device for the first rank of as many as the plan has;
messages between ranks go nowhere.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from common import Launch
from megatron_on_cpu import OnDevice, be_a_gpu, stand_in_for_norms


class PassedError(Exception):
    """The checks of a schedule are behind it."""


def start(args: Any, model: Any, microbatches: int) -> None:
    """Embed a micro-batch in the first stage, and enter the schedule."""
    from megatron.core.models.common.embeddings import language_model_embedding

    tokens = torch.zeros(
        args.micro_batch_size, args.seq_length, dtype=torch.long, device="meta"
    )
    # Dropout takes its random state from a GPU; there is none, and none is drawn.
    language_model_embedding.tensor_parallel.get_cuda_rng_tracker = _NoTracker
    found = tokens.chunk(args.context_parallel_size, dim=1)[0]
    model.embedding(found, found)
    if args.virtual_pipeline_model_parallel_size:
        _enter_schedule(args, model, microbatches)


def build(job: Launch, args: Any, config: Any) -> Any:
    """Make the groups of a plan, and return its first stage without weights."""
    make_groups(job.gpus, args, args.num_distributed_optimizer_instances)
    with without_weights(config):
        return _model(args, config)


def make_groups(gpus: int, degrees: Any, instances: int) -> None:
    """Make the groups of the first of all ranks, between which nothing is sent."""
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group(
        "fake", rank=0, world_size=gpus, store=FakeStore()
    )
    parallel_state.initialize_model_parallel(
        degrees.tensor_model_parallel_size,
        degrees.pipeline_model_parallel_size,
        degrees.virtual_pipeline_model_parallel_size,
        context_parallel_size=degrees.context_parallel_size,
        expert_model_parallel_size=degrees.expert_model_parallel_size,
        expert_tensor_parallel_size=degrees.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=instances,
        create_gloo_process_groups=False,
    )


@contextlib.contextmanager
def without_weights(config: Any) -> Iterator[None]:
    """Build what a configuration says on the meta device, of Megatron's own layers."""
    config.perform_initialization = config.moe_grouped_gemm = False
    config.gradient_accumulation_fusion = False  # a kernel of Apex
    stand_in_for_norms()
    be_a_gpu()
    with OnDevice("meta"), torch.device("meta"):
        yield


def local_layers(config: Any, vp_stage: int | None = None) -> Any:
    """Return the layers of a stage that need no Transformer Engine."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    spec = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, vp_stage=vp_stage
    )
    for layer in spec.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = _NoAttention
    return spec


class _NoTracker:
    """A tracker of random states that has none."""

    def fork(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that changes nothing."""
        return contextlib.nullcontext()


class _NoAttention(torch.nn.Module):
    """What has no weights: attention between its projections."""

    def __init__(self, **_given: Any) -> None:
        super().__init__()


def _model(args: Any, config: Any) -> Any:
    from megatron.core.models.gpt import GPTModel

    chunk = 0 if args.virtual_pipeline_model_parallel_size else None
    is_tied = not args.untie_embeddings_and_output_weights
    is_whole = args.pipeline_model_parallel_size == 1
    return GPTModel(
        config,
        local_layers(config, chunk),
        args.padded_vocab_size or args.vocab_size,
        args.max_position_embeddings,
        post_process=is_whole,
        share_embeddings_and_output_weights=is_tied,
        position_embedding_type=args.position_embedding_type,
        vp_stage=chunk,
    )


def _enter_schedule(args: Any, model: Any, microbatches: int) -> None:
    """Call the interleaved schedule, up to its first forward pass."""
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
