"""The model in the options of Megatron-LM and the fields of Megatron Bridge."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.launch import Launch
from meshwright.imports.settings.setting import Setting, Settings, number_of

COUNTS = {
    "num_layers": "model.n_layers",
    "hidden_size": "model.d_model",
    "ffn_hidden_size": "model.d_ff",
    "num_attention_heads": "model.n_heads",
    "vocab_size": "model.vocab",
    "q_lora_rank": "model.mla.q_rank",
    "kv_lora_rank": "model.mla.kv_rank",
    "qk_head_dim": "model.mla.nope_dim",
    "qk_pos_emb_head_dim": "model.mla.rope_dim",
    "v_head_dim": "model.mla.v_dim",
    "moe_router_topk": "model.moe.top_k",
    "moe_router_num_groups": "model.moe.route_groups",
    "moe_router_group_topk": "model.moe.groups_per_token",
    "moe_ffn_hidden_size": "model.moe.d_ff",
    "moe_shared_expert_intermediate_size": "model.moe.shared_d_ff",
}
"""Options that hold a whole number, and the fields of specs that they are."""

EXPERTS = ("num_experts", "num_moe_experts")

NORMS = {"RMSNorm": "rmsnorm", "LayerNorm": "layernorm"}

POSITIONS = {
    "rope": False, "learned_absolute": True, "none": False, "yarn": False,
    "mrope": False, "relative": False, "alibi": False,
    "rotary": False,
}  # fmt: skip
"""Words of `--position-embedding-type`: whether positions are learned."""

_PATTERN = re.compile(r"\[0\]\*(\d{1,5})\+\[1\]\*(\d{1,5})")

_AS_COUNTED = (
    "make_vocab_size_divisible_by", "moe_grouped_gemm", "moe_router_score_function",
    "moe_flex_dispatcher_backend", "moe_pad_expert_input_to_capacity",
    "should_pad_vocab", "padded_vocab_size", "transformer_impl", "use_mcore_models",
    "tokenizer_type",
)  # fmt: skip
"""Options that say what is counted anyway, or nothing that is."""


def say_model(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Say the shape of the model, as far as the options have it.

    Args:
        settings: The options.
        launch: Gets what they say.
        is_complete: Whether an option that is not given has the framework's default,
            if there is a model at all.
    """
    settings.skip(*_AS_COUNTED)
    is_complete &= "hidden_size" in settings
    latent = settings.is_on("multi_latent_attention")
    for name, field in COUNTS.items():
        if found := settings.count(name):
            is_idle = field.startswith("model.mla.") and is_complete and not latent
            if not is_idle:
                launch.say(field, *found)
    if found := settings.count(*EXPERTS):
        launch.say("model.moe.n_experts", *found)
    _say_heads(settings, launch, latent, is_complete)
    _say_block(settings, launch, is_complete)
    _say_ends(settings, launch, is_complete)
    if is_complete:
        _say_width(launch)
    if "model.moe.n_experts" in launch.said:
        _say_experts(settings, launch, is_complete)


def _say_heads(
    settings: Settings, launch: Launch, latent: Setting | None, is_complete: bool
) -> None:
    width = settings.count("kv_channels")
    if latent is None and width:
        launch.say("model.head_dim", *width)
    groups = settings.count("num_query_groups")
    is_grouped = settings.is_on("group_query_attention") or not is_complete
    if latent is None and groups and (is_grouped or "-" not in groups[1].written):
        launch.say("model.n_kv_heads", *groups)
    elif latent is None and groups:
        launch.changes_nothing(groups[1], "--group-query-attention is not given")
    elif is_complete and (heads := launch.value("model.n_heads")):
        launch.say("model.n_kv_heads", heads)
    if (normed := settings.flag("qk_layernorm")) and latent is None:
        launch.say("model.qk_norm", *normed)


