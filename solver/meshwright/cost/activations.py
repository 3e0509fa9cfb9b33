"""The tensors that a layer saves for its backward, one by one, and their bytes.

Selective recomputation by operations, as torchtitan has it (`SelectiveAC`), keeps the
results of some matmuls and repeats the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from meshwright.cost.attention import saved_state_space
from meshwright.cost.job import expert_exchange
from meshwright.cost.parameters_and_flops import (
    expert_width,
    input_norms,
    kv_projected,
    kv_shards,
    latent_down_width,
    latent_up_width,
    output_norms,
    output_width,
    query_width,
)
from meshwright.cost.roofline import Work
from meshwright.cost.saved import (
    Layer,
    Saved,
    Split,
    saved_by_indexer,
    saved_heads,
    saved_latents,
    saved_picks,
    saved_scores,
)
from meshwright.cost.state import (
    expert_imbalance,
    fp8_input_bytes,
    stream_bytes,
    trains_ends,
)
from meshwright.cost.weights import adapters, saved_by
from meshwright.frameworks.base.registry import (
    context_exchange_of,
    expert_limit_saved,
    framework_of,
    fused_of,
    has_norm_apart,
    holds_heads,
    joins_norms,
    weights_experts_apart,
)
from meshwright.plans.columns import Floats, Ints
from meshwright.plans.skeletons import (
    LAYERNORM,
    MLP,
    MOE,
    MOE_ACT,
    PER_OP,
    SHARED_EXPERTS,
    Shards,
)
from meshwright.spec.model import Model
from meshwright.spec.model_parts import Experts, LatentAttention
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import TokenExchange


def saved_tensors(spec: Spec, is_dense: bool) -> list[Saved]:
    """Return the tensors that a layer saves; `is_dense` if it has no experts."""
    model, layer = spec.model, layer_of(spec)
    is_dense = is_dense or model.moe is None
    tensors = _norms(layer, is_dense, norm_bits(spec, is_dense))
    tensors += _mixer(layer, spec.training.indexer_loss != "none")
    if model.moe is None or is_dense:
        tensors += layer.mlp("mlp", model.d_ff, "tensor", MLP, 0) if model.d_ff else []
    else:
        tensors += _experts(layer, model.moe)
    if model.dropout:
        masks = 2 * model.d_model
        tensors.append(Saved("residual dropout masks", masks, "sequence"))
    if spec.training.lora is not None:
        lora, element = spec.training.lora, layer.element
        for adapter in adapters(model, lora, is_dense):
            tensors += saved_by(adapter, element, lora)
    return [*tensors, *kept_per_op(layer, is_dense)]


def _mixer(layer: Layer, trains_indexer: bool) -> list[Saved]:
    """Return the tensors that attention, or the mixer in its place, saves."""
    model = layer.model
    if model.mixer == "attention":
        return [*_heads(layer, trains_indexer), *saved_scores(layer)]
    mixer = model.mixing_space
    return [] if mixer is None else saved_state_space(layer, mixer)


def _heads(layer: Layer, trains_indexer: bool) -> list[Saved]:
    """Return the tensors of attention but for those of its softmax."""
    mla, indexer = layer.model.mla, layer.model.indexer
    if mla is None:
        return saved_heads(layer)
    if mla.indexer is None:
        return saved_latents(layer, mla)
    tensors = saved_picks(layer, mla, mla.indexer)
    if indexer is not None and trains_indexer:
        tensors += saved_by_indexer(layer, indexer)
    return tensors


def norm_bits(spec: Spec, is_dense: bool) -> tuple[int, int]:
    """Return the modules that repeat the norm before attention, and before the MLP."""
    apart = [
        has_norm_apart(spec, before_mlp=at, is_dense=is_dense) for at in (False, True)
    ]
    return LAYERNORM * apart[0], LAYERNORM if apart[1] else MLP


def layer_of(spec: Spec) -> Layer:
    """Return the implementation of the layers of a spec."""
    training, lora = spec.training, spec.training.lora
    return Layer(
        spec.model,
        stream_bytes(spec),
        fp8_input_bytes(spec),
        training.seq_len,
        not training.stores_scores,
        fused_of(spec),
        joins_norms(spec),
        None if lora is None else lora.projections,
        0 if lora is None else lora.keeps_inputs * (1 + lora.keeps_graph),
        lora is not None and lora.dropout,
        training.fp8_activation_inputs,
        expert_limit_saved(spec),
        _weighted_result_bytes(spec),
        holds_heads(spec),
        training.mlp_chunks,
    )


def _weighted_result_bytes(spec: Spec) -> int:
    """Return the bytes of a number of what experts return, 0 where it is not saved.

    The gradient of the router's weights needs it, unless the activation of experts
    weights. PyTorch's operations save it in fp32, a compiler as it was before the cast,
    and torchtitan weights what DeepEP sends back in 16 bits (b5bcd76c6,
    distributed/deepep/deepep.py: `combine_tokens`).
    """
    if framework_of(spec).has_torch_experts:
        return 4 if weights_experts_apart(spec) else stream_bytes(spec)
    return 0 if "activation" in fused_of(spec) else 4


def _norms(layer: Layer, is_dense: bool, freed_by: tuple[int, int]) -> list[Saved]:
    """Return the tensors that the norms of a layer and the matmuls after them save.

    Parallel attention and MLP both read the layer's input, so that their norms save one
    tensor. The results of norms after them are only added, and not saved.
    """
    model, width = layer.model, layer.model.d_model
    before, after = input_norms(model), output_norms(model)
    inputs = 1 if model.parallel_residual else before
    outputs = zip(_norm_readers(layer, is_dense), freed_by, strict=True)
    # An adapter reads the tokens of all its group, after they were gathered.
    split: Split = "sequence" if layer.adapted is None else "whole"
    return [
        *layer.input_norms("norm", width, before, inputs, "sequence"),
        *(
            layer.cheap(f"{name} norm output", width * size, split, bits)
            for (name, size), bits in list(outputs)[:before]
        ),
        *layer.norms("output norm", width, after, after, "sequence"),
    ]


def _norm_readers(layer: Layer, is_dense: bool) -> list[tuple[str, int]]:
    """Return who reads the results of norms, and the bytes per number for each.

    Where there is one norm, attention and MLP read the same. The router has no adapter.
    """
    model = layer.model
    is_attention = model.mixer == "attention"
    heads = ("q_proj", "k_proj", "v_proj") if is_attention else ("in_proj",)
    has_mlp = is_dense or (model.moe is not None and model.moe.shared_d_ff > 0)
    mlp = ("gate_proj", "up_proj") if has_mlp else ()
    one = heads + mlp if input_norms(model) == 1 else heads
    return [
        ("attention", layer.matmul_input(*one)),
        ("mlp", layer.matmul_input(*mlp)),
    ]


def _experts(layer: Layer, moe: Experts) -> list[Saved]:
    """Return the tensors of router and experts, shared ones too, on the fullest GPU.

    Each token of a GPU goes to top_k experts. All GPUs that split an expert have its
    tokens whole, and a part of what is inside.
    Megatron-LM weights tokens by the router's fp32 probabilities in the activation.
    """
    copies = moe.copies_per_token
    width = copies * expert_width(layer.model, moe)
    routed, shared, all_of_it = copies * moe.d_ff, moe.shared_d_ff, MOE | PER_OP
    limited, active = layer.limited * layer.element * routed, MOE | MOE_ACT
    tensors = [
        Saved("router probabilities", 4 * moe.n_experts, "sequence", all_of_it),
        Saved("expert inputs", layer.matmul_input() * width, "routed", all_of_it),
        *layer.mlp("expert", routed, "routed inner", MOE, MOE_ACT),
        layer.cheap("limited by operations", limited, "routed inner", active),
        *layer.mlp("shared expert", shared, "tensor", MOE | SHARED_EXPERTS, 0),
    ]
    if layer.weighted_results:
        size = layer.weighted_results * width
        tensors.append(Saved("expert outputs", size, "routed", all_of_it))
    return tensors


class Linear(NamedTuple):
    """A matmul with a weight: its widths, and how tensor parallelism splits it."""

    inputs: int
    outputs: int
    split: Split
    """How the result is split; `whole` where the inputs are split instead."""
    kv_outputs: int = 0
    """Further outputs, split by key and value heads."""
    has_bias: bool = False

    def kept(self, layer: Layer) -> Iterator[Saved]:
        """Yield the result, where layers are recomputed by operations."""
        size, kv_size = layer.element * self.outputs, layer.element * self.kv_outputs
        yield Saved("matmul result", 0.0, self.split, PER_OP, size)
        yield Saved("keys and values", 0.0, "kv", PER_OP, kv_size)

    def seconds(self, work: Work) -> Floats:
        """Return the seconds of the matmul on one GPU."""
        tp, linear_s = work.shards.tp, work.gpu.linear_s
        if self.split == "sequence":
            return linear_s(work.gpu_tokens, self.outputs, self.inputs)
        if self.split == "whole":
            return linear_s(work.tokens, self.outputs, self.inputs / tp)
        keys_and_values = self.kv_outputs / kv_shards(work.model, tp)
        outputs = self.outputs / tp + keys_and_values
        return linear_s(work.tokens, outputs, self.inputs)


def linears(model: Model, is_dense: bool) -> list[Linear]:
    """Return the matmuls of a layer with a weight, in the order in which they run."""
    mlp = model.d_ff if is_dense or model.moe is None else model.moe.shared_d_ff
    into = Linear(model.d_model, mlp, "tensor", has_bias=model.has_mlp_bias)
    ins = [into] * (2 if model.gated_mlp else 1)
    out = Linear(mlp, model.d_model, "whole", has_bias=model.has_mlp_bias)
    return [*_attention(model), *([*ins, out] if mlp else [])]


def _per_op(matmuls: list[Linear]) -> tuple[list[Linear], list[Linear]]:
    """Return the matmuls whose results stay, and every second one, which is repeated.

    Those with a bias are another operation, `addmm`: their results stay, and they do
    not count (torchtitan b5bcd76c6, distributed/activation_checkpoint.py,
    `SelectiveAC`).
    """
    plain = [one for one in matmuls if not one.has_bias]
    return [*(one for one in matmuls if one.has_bias), *plain[::2]], plain[1::2]


def _attention(model: Model) -> list[Linear]:
    width = model.d_model
    if model.mixer != "attention":
        return _state_space(model)
    out = Linear(output_width(model), width, "whole", has_bias=model.has_output_bias)
    if model.mla is not None:
        return [*_latents(model, model.mla), out]
    queries = query_width(model) * (2 if model.output_gate else 1)
    keys, has_bias = kv_projected(model), model.has_query_bias
    return [Linear(width, queries, "tensor", keys, has_bias), out]


def _state_space(model: Model) -> list[Linear]:
    mixer = model.mixing_space
    if mixer is None:
        return []
    out = Linear(mixer.inner, model.d_model, "whole")
    return [Linear(model.d_model, mixer.input_width, "tensor"), out]


def _latents(model: Model, mla: LatentAttention) -> list[Linear]:
    width, queries = model.d_model, query_width(model)
    down = Linear(width, latent_down_width(model), "sequence")
    up = Linear(mla.kv_rank, latent_up_width(model), "tensor")
    if not mla.q_rank:
        return [Linear(width, queries, "tensor"), down, up]
    to_queries = Linear(mla.q_rank, queries, "tensor")
    return [Linear(width, mla.q_rank, "sequence"), to_queries, down, up]


def kept_per_op(layer: Layer, is_dense: bool) -> list[Saved]:
    """Return the tensors kept beside attention where operations are recomputed.

    These are tensors that a layer which is not recomputed does not save.
    """
    model, size = layer.model, layer.element * layer.model.d_model
    kept = [Saved("layer input", 0.0, "sequence", PER_OP, size)]
    matmuls = linears(model, is_dense)
    for linear in _per_op(matmuls)[0]:
        kept += linear.kept(layer)
    scattered = sum(linear.split == "whole" for linear in matmuls)
    kept.append(Saved("scattered results", 0.0, "scattered", PER_OP, scattered * size))
    if model.moe is not None and not is_dense:
        # Tokens that have come to their experts, and their results that have come back.
        sent = model.moe.copies_per_token * size
        kept.append(Saved("tokens that came", 0.0, "arrived", PER_OP, sent))
        kept.append(Saved("results that came", 0.0, "returned", PER_OP, sent))
    return kept


def repeated_matmuls_s(work: Work, is_dense: bool) -> Floats:
    """Return the seconds of the matmuls with a weight that are repeated."""
    seconds = np.zeros(len(work.shards))
    for linear in _per_op(linears(work.model, is_dense))[1]:
        seconds = seconds + linear.seconds(work)
    return seconds


def head_saved_bytes(spec: Spec, shards: Shards) -> Floats:
    """Return the bytes per token that the final norm and the head save on one GPU.

    The matmul of the head is never in 8 bits. A frozen head needs no input for its
    gradient.
    """
    layer, width = layer_of(spec), spec.model.d_model
    tensors = layer.norms("final norm", width, 1, 1, "sequence")
    if trains_ends(spec):
        tensors = [*tensors, layer.saved("head input", width, "sequence")]
    return on_one_gpu(tensors, spec, shards)


def mtp_saved_bytes(spec: Spec, shards: Shards) -> Floats:
    """Return the bytes per token that joining the stream with an embedding saves."""
    layer, width = layer_of(spec), spec.model.d_model
    tensors = layer.norms("joined norms", width, 2, 2, "sequence")
    joined = Saved("joined input", 2 * width * layer.matmul_input(), "sequence")
    return on_one_gpu([*tensors, joined], spec, shards)


def layer_input_bytes(spec: Spec, shards: Shards) -> Floats:
    """Return the bytes per token of a layer's input: what full recomputation keeps."""
    is_split = spec.training.partition_activations
    parts = shards.tp if is_split else shards.sequence_shards
    return stream_bytes(spec) * spec.model.d_model / parts


