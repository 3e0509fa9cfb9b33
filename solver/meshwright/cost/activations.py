"""The tensors that a layer saves for its backward, one by one.

With plain attention, dropout, n_kv_heads = n_heads and d_ff = 4 d_model these add up
to Korthikanti et al. 2022, eq. 1 (34 + 5 a s / h bytes per token and width), eq. 2
under tensor and eq. 4 under sequence parallelism. They are compared with what PyTorch
saves in `tests/cost/test_torch_activations.py`. Tensors without a width are left out:
statistics of norms (4 to 8 bytes per token each) and indices of routed tokens.

Selective recomputation repeats the core of plain attention, which frees the scores
(Korthikanti et al. 2022, section 5). A flash kernel saves no scores: there it repeats
norms before matmuls, and activation functions. A framework may declare otherwise
(`Framework.selective`). What frameworks call selective recomputation:

- Megatron-LM (`TransformerConfig.recompute_modules`): the default `core_attn` is the
  first case; with a flash kernel it frees only softmax statistics. The second case is
  `layernorm` and, for experts, `moe_act`; a dense MLP has only `mlp`, which repeats its
  matmuls too.
- torchtitan (`SelectiveAC`): keeps the results of attention and of every second
  matmul, and repeats all else: less memory than here, and more time.
- DeepSpeed and FSDP recompute the modules that the user wraps.
"""

from __future__ import annotations

import numpy as np

from meshwright.cost.parameters_and_flops import (
    input_norms,
    kv_shards,
    kv_width,
    output_norms,
    query_width,
)
from meshwright.cost.saved import Layer, Saved
from meshwright.cost.state import fp8_input_bytes
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Floats
from meshwright.plans.precision import ELEMENT_BYTES
from meshwright.plans.shards import Shards
from meshwright.spec.model import Experts, LatentAttention
from meshwright.spec.spec import Spec


def saved_tensors(spec: Spec, is_dense: bool) -> list[Saved]:
    """Return the tensors that a layer saves; `is_dense` if it has no experts."""
    model, layer = spec.model, _layer(spec)
    tensors = _norms(layer)
    tensors += _latents(layer, model.mla) if model.mla else _heads(layer)
    tensors += _scores(layer)
    if model.moe is None or is_dense:
        tensors += layer.mlp("mlp", model.d_ff, "tensor")
    else:
        tensors += _experts(layer, model.moe)
    if model.dropout:
        masks = 2 * model.d_model
        tensors.append(Saved("residual dropout masks", masks, "sequence", masks))
    return tensors


def _layer(spec: Spec) -> Layer:
    """Return the implementation of the layers of a spec."""
    training = spec.training
    return Layer(
        spec.model,
        ELEMENT_BYTES[training.precision],
        fp8_input_bytes(spec),
        training.seq_len,
        training.attention == "flash",
        training.fused_kernels or framework_of(spec).fused_kernels,
    )


def _norms(layer: Layer) -> list[Saved]:
    """Return what the norms of a layer and the matmuls after them save.

    Parallel attention and MLP both read the layer's input, so that their norms save one
    tensor. The results of norms after them are only added, and not saved.
    """
    model, width = layer.model, layer.model.d_model
    before, after = input_norms(model), output_norms(model)
    inputs = 1 if model.parallel_residual else before
    return [
        *layer.input_norms("norm", width, before, inputs, "sequence"),
        layer.cheap("norm output", before * width * layer.matmul_input, "sequence"),
        *layer.norms("output norm", width, after, after, "sequence"),
    ]


def _heads(layer: Layer) -> list[Saved]:
    """Return queries, keys, values and the output of attention."""
    model = layer.model
    queries, keys = query_width(model), kv_width(model)
    tensors = [
        layer.saved("queries", queries, "tensor"),
        *_keys_and_values(layer),
        _attention_output(layer, queries),
    ]
    if model.qk_norm:
        tensors += layer.norms("query norm", queries, 1, 1, "tensor")
        tensors += layer.norms("key norm", keys, 1, 1, "kv")
    return tensors


def _attention_output(layer: Layer, width: float) -> Saved:
    """Return the input of the last matmul, which a flash kernel saves once more."""
    if not layer.flash:
        return layer.matmul_only("attention output", width, "tensor")
    size = (layer.element + layer.cast) * width
    return Saved("attention output", size, "tensor", size)


