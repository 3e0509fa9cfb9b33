"""Mixtures of experts, as the families name them."""

from __future__ import annotations

from meshwright.imports.hf.architecture import Fields
from meshwright.imports.hf.config import Config, Names

COUNT: Names = ("n_routed_experts", "num_experts", "num_local_experts")

REFUSED = {
    "moe_layer_freq_list": "experts in layers of a list",
    "moe_intermediate_size_list": "experts of several widths",
}


def experts(config: Config, d_ff: Names, shared_d_ff: int = 0) -> Fields:
    """Return the fields of `model.moe` that all families have."""
    return {
        "n_experts": config.count(COUNT),
        "top_k": config.count("num_experts_per_tok"),
        "d_ff": config.count(d_ff),
        "shared_d_ff": shared_d_ff,
    }


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
