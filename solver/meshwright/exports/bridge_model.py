"""A model and a plan in the fields of Megatron Bridge's model providers."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.context_exchange import cp_comm_type
from meshwright.exports.files import Setting
from meshwright.exports.hidden_experts import hides_experts
from meshwright.exports.megatron import GROUP, layout, microbatch_group
from meshwright.exports.target import recomputed_layers
from meshwright.frameworks.base.registry import fused_of, overlap_of
from meshwright.plans.plan import Plan
from meshwright.spec.model import Model
from meshwright.spec.model_parts import Experts
from meshwright.spec.spec import Spec
from meshwright.spec.training import ExpertDispatch

DTYPES = {
    "bf16": "torch.bfloat16",
    "fp8": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp32": "torch.float32",
    "tf32": "torch.float32",
}


def model_fields(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the fields of a provider, which holds the degrees of a plan too."""
    yield from _degrees(spec, plan)
    yield from _recompute(plan)
    yield from _shape(spec.model)
    if spec.model.moe is not None:
        yield from _dispatcher(spec.training.expert_dispatch)
    yield Setting("seq_length", spec.training.seq_len, "training.seq_len")
    fused = "loss" in fused_of(spec)
    yield Setting("cross_entropy_loss_fusion", fused, "training.fused")
    if "tp" in overlap_of(spec) and plan.tp > 1 and plan.sequence_parallel:
        yield Setting("tp_comm_overlap", True, "training.overlap.tp")
    if hides_experts(spec, plan):
        name = "overlap_moe_expert_parallel_comm"
        yield Setting(name, True, "training.overlap.ep")
    if plan.vpp > 1:
        is_hidden, why = "pp" in overlap_of(spec), "training.overlap.pp"
        yield Setting("overlap_p2p_comm", is_hidden, why)
        yield Setting("batch_p2p_comm", not is_hidden, "one or the other")
    if plan.zero >= 2:
        yield Setting("init_model_with_meta_device", True, "no GPU holds all of it")
        yield Setting("gradient_accumulation_fusion", False, "not with Megatron-FSDP")


def _dispatcher(dispatch: ExpertDispatch) -> Iterator[Setting]:
    why = f"training.expert_dispatch {dispatch}"
    kind = "alltoall" if dispatch == "alltoall" else "flex"
    yield Setting("moe_token_dispatcher_type", kind, why)
    if kind == "flex":
        yield Setting("moe_flex_dispatcher_backend", "deepep", why)


def _degrees(spec: Spec, plan: Plan) -> Iterator[Setting]:
    yield Setting("tensor_model_parallel_size", plan.tp, "plan.tp")
    is_split = plan.sequence_parallel and plan.tp > 1
    yield Setting("sequence_parallel", is_split, "plan.sequence_parallel")
    yield Setting("pipeline_model_parallel_size", plan.pp, "plan.pp")
    if len({*plan.chunk_layers}) > 1:
        why = "plan.stages: layers t of each, embedding E, loss L"
        yield Setting("pipeline_model_parallel_layout", layout(plan), why)
    elif plan.vpp > 1:
        yield Setting("virtual_pipeline_model_parallel_size", plan.vpp, "plan.vpp")
    if (size := microbatch_group(plan)) != plan.pp:
        yield Setting("microbatch_group_size_per_vp_stage", size, GROUP)
    if plan.pp > 1:
        why = f"plan.precision {plan.precision}: what stages send"
        yield Setting("pipeline_dtype", DTYPES[plan.precision], why)
    yield Setting("context_parallel_size", plan.cp, "plan.cp")
    if plan.cp > 1:
        word, why = cp_comm_type(spec)
        yield Setting("cp_comm_type", word, why)
    if spec.model.moe is not None:
        yield Setting("expert_model_parallel_size", plan.ep, "plan.ep")
        yield Setting("expert_tensor_parallel_size", 1, "experts are whole")


