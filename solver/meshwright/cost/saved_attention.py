"""The tensors that attention saves for its backward; see `cost.activations`."""

from __future__ import annotations

from meshwright.cost.parameters_and_flops import kv_width, query_width
from meshwright.cost.saved import Layer, Saved
from meshwright.plans.recomputation import CHEAP, CORE_ATTN, MLA_UP_PROJ, PER_OP
from meshwright.spec.model_parts import LatentAttention


def saved_heads(layer: Layer) -> list[Saved]:
    """Return queries, keys, values and the output of attention."""
    model = layer.model
    queries, keys = query_width(model), kv_width(model)
    tensors = [
        layer.saved("queries", queries, "tensor"),
        *_keys_and_values(layer),
        _attention_output(layer, queries),
        _exchanged_output(layer, queries),
    ]
    if model.output_gate:
        # The gate, and the output before it is gated.
        tensors.append(layer.saved("output gate", 2 * queries, "tensor"))
    if model.qk_norm:
        tensors += layer.norms("query norm", queries, 1, 1, "tensor")
        tensors += layer.norms("key norm", keys, 1, 1, "kv")
    return tensors


def _attention_output(layer: Layer, width: float) -> Saved:
    """Return the input of the last matmul, which a flash kernel saves once more."""
    if not layer.flash:
        size = layer.matmul_input("o_proj") * width
        return Saved("attention output", size, "tensor", 0)
    cast = layer.cast if layer.adapted is None else 0
    return Saved("attention output", (layer.element + cast) * width, "tensor", 0)


def _exchanged_output(layer: Layer, width: float) -> Saved:
    """Return the output of attention before an all-to-all gives tokens for heads.

    The kernel saves it, and the last matmul what the all-to-all made of it
    (Transformer Engine 2.11, context_parallel.py, `AttnFuncWithCPAndQKVOA2A`).
    """
    return Saved("attention output by heads", layer.element * width, "swapped", 0)


def _keys_and_values(layer: Layer) -> list[Saved]:
    """Return keys and values, which plain attention repeats for its query heads.

    A flash kernel reads each key and value for a group of queries. Recomputation of
    plain attention starts before they are repeated. Where context parallelism gathers
    them, attention saves those of the whole sequence (torchtitan 0.3.0
    distributed/context_parallel/api.py: apply_cp_to_forward).
    """
    model = layer.model
    name, width = "keys and values", 2 * kv_width(model)
    if layer.flash or model.n_kv_heads == model.n_heads:
        return [layer.saved(name, width, "keys")]
    repeated = 2 * layer.element * query_width(model)
    core, kept = CORE_ATTN | CHEAP, layer.element * width
    return [
        Saved(name, 0.0, "keys", core, kept),
        Saved(f"repeated {name}", repeated, "tensor", core | PER_OP),
    ]


def saved_latents(layer: Layer, mla: LatentAttention) -> list[Saved]:
    """Return what latent attention saves (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Every GPU of a tensor-parallel group compresses only its tokens. Where norms run
    with the matmul after them, so do those of latents. Values come in one tensor with
    the keys that are not rotated: Megatron-LM's fused rotary kernel copies them out,
    torchtitan keeps the whole tensor. The same holds for compressed values and the keys
    to rotate.
    """
    heads, ranks = layer.model.n_heads, mla.q_rank + mla.kv_rank
    values = mla.v_dim + (0 if "rope" in layer.fused else mla.nope_dim)
    queries, up = query_width(layer.model), MLA_UP_PROJ
    normed = up if layer.joins_norms else 0
    tensors = [
        layer.saved("queries and keys", 2 * queries, "tensor", up),
        layer.saved("values", heads * values, "tensor", up),
        _attention_output(layer, heads * mla.v_dim),
        _exchanged_output(layer, heads * mla.v_dim),
        *layer.norms("latent norm", ranks, 1, 1, "sequence"),
        *_normed_latents(layer, mla, normed),
    ]
    if not layer.norms_in_fp32:
        tensors.append(layer.saved("keys to rotate", mla.rope_dim, "sequence"))
    return tensors


def _normed_latents(layer: Layer, mla: LatentAttention, freed_by: int) -> list[Saved]:
    """Return the inputs of the projections from latents to heads."""
    name, bits = "normed latents", freed_by | PER_OP
    if layer.adapted is None:
        size = (mla.q_rank + mla.kv_rank) * layer.matmul_input()
        return [Saved(name, size, "sequence", bits)]
    size = mla.q_rank * layer.matmul_input("q_proj")
    size += mla.kv_rank * layer.matmul_input("k_proj", "v_proj")
    return [Saved(name, size, "whole", bits)]


def saved_scores(layer: Layer) -> list[Saved]:
    """Return what the softmax saves: scores, or statistics of a flash kernel."""
    heads, element = layer.model.n_heads, layer.element
    if layer.flash:
        # One fp32 logarithm per row of scores (Dao 2023, section 3.1.1).
        return [Saved("softmax statistics", 4 * heads, "tensor", 0)]
    scores, core = heads * layer.seq_len, CORE_ATTN | CHEAP
    tensors = [Saved("softmax output", element * scores, "tensor", core)]
    if layer.model.dropout:
        dropped = (element + 1) * scores
        tensors.append(
            Saved("score dropout and mask", dropped, "tensor", core | PER_OP)
        )
    return tensors