def _keys_and_values(layer: Layer) -> list[Saved]:
    """Return keys and values, which plain attention repeats for its query heads.

    A flash kernel reads each key and value for a group of queries. Recomputation of
    plain attention starts before they are repeated. Where context parallelism gathers
    them, attention saves those of the whole sequence (torchtitan 0.3.0
    distributed/context_parallel/api.py: apply_cp_to_forward).
    """
    model = layer.model
    unrepeated = layer.saved("keys and values", 2 * kv_width(model), "keys")
    if layer.flash or model.n_kv_heads == model.n_heads:
        return [unrepeated]
    repeated = 2 * layer.element * query_width(model)
    return [
        Saved(unrepeated.name, 0.0, "keys", unrepeated.kept_per_token),
        Saved("repeated keys and values", repeated, "tensor", 0.0),
    ]


def _latents(layer: Layer, mla: LatentAttention) -> list[Saved]:
    """Return what latent attention saves (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Every GPU of a tensor-parallel group compresses only its tokens. Values come in one
    tensor with the keys that are not rotated: Megatron-LM copies them out, torchtitan
    keeps the whole tensor. The same holds for compressed values and the keys to rotate.
    """
    heads, ranks = layer.model.n_heads, mla.q_rank + mla.kv_rank
    values = mla.v_dim + (0 if layer.fused == "all" else mla.nope_dim)
    tensors = [
        layer.saved("queries and keys", 2 * query_width(layer.model), "tensor"),
        layer.saved("values", heads * values, "tensor"),
        _attention_output(layer, heads * mla.v_dim),
        *layer.norms("latent norm", ranks, 1, 1, "sequence"),
        layer.matmul_only("normed latents", ranks, "sequence"),
    ]
    if not layer.norms_in_fp32:
        tensors.append(layer.saved("keys to rotate", mla.rope_dim, "sequence"))
    return tensors


def _scores(layer: Layer) -> list[Saved]:
    heads, element = layer.model.n_heads, layer.element
    if layer.flash:
        # One fp32 logarithm per row of scores (Dao 2023, section 3.1.1).
        statistics = 4 * heads
        return [Saved("softmax statistics", statistics, "tensor", statistics)]
    scores = heads * layer.seq_len
    tensors = [Saved("softmax output", element * scores, "tensor", 0.0)]
    if layer.model.dropout:
        dropped = (element + 1) * scores
        tensors.append(Saved("score dropout and mask", dropped, "tensor", 0.0))
    return tensors


def _experts(layer: Layer, moe: Experts) -> list[Saved]:
    """Return what router, routed and shared experts save, with tokens routed evenly.

    Each token of a GPU goes to top_k experts, which tensor parallelism does not split.
    Megatron-LM weights tokens by the router's fp32 probabilities in the activation;
    torchtitan weights the results of experts in fp32, and saves those.
    """
    copies = moe.top_k * (moe.capacity_factor or 1.0)
    width = copies * layer.model.d_model
    probabilities = 4 * moe.n_experts
    tensors = [
        Saved("router probabilities", probabilities, "sequence", probabilities),
        layer.matmul_only("expert inputs", width, "sequence"),
        *layer.mlp("expert", copies * moe.d_ff, "sequence"),
        *layer.mlp("shared expert", moe.shared_d_ff, "tensor"),
    ]
    if layer.fused != "all":
        tensors.append(Saved("expert outputs, fp32", 4 * width, "sequence", 4 * width))
    return tensors


def layer_input_bytes(spec: Spec, shards: Shards) -> Floats:
    """Return the bytes per token of a layer's input: what full recomputation keeps."""
    element = ELEMENT_BYTES[spec.training.precision]
    return element * spec.model.d_model / shards.sequence_shards


def saved_bytes(spec: Spec, shards: Shards, selective: bool) -> Floats:
    """Return the bytes per token that one layer saves on one GPU."""
    return _on_one_gpu(spec, saved_tensors(spec, False), shards, selective)


def dense_saved_bytes(spec: Spec, shards: Shards, selective: bool) -> Floats:
    """Return the bytes per token of a leading layer, whose MLP is dense."""
    return _on_one_gpu(spec, saved_tensors(spec, True), shards, selective)


def _on_one_gpu(
    spec: Spec, tensors: list[Saved], shards: Shards, selective: bool
) -> Floats:
    kv = kv_shards(spec.model, shards.tp)
    is_gathered = framework_of(spec).context_exchange == "gather"
    splits = {
        "tensor": shards.tp,
        "kv": kv,
        "keys": kv / shards.cp if is_gathered else kv,
        "sequence": shards.sequence_shards,
    }
    result = np.zeros(len(shards))
    for tensor in tensors:
        size = _kept(spec, tensor) if selective else tensor.bytes_per_token
        result = result + size / splits[tensor.split]
    return result


def _kept(spec: Spec, tensor: Saved) -> float:
    """Return the bytes per token of a tensor that selective recomputation keeps."""
    selective = framework_of(spec).selective
    if selective is None:
        return tensor.kept_per_token
    return 0.0 if tensor.name in selective.frees else tensor.bytes_per_token
