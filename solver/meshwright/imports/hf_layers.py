"""Parts of a model as config.json files describe them: biases, windows, experts.

A part is a function of a `Config` that returns fields of our model. Families of
`hf_families.yaml` name the parts that they have; most share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright.imports.hf_config import Config, Fields, Names, Part

EXPERTS: Names = ("n_routed_experts", "num_experts", "num_local_experts")

BIASES = {
    (False, False): "none",
    (True, False): "attention",
    (False, True): "mlp",
    (True, True): "all",
}
"""Our word for biases, by whether attention and the MLP have them."""

SEED_BIASES = {
    (True, False, False): "qkv",
    (True, True, False): "attention",
    (False, False, False): "none",
    (True, True, True): "all",
}
"""Our word, by whether inputs and output of attention, and the MLP, have them."""

ATTENTION_WORDS = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "attention": "full",
}
"""Words of `layer_types`, and our names of kinds."""

RECURRENT_WORDS = {"linear_attention": "linear", "full_attention": "full"}

NEMOTRON_WORDS = {
    "linear_attention": "mamba", "mamba": "mamba", "full_attention": "attention",
    "attention": "attention", "mlp": "mlp", "moe": "moe",
}  # fmt: skip

NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}

NEMOTRON_KINDS: dict[str, Fields] = {
    "mamba": {"mixer": "state_space", "d_ff": 0, "experts": False},
    "attention": {"mixer": "attention", "d_ff": 0, "experts": False},
    "mlp": {"mixer": "none", "experts": False},
    "moe": {"mixer": "none"},
}


# Biases


def bias(flag: str, word: str, otherwise: str = "none") -> Part:
    """Return a part: the biases that are `word` where a flag is on."""
    return lambda config: {"bias": word if config.flag(flag) else otherwise}


attention_bias = bias("attention_bias", "attention")
qkv_bias = bias("attention_bias", "qkv")


def biases(config: Config) -> Fields:
    """Return whether attention and the MLP have biases."""
    return {"bias": BIASES[config.flag("attention_bias"), config.flag("mlp_bias")]}


def seed_biases(config: Config) -> Fields:
    """Return the biases, with a flag for the output of attention alone.

    Raises:
        SpecError: our model has no word for the combination.
    """
    qkv, out = config.flag("attention_bias"), config.flag("attention_out_bias")
    found = SEED_BIASES.get((qkv, out, config.flag("mlp_bias")))
    if found is None:
        raise config.error("attention_out_bias", "not modelled beside other biases")
    return {"bias": found}


def flag(field: str, name: str) -> Part:
    """Return a part: a field of our model that a flag of the file holds."""
    return lambda config: {field: config.flag(name)}


# Kinds of layers


def kinds(found: Mapping[str, Fields], every: Sequence[str]) -> Fields:
    """Return the kinds of layers and their order; nothing where all are plain.

    Args:
        found: By kind, the fields of the model that its layers change.
        every: The kind of each layer. If all are of one kind, its changes become
            fields of the model.
    """
    used = {name: found[name] for name in dict.fromkeys(every)}
    if len(used) == 1:
        (only,) = used.values()
        changed = dict(only)
        return (
            {"moe": None} | changed if changed.pop("experts", 1) is False else changed
        )
    period = next(
        size
        for size in range(1, len(every) + 1)
        if all(every[i] == every[i % size] for i in range(len(every)))
    )
    return {"kinds": used, "pattern": list(every[:period])}


def every_nth_full(layers: int, step: int, other: str = "sliding") -> list[str]:
    """Return layers of which each `step`-th attends to all tokens, the last of them."""
    return ["full" if (index + 1) % step == 0 else other for index in range(layers)]


def windowed(config: Config, usual: list[str], full: Fields | None = None) -> Fields:
    """Return the kinds of layers of a model with sliding windows in some of them.

    `usual` is the order where the file lists none, `full` the fields that layers
    without a window change. A null window leaves all layers without one.
    """
    layers = config.layers()
    every = config.words("layer_types", layers, ATTENTION_WORDS) or usual
    window = config.count_or("sliding_window", 0)
    if not window and not full:
        return {}
    found = {"sliding": {"attention_window": window}, "full": dict(full or {})}
    return kinds(found, every)


def uniform_window(config: Config) -> Fields:
    """Return the window of a model that has the same one in all layers, if any."""
    window = config.count_or("sliding_window", 0)
    return {"attention_window": window} if window else {}


def windows_but_every(step: int, names: Sequence[str] = ()) -> Part:
    """Return a part: windows in all but each n-th layer; fields may hold the n."""

    def part(config: Config) -> Fields:
        found = config.count_or((*names,), step) or step if names else step
        return windowed(config, every_nth_full(config.layers(), found))

    return part


def late_windows(config: Config) -> Fields:
    """Return the windows, if used, of the layers from `max_window_layers` on."""
    if not config.flag("use_sliding_window"):
        return {}
    layers, first = config.layers(), config.count_or("max_window_layers", 28)
    return windowed(
        config, ["sliding" if index >= first else "full" for index in range(layers)]
    )


def wide_full_attention(config: Config) -> Fields:
    """Return windows of Gemma 4, whose layers without a window have wide heads."""
    layers = config.layers()
    usual = [*every_nth_full(layers, 6)[:-1], "full"]
    kv_heads, by_layer = config.count("num_key_value_heads"), {}
    listed = config.get("per_layer_config")
    if isinstance(listed, dict) and listed:
        by_layer = next(iter(listed.values()))
        if not isinstance(by_layer, dict):
            raise config.error("per_layer_config", "expected a mapping for each layer")
    of_layer = replace(config, data={**config.data, **by_layer})
    names = ("head_dim",) if by_layer else ("global_head_dim",)
    full: Fields = {"head_dim": of_layer.count_or(names, 512)}
    if config.flag("attention_k_eq_v"):
        name = "num_key_value_heads" if by_layer else "num_global_key_value_heads"
        full["n_kv_heads"] = of_layer.count_or(name, kv_heads)
        full["keys_are_values"] = True
    return windowed(config, usual, full)


# Experts


def routed_experts(config: Config, d_ff: Names, shared_d_ff: int = 0) -> Fields:
    """Return the fields of `model.moe` that all families have."""
    return {
        "n_experts": config.count(EXPERTS),
        "top_k": config.count("num_experts_per_tok"),
        "d_ff": config.count(d_ff),
        "shared_d_ff": shared_d_ff,
    }


def experts(d_ff: str = "moe_intermediate_size", shared: str = "") -> Part:
    """Return a part: routed experts, and shared ones behind a gate if a field has one.

    Args:
        d_ff: The field with the width of an expert.
        shared: The field with the width of the shared experts; without, none.
    """

    def part(config: Config) -> Fields:
        width = config.count_or(shared, 0) if shared else 0
        moe = routed_experts(config, d_ff, width)
        return {"moe": moe | {"shared_gate": True} if shared else moe}

    return part


gated_experts = experts(shared="shared_expert_intermediate_size")


def sparse_steps(config: Config) -> Fields:
    """Return experts in every n-th layer, but for those that the file lists.

    Raises:
        SpecError: the file has sliding windows too.
    """
    if config.flag("use_sliding_window"):
        raise config.error("use_sliding_window", "not modelled beside experts")
    layers, step = config.layers(), config.count_or("decoder_sparse_step", 1)
    dense = set(config.numbers("mlp_only_layers"))
    dense |= {index for index in range(layers) if not step or (index + 1) % step}
    every = ["dense" if index in dense else "experts" for index in range(layers)]
    return kinds({"experts": {}, "dense": {"experts": False}}, every)


def grouped(config: Config) -> Fields:
    """Return over how many groups of experts a token chooses."""
    groups = config.count_or("n_group", 1) or 1
    chosen = config.count_or("topk_group", 1) or 1
    return {"route_groups": groups, "groups_per_token": chosen}


def leading_dense(config: Config) -> int:
    """Return the leading layers without experts.

    Raises:
        SpecError: the layers without experts are others.
    """
    layers = config.layers()
    words = config.words(
        "mlp_layer_types", layers, {"dense": "dense", "sparse": "sparse"}
    )
    if words:
        leading = words.count("dense")
        if words != ["dense"] * leading + ["sparse"] * (layers - leading):
            told = "not modelled: dense layers after layers with experts"
            raise config.error("mlp_layer_types", told)
        return leading
    freq = config.get("moe_layer_freq")
    if freq not in (None, 1):
        raise config.error("moe_layer_freq", f"not modelled: {freq}; accepted: 1")
    return min(config.count_or("first_k_dense_replace", 0), layers)


def experts_after_dense(config: Config) -> Fields:
    """Return groups of routed experts and whole shared ones, after dense layers."""
    width = config.count("moe_intermediate_size")
    shared = config.count_or("n_shared_experts", 0) * width
    moe = routed_experts(config, "moe_intermediate_size", shared) | grouped(config)
    return {"moe": moe | {"first_dense_layers": leading_dense(config)}}


def experts_beside_mlp(config: Config) -> Fields:
    """Return the experts of Gemma 4, which stand beside the MLP, if there are any.

    Every token visits the MLP. Layers with experts have three more norms, a scale
    before the router, and one per expert.
    """
    if not config.flag("enable_moe_block"):
        return {}
    shared = config.count("intermediate_size")
    moe = {
        "n_experts": config.count("num_experts"),
        "top_k": config.count("top_k_experts"),
        "d_ff": config.count("moe_intermediate_size"),
        "shared_d_ff": shared,
        "own_norms": 4,
        "router_bias": True,
    }
    return {"moe": moe}


GPT_OSS_LIMIT = 7.0
"""Of the activation (transformers, models/gpt_oss/modeling_gpt_oss.py: GptOssExperts,
where it is no setting)."""


def biased_experts(config: Config) -> Fields:
    """Return the experts of gpt-oss, with biases.

    Raises:
        SpecError: attention has no bias, although experts always have.
    """
    if not config.flag("attention_bias"):
        raise config.error("attention_bias", "not modelled: false; accepted: true")
    moe = routed_experts(config, "intermediate_size")
    return {"moe": moe | {"router_bias": True, "activation_limit": GPT_OSS_LIMIT}}


def llama4(config: Config) -> Fields:
    """Return the experts of Llama 4, and the order of its layers.

    Layers with rotary positions attend inside chunks, each fourth one to all tokens.
    All layers with experts have one more that every token visits.
    """
    layers, width = config.layers(), config.count("intermediate_size")
    step = config.count_or("interleave_moe_layer_step", 1) or 1
    listed = config.numbers("moe_layers")
    with_experts = set(listed or range(step - 1, layers, step))
    no_rope = config.numbers("no_rope_layers")
    rope = no_rope or [int((index + 1) % 4 != 0) for index in range(layers)]
    if len(rope) < layers:
        raise config.error("no_rope_layers", f"expected {layers} numbers")
    chunk = config.count_or("attention_chunk_size", 0)
    found: dict[str, Fields] = {}
    every = []
    for index in range(layers):
        is_chunked = bool(rope[index]) and chunk > 0
        words = "chunked" if is_chunked else "full"
        name = words if index in with_experts else f"{words} dense"
        kind: Fields = {"attention_chunk": chunk} if is_chunked else {}
        found[name] = kind if index in with_experts else {**kind, "experts": False}
        every.append(name)
    has_bias = attention_bias(config)
    d_ff = config.count("intermediate_size_mlp")
    moe = routed_experts(config, "intermediate_size", shared_d_ff=width)
    return {**has_bias, "d_ff": d_ff, "moe": moe, **kinds(found, every)}


# Latent attention


def latent_attention(config: Config) -> Fields:
    """Return latent attention, and experts after the leading layers, if any."""
    mla = {
        "q_rank": config.count_or("q_lora_rank", 0),
        "kv_rank": config.count("kv_lora_rank"),
        "rope_dim": config.count("qk_rope_head_dim"),
        "nope_dim": config.count("qk_nope_head_dim"),
        "v_dim": config.count("v_head_dim"),
    }
    found: Fields = {
        "mla": mla,
        "n_kv_heads": config.count("num_attention_heads"),
        "head_dim": mla["nope_dim"] + mla["rope_dim"],
    }
    if config.get(("n_routed_experts", "num_local_experts")) is None:
        return found
    with_experts = experts_after_dense(config)
    if with_experts["moe"]["first_dense_layers"] == config.layers():
        return found
    return found | with_experts


def indexed_attention(config: Config) -> Fields:
    """Return latent attention with the indexer that picks the tokens to attend to.

    Layers that share the indexer of one before them are a kind (IndexShare of GLM-5.2;
    transformers 5.17.0 models/glm_moe_dsa).
    """
    found = latent_attention(config)
    indexer = {
        "n_heads": config.count("index_n_heads"),
        "head_dim": config.count("index_head_dim"),
        "top_k": config.count("index_topk"),
    }
    found |= {"mla": found["mla"] | {"indexer": indexer}}
    shares = [word == "shared" for word in _indexer_words(config)]
    if not any(shares):
        return found
    moe: Fields = found.get("moe", {})
    dense = moe.get("first_dense_layers", 0)
    without = {"experts": False} if moe else {}
    of_kinds: dict[str, Fields] = {
        "dense": without,
        "shared dense": without | {"shares_indexer": True},
        "full": {},
        "shared": {"shares_indexer": True},
    }
    every = [
        "shared " * shared + "dense" if index < dense else ("full", "shared")[shared]
        for index, shared in enumerate(shares)
    ]
    if moe:
        found |= {"moe": moe | {"first_dense_layers": 0}}
    return found | kinds(of_kinds, every)


INDEXER_WORDS = {"full": "full", "shared": "shared", "F": "full", "S": "shared"}


def _indexer_words(config: Config) -> list[str]:
    """Return for every layer whether it has an indexer, `full`, or shares one."""
    layers = config.layers()
    if isinstance(letters := config.get("index_topk_pattern"), str):
        data = {**config.data, "index_topk_pattern": list(letters)}
        config = replace(config, data=data)
    names = ("indexer_types", "index_topk_pattern")
    if words := config.words(names, layers, INDEXER_WORDS):
        return words
    step = config.count_or("index_topk_freq", 1) or 1
    first = config.count_or("index_skip_topk_offset", 2)
    beyond = (max(index - first + 1, 0) for index in range(layers))
    return ["shared" if place % step else "full" for place in beyond]


# Recurrent layers


def delta_nets(config: Config) -> Fields:
    """Return gated delta nets between layers of attention, and the order of both."""
    layers = config.layers()
    step = config.count_or("full_attention_interval", 4) or 4
    every = config.words("layer_types", layers, RECURRENT_WORDS)
    every = every or every_nth_full(layers, step, "linear")
    has_bias = attention_bias(config)
    found = kinds({"linear": {"mixer": "state_space"}, "full": {}}, every)
    state_space = {
        "form": "delta_net",
        "n_heads": config.count("linear_num_value_heads"),
        "head_dim": config.count("linear_value_head_dim"),
        "groups": config.count("linear_num_key_heads"),
        "state_dim": config.count("linear_key_head_dim"),
        "conv": config.count("linear_conv_kernel_dim"),
    }
    return {**has_bias, "state_space": state_space, **found}


def delta_nets_with_experts(config: Config) -> Fields:
    """Return gated delta nets and attention, with experts in all layers.

    Raises:
        SpecError: some layers have no experts.
    """
    if config.count_or("decoder_sparse_step", 1) != 1:
        raise config.error("decoder_sparse_step", "not modelled; accepted: 1")
    if config.numbers("mlp_only_layers"):
        raise config.error("mlp_only_layers", "not modelled; accepted: none")
    moe = gated_experts(config)["moe"]
    d_ff = config.count_or("intermediate_size", moe["d_ff"])
    return {"moe": moe, "d_ff": d_ff, **delta_nets(config)}


def nemotron_h(config: Config) -> Fields:
    """Return the parts of layers of Nemotron-H, one each, and their order."""
    every = nemotron_order(config)
    fields: Fields = {
        "n_layers": len(every),
        "norms_per_layer": 1,
        "d_ff": config.count("intermediate_size"),
        "state_space": {
            "form": "mamba2",
            "n_heads": config.count("mamba_num_heads"),
            "head_dim": config.count("mamba_head_dim"),
            "groups": config.count(("n_groups", "mamba_n_groups")),
            "state_dim": config.count("ssm_state_size"),
            "conv": config.count(("conv_kernel", "mamba_d_conv")),
            "conv_bias": config.flag(("use_conv_bias", "mamba_conv_bias")),
            "chunk": config.count(("chunk_size", "mamba_chunk_size")),
        },
    }
    if "mamba" not in every:
        raise config.error("layers_block_type", "has no Mamba layer")
    used = {name: dict(kind) for name, kind in NEMOTRON_KINDS.items()}
    if "moe" in every:
        shared = config.count_or("n_shared_experts", 0) and config.count(
            "moe_shared_expert_intermediate_size"
        )
        moe = routed_experts(config, "moe_intermediate_size", shared) | grouped(config)
        moe["latent_d"] = config.count_or("moe_latent_size", 0)
        fields["moe"] = moe
    else:
        for kind in used.values():
            kind.pop("experts", None)
    return fields | kinds(used, every)


def nemotron_order(config: Config) -> list[str]:
    """Return the kind of every layer, from a list of words or a text of letters.

    Raises:
        SpecError: a letter is unknown, or there is no order at all.
    """
    listed = config.get(("layers_block_type", "layer_types"))
    if listed is not None:
        count = len(listed) if isinstance(listed, list) else 1
        return config.words(("layers_block_type", "layer_types"), count, NEMOTRON_WORDS)
    text = config.get("hybrid_override_pattern")
    if not isinstance(text, str) or not text:
        raise config.error("hybrid_override_pattern", "missing; expected M, -, * and E")
    for letter in text:
        if letter not in NEMOTRON_LETTERS:
            accepted = ", ".join(NEMOTRON_LETTERS)
            told = f"{letter!r} is not supported; accepted: {accepted}"
            raise config.error("hybrid_override_pattern", told)
    return [NEMOTRON_LETTERS[letter] for letter in text]


# Layer norms and MLPs without a gate


def positions(names: Sequence[str], unused: int = 0) -> Part:
    """Return a part: learned positions, with rows of their table that none uses."""
    return lambda config: {"learned_positions": config.count((*names,)) + unused}


def four_times_wide(names: Sequence[str], inner: str = "") -> Part:
    """Return a part: an MLP four times as wide as the model, unless `inner` says.

    Args:
        names: The names that the width of the model has had.
        inner: The field with the width of the MLP; without, there is none.
    """

    def part(config: Config) -> Fields:
        usual = 4 * config.count((*names,))
        return {"d_ff": config.count_or(inner, usual) or usual if inner else usual}

    return part


def falcon(config: Config) -> Fields:
    """Return key heads, norms and positions, which changed from version to version."""
    heads = config.count(("num_attention_heads", "n_head"))
    is_new = config.flag("new_decoder_architecture")
    d_model = config.count(("hidden_size", "n_embed"))
    is_parallel = is_new or config.flag("parallel_attn")
    if is_new:
        kv_heads = config.count_or(("num_kv_heads", "n_head_kv"), heads)
    else:
        kv_heads = 1 if config.flag("multi_query") else heads
    norms = 1 if is_parallel else 2
    if is_new:
        norms = config.count_or("num_ln_in_parallel_attn", 2)
    return {
        "n_kv_heads": kv_heads,
        "parallel_residual": is_parallel,
        "norms_per_layer": norms,
        "alibi": config.flag("alibi"),
        "bias": "all" if config.flag("bias") else "none",
        "d_ff": config.count_or("ffn_hidden_size", 4 * d_model) or 4 * d_model,
    }


def opt_limits(config: Config) -> Fields:
    """Refuse variants of OPT that are not modelled.

    Raises:
        SpecError: norms are after the layers, or the embedding is narrower than them.
    """
    if not config.flag("do_layer_norm_before"):
        raise config.error("do_layer_norm_before", "not modelled: norms after layers")
    d_model = config.count("hidden_size")
    if config.count_or("word_embed_proj_dim", d_model) != d_model:
        told = "not modelled: an embedding that is narrower than the layers"
        raise config.error("word_embed_proj_dim", told)
    return {}