def _say_block(settings: Settings, launch: Launch, is_complete: bool) -> None:
    gated = settings.flag("swiglu", "gated_linear_unit")
    _say_flag(launch, "model.gated_mlp", gated, is_complete)
    settings.skip("activation_func", "squared_relu", "add_bias_linear", "add_qkv_bias")
    if norm := settings.word(NORMS, "normalization"):
        launch.say("model.norm", *norm)
    elif is_complete:
        launch.say("model.norm", "layernorm")
    bare = settings.is_on("disable_bias_linear")
    with_bias = settings.flag("add_bias_linear")
    of_heads = settings.is_on("add_qkv_bias")
    found = bare or (with_bias[1] if with_bias else None)
    if found is not None or is_complete:
        has_all = not bare and (with_bias is None or with_bias[0])
        word = "all" if has_all else "qkv" if of_heads else "none"
        launch.say("model.bias", word, found)
    shares = [
        own for name in ("attention_dropout", "hidden_dropout")
        if (own := settings.get(name)) is not None and own.value is not None
    ]  # fmt: skip
    if shares:
        dropped = [own for own in shares if number_of(own) > 0]
        launch.say("model.dropout", bool(dropped), (dropped or shares)[0])
    elif is_complete:
        launch.say("model.dropout", True)


def _say_ends(settings: Settings, launch: Launch, is_complete: bool) -> None:
    untied = settings.flag("untie_embeddings_and_output_weights")
    shared = settings.flag("share_embeddings_and_output_weights")
    if shared:
        launch.say("model.tied_embeddings", *shared)
    elif untied:
        launch.say("model.tied_embeddings", not untied[0], untied[1])
    elif is_complete:
        launch.say("model.tied_embeddings", True)
    kind = settings.word(POSITIONS, "position_embedding_type")
    if kind and kind[1].value == "alibi":
        launch.say("model.alibi", True, kind[1])
    rotary = settings.is_on("use_rotary_position_embeddings")
    most = settings.count("max_position_embeddings")
    is_learned = kind[0] if kind else is_complete and rotary is None
    if kind and not is_learned:
        launch.say("model.learned_positions", 0, kind[1])
    elif rotary:
        launch.say("model.learned_positions", 0, rotary)
    elif is_learned and most:
        launch.say("model.learned_positions", *most)


def _say_width(launch: Launch) -> None:
    """Say the inner width that Megatron-LM takes where none is given."""
    width = launch.value("model.d_model")
    if width is not None and "model.d_ff" not in launch.said:
        is_gated = launch.value("model.gated_mlp")
        inner = int(4 * width * 2 / 3 / 64) * 64 if is_gated else 4 * width
        launch.say("model.d_ff", inner)


def _say_experts(settings: Settings, launch: Launch, is_complete: bool) -> None:
    if is_complete:
        launch.say("model.moe.top_k", launch.value("model.moe.top_k") or 2)
        inner = launch.value("model.moe.d_ff") or launch.value("model.d_ff")
        launch.say("model.moe.d_ff", inner)
    pattern = settings.get("moe_layer_freq")
    if pattern is not None and pattern.value is not None:
        launch.say("model.moe.first_dense_layers", _dense_layers(pattern), pattern)
    if biased := settings.flag("moe_router_enable_expert_bias"):
        launch.say("model.moe.router_bias", *biased)
    factor = settings.get("moe_expert_capacity_factor")
    if factor is not None and factor.value is not None:
        launch.say("model.moe.capacity_factor", number_of(factor), factor)


def _dense_layers(setting: Setting) -> int:
    """Return the leading layers without experts.

    Raises:
        SpecError: layers with and without experts alternate.
    """
    value: Any = setting.value
    if isinstance(value, list) and set(value) <= {0, 1}:
        dense = value.index(1) if 1 in value else len(value)
        if 0 not in value[dense:]:
            return dense
    text = str(value).replace(" ", "").strip("()")
    if text == "1":
        return 0
    found = _PATTERN.fullmatch(text)
    if found is None:
        setting.refuse("expected layers without experts first, such as ([0]*3+[1]*58)")
    return int(found[1])


def _say_flag(
    launch: Launch, name: str, found: tuple[bool, Setting] | None, is_complete: bool
) -> None:
    if found:
        launch.say(name, *found)
    elif is_complete:
        launch.say(name, False)
