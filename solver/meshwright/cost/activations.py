"""The tensors that a layer saves for its backward, one by one.

With plain attention, dropout, n_kv_heads = n_heads and d_ff = 4 d_model these add up
to Korthikanti et al. 2022, eq. 1 (34 + 5 a s / h bytes per token and width), eq. 2
under tensor and eq. 4 under sequence parallelism. They are compared with what PyTorch
saves in `tests/cost/test_torch_activations.py`. Tensors without a width are left out:
statistics of norms (4 to 8 bytes per token each) and indices of routed tokens.

Every tensor knows what frees it when a layer is recomputed selectively
(`plans.recomputation`):

- by modules (Megatron-LM, megatron-core 0.19.2): `core_attn` frees the scores of plain
  attention (Korthikanti et al. 2022, section 5), and nothing after a flash kernel,
  which saves none (core/transformer/attention.py). `layernorm` frees the results of
  norms that are kernels of their own, `mlp` those of norms fused into its first matmul
  (transformer_layer.py). `mla_up_proj` starts from the latent vectors
  (multi_latent_attention.py), `moe_act` from the inputs of the activation function
  (moe/experts.py), `shared_experts` and `moe` from the result of the norm before them
  (moe/moe_layer.py).
- by operations (torchtitan 0.3.0, distributed/activation_checkpoint.py): see
  `cost.every_other_matmul`.
- without either: the core of plain attention; after a flash kernel norms before matmuls
  and activation functions.
"""

from __future__ import annotations

from meshwright.cost.adapters import adapters, saved_by
from meshwright.cost.every_other_matmul import kept_per_op
from meshwright.cost.parameters_and_flops import (
    expert_width,
    input_norms,
    output_norms,
)
from meshwright.cost.saved import Layer, Saved, Split
from meshwright.cost.saved_attention import saved_heads, saved_latents, saved_scores
from meshwright.cost.state import fp8_input_bytes
from meshwright.cost.state_space_time import saved_state_space
from meshwright.frameworks.base.registry import (
    fused_of,
    joins_norms,
)
from meshwright.frameworks.base.selective import has_norm_apart
from meshwright.plans.precision import ELEMENT_BYTES
from meshwright.plans.recomputation import (
    LAYERNORM,
    MLP,
    MOE,
    MOE_ACT,
    PER_OP,
    SHARED_EXPERTS,
)
from meshwright.spec.model_parts import Experts
from meshwright.spec.spec import Spec


def saved_tensors(spec: Spec, is_dense: bool) -> list[Saved]:
    """Return the tensors that a layer saves; `is_dense` if it has no experts."""
    model, layer = spec.model, layer_of(spec)
    is_dense = is_dense or model.moe is None
    tensors = _norms(layer, is_dense, norm_bits(spec, is_dense))
    tensors += _mixer(layer)
    if model.moe is None or is_dense:
        tensors += layer.mlp("mlp", model.d_ff, "tensor", MLP, 0) if model.d_ff else []
    else:
        tensors += _experts(layer, model.moe)
    if model.dropout:
        masks = 2 * model.d_model
        tensors.append(Saved("residual dropout masks", masks, "sequence"))
    if spec.training.lora is not None:
        lora, element = spec.training.lora, layer.element
        own = adapters(model, lora, is_dense)
        tensors += [saved_by(adapter, element, lora.rank) for adapter in own]
    return [*tensors, *kept_per_op(layer, is_dense)]


def _mixer(layer: Layer) -> list[Saved]:
    """Return what attention saves, or what stands for it."""
    model = layer.model
    if model.mixer == "attention":
        heads = saved_latents(layer, model.mla) if model.mla else saved_heads(layer)
        return [*heads, *saved_scores(layer)]
    if model.mixer == "none" or model.state_space is None:
        return []
    return saved_state_space(layer, model.state_space)


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
        ELEMENT_BYTES[training.precision],
        fp8_input_bytes(spec),
        training.seq_len,
        not training.stores_scores,
        fused_of(spec),
        joins_norms(spec),
        None if lora is None else lora.projections,
    )


def _norms(layer: Layer, is_dense: bool, freed_by: tuple[int, int]) -> list[Saved]:
    """Return what the norms of a layer and the matmuls after them save.

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
    model, heads = layer.model, ("q_proj", "k_proj", "v_proj")
    has_mlp = is_dense or (model.moe is not None and model.moe.shared_d_ff > 0)
    mlp = ("gate_proj", "up_proj") if has_mlp else ()
    one = heads + mlp if input_norms(model) == 1 else heads
    return [
        ("attention", layer.matmul_input(*one)),
        ("mlp", layer.matmul_input(*mlp)),
    ]


def _experts(layer: Layer, moe: Experts) -> list[Saved]:
    """Return what router, routed and shared experts save on the fullest GPU.

    Each token of a GPU goes to top_k experts, which tensor parallelism does not split.
    Megatron-LM weights tokens by the router's fp32 probabilities in the activation;
    torchtitan weights the results of experts in fp32, and saves those.
    """
    copies = moe.top_k * (moe.capacity_factor or 1.0)
    width = copies * expert_width(layer.model, moe)
    routed, shared, all_of_it = copies * moe.d_ff, moe.shared_d_ff, MOE | PER_OP
    tensors = [
        Saved("router probabilities", 4 * moe.n_experts, "sequence", all_of_it),
        Saved("expert inputs", layer.matmul_input() * width, "routed", all_of_it),
        *layer.mlp("expert", routed, "routed", MOE, MOE_ACT),
        *layer.mlp("shared expert", shared, "tensor", MOE | SHARED_EXPERTS, 0),
    ]
    if "activation" not in layer.fused:
        tensors.append(Saved("expert outputs, fp32", 4 * width, "routed", all_of_it))
    return tensors