def _recompute(plan: Plan) -> Iterator[Setting]:
    if plan.recompute == "none":
        return
    yield Setting("recompute_granularity", plan.recompute, "plan.recompute")
    if plan.recompute == "selective":
        modules = plan.recompute_modules.split("+")
        yield Setting("recompute_modules", modules, "plan.recompute_modules")
    if plan.recompute == "full":
        method = "uniform" if plan.recomputes_all_layers else "block"
        some = recomputed_layers(plan)[0] // plan.vpp
        yield Setting("recompute_method", method, "plan.stages")
        why = "layers of a segment, or so many of each stage"
        count = plan.recompute_segment if plan.recomputes_all_layers else some
        yield Setting("recompute_num_layers", count, why)


def _shape(model: Model) -> Iterator[Setting]:
    yield Setting("num_layers", model.n_layers, "model.n_layers")
    yield Setting("hidden_size", model.d_model, "model.d_model")
    yield Setting("ffn_hidden_size", model.d_ff, "model.d_ff")
    yield Setting("num_attention_heads", model.n_heads, "model.n_heads")
    if model.mla is None:
        yield Setting("num_query_groups", model.n_kv_heads, "model.n_kv_heads")
        yield Setting("kv_channels", model.head_dim, "model.head_dim")
    else:
        yield Setting("q_lora_rank", model.mla.q_rank or None, "model.mla.q_rank")
        yield Setting("kv_lora_rank", model.mla.kv_rank, "model.mla.kv_rank")
        yield Setting("qk_head_dim", model.mla.nope_dim, "model.mla.nope_dim")
        yield Setting("qk_pos_emb_head_dim", model.mla.rope_dim, "model.mla.rope_dim")
        yield Setting("v_head_dim", model.mla.v_dim, "model.mla.v_dim")
    yield Setting("vocab_size", model.vocab, "model.vocab, before padding")
    yield Setting("should_pad_vocab", True, "to a multiple of 128 x tp")
    yield Setting("gated_linear_unit", model.gated_mlp, "model.gated_mlp")
    activation = "silu" if model.gated_mlp else "gelu"
    yield Setting("activation_func", activation, "model.gated_mlp")
    norm = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[model.norm]
    yield Setting("normalization", norm, "model.norm")
    yield Setting("qk_layernorm", model.qk_norm, "model.qk_norm")
    yield Setting("add_bias_linear", model.bias == "all", f"model.bias {model.bias}")
    yield Setting("add_qkv_bias", model.bias != "none", f"model.bias {model.bias}")
    name = "share_embeddings_and_output_weights"
    yield Setting(name, model.tied_embeddings, "model.tied_embeddings")
    kind = "learned_absolute" if model.learned_positions else "rope"
    yield Setting("position_embedding_type", kind, "model.learned_positions")
    share = 0.1 if model.dropout else 0.0
    yield Setting("attention_dropout", share, "model.dropout")
    yield Setting("hidden_dropout", share, "model.dropout")
    if model.moe is not None:
        yield from _experts(model.moe, model.n_layers)


def _experts(moe: Experts, n_layers: int) -> Iterator[Setting]:
    yield Setting("num_moe_experts", moe.n_experts, "model.moe.n_experts")
    yield Setting("moe_router_topk", moe.top_k, "model.moe.top_k")
    if moe.route_groups > 1:
        why = "model.moe.route_groups"
        yield Setting("moe_router_num_groups", moe.route_groups, why)
        why = "model.moe.groups_per_token"
        yield Setting("moe_router_group_topk", moe.groups_per_token, why)
    yield Setting("moe_ffn_hidden_size", moe.d_ff, "model.moe.d_ff")
    if moe.shared_d_ff:
        name = "moe_shared_expert_intermediate_size"
        yield Setting(name, moe.shared_d_ff, "model.moe.shared_d_ff, all of them")
    if dense := moe.first_dense_layers:
        pattern = [0] * dense + [1] * (n_layers - dense)
        yield Setting("moe_layer_freq", pattern, "model.moe.first_dense_layers")
    if moe.router_bias:
        yield Setting(
            "moe_router_score_function", "sigmoid", "a router's bias needs it"
        )
        yield Setting("moe_router_enable_expert_bias", True, "model.moe.router_bias")
    if moe.capacity_factor is not None:
        name = "moe_expert_capacity_factor"
        yield Setting(name, moe.capacity_factor, "model.moe.capacity_factor")
        yield Setting("moe_pad_expert_input_to_capacity", True, "padded places")
    yield Setting("moe_grouped_gemm", True, "experts of a GPU are one grouped matmul")