def saved_bytes(
    spec: Spec, shards: Shards, repeated: Ints | int = 0, *, is_dense: bool = False
) -> Floats:
    """Return the bytes per token that one layer saves on one GPU.

    `repeated` is what is recomputed of it, as bits.
    """
    return on_one_gpu(saved_tensors(spec, is_dense), spec, shards, repeated)


WEIGHTING_BYTES = 12
"""Bytes per number of the results of experts in the backward of their weighting, beside
what the layer saves: in fp32 their gradient, that of the results before, and the
products whose sums are the gradients of the weights (torchtitan b5bcd76c6,
models/common/token_dispatcher.py: `combine`)."""


def weighting_bytes(spec: Spec, shards: Shards) -> Floats:
    """Return the bytes per token in which the backward weights the results of experts.

    It is 0 where a kernel weights them that does more.
    """
    moe = spec.model.moe
    if moe is None or not weights_experts_apart(spec):
        return np.zeros(len(shards))
    width = moe.copies_per_token * expert_width(spec.model, moe)
    tensors = [Saved("weighted results", WEIGHTING_BYTES * width, "routed", 0)]
    return on_one_gpu(tensors, spec, shards)


def on_one_gpu(
    tensors: list[Saved], spec: Spec, shards: Shards, repeated: Ints | int = 0
) -> Floats:
    """Return the bytes per token of tensors of which parts are repeated, as bits."""
    sequence, kv = shards.sequence_shards, kv_shards(spec.model, shards.tp)
    exchange = context_exchange_of(spec)
    is_gathered, is_swapped = exchange == "gather", exchange == "ulysses"
    inner = sequence / np.where(shards.ep > 1, expert_imbalance(spec), 1.0)
    routed = inner / shards.etp
    splits: dict[Split, Floats | Ints] = {
        "tensor": shards.tp,
        "kv": kv,
        "keys": kv / shards.cp if is_gathered else kv,
        "gathered": np.where((shards.cp > 1) & is_gathered, kv / shards.cp, np.inf),
        "all keys": 1 / shards.cp if is_gathered else np.ones(1),
        "sequence": sequence,
        "whole": np.ones(1),
        "scattered": np.where(shards.tp > 1, sequence, np.inf),
        "swapped": np.where((shards.cp > 1) & is_swapped, shards.tp, np.inf),
        "routed": routed,
        "routed inner": inner,
    }
    bits, result = np.asarray(repeated), np.zeros(len(shards))
    every = int(np.bitwise_or.reduce(bits, axis=None))
    if every & PER_OP:
        splits |= _sent(spec, shards, sequence, routed)
    # Few sums are divided, since columns are long and tensors many.
    sums: dict[tuple[Split, int], tuple[float, float]] = {}
    for tensor in tensors:
        key = tensor.split, tensor.freed_by & every
        if not key[1] and not tensor.bytes_per_token:
            continue  # what only recomputation keeps
        whole, kept = sums.get(key, (0.0, 0.0))
        sums[key] = whole + tensor.bytes_per_token, kept + tensor.kept_per_token
    for (split, freed_by), (whole, kept) in sums.items():
        size = np.where(bits & freed_by, kept, whole) if freed_by else whole
        result = result + size / splits[split]
    return result


def _sent(
    spec: Spec, shards: Shards, sequence: Ints, routed: Floats
) -> dict[Split, Floats]:
    """Return what divides copies of tokens that came to experts, and that came back.

    Copies come back one by one, but DeepEP sends a token once to each GPU with experts
    of it, and adds up what these return.
    """
    moe, exchange = spec.model.moe, expert_exchange(spec)
    arrived: Floats = routed
    returned: Floats = routed
    if moe is not None and isinstance(exchange, TokenExchange):
        gpus = exchange.with_experts(shards.ep)[..., 0]
        arrived = np.asarray(routed * moe.copies_per_token / gpus)
        returned = np.asarray(sequence * moe.copies_per_token)
    is_sent = shards.expert_gpus > 1
    return {
        "arrived": np.where(is_sent, arrived, np.inf),
        "returned": np.where(is_sent, returned, np.inf),
    }
