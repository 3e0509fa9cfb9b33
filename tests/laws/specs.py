"""Random specs of every kind, all from the generators that other tests have too."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from tests.helpers.irregular import irregular_data
from tests.helpers.serving_specs import questions, serving_data
from tests.helpers.strategies import spec_data
from tests.helpers.unlike import unlike_data
from tests.laws.law import Data

SWITCHES: dict[str, list[Any]] = {
    "norm": ["layernorm", "rmsnorm"],
    "bias": ["none", "qkv", "all"],
    "qk_norm": [False, True],
    "parallel_residual": [False, True],
    "embedding_norm": [False, True],
}
"""Fields of a model that any other may stand beside."""

LATENT = {"q_rank": 64, "kv_rank": 128, "rope_dim": 32, "nope_dim": 64, "v_dim": 64}

TRAINED: dict[str, list[Any]] = {
    "gradients": [None, "bf16", "fp32"],
    "optimizer": ["adamw", "adamw-8bit", "sgd", "adafactor"],
    "fused": [
        *(None, [], ["norm"], ["norm", "loss"]),
        *(["rope", "activation", "dropout"], ["norm", "residual"]),
    ],
    "document_tokens": [None, 50, 300],
}


@st.composite
def tree_data(draw: st.DrawFn) -> Data:
    """Return a random spec on 1 to 64 equal GPUs, of any model and framework."""
    data = draw(spec_data(draw(st.sampled_from([4, 8, 12]))))
    draw(_changed_model(data["model"]))
    for name in draw(st.sets(st.sampled_from(sorted(TRAINED)), max_size=2)):
        data["training"][name] = draw(st.sampled_from(TRAINED[name]))
    if data["training"].get("document_tokens"):
        data["training"]["text_loops"] = draw(st.booleans())
    draw(_resized(data))
    data["cluster"]["topology"]["gpu"]["memory_gib"] *= draw(
        st.sampled_from([1.0, 1.5, 4.0])
    )
    return data


@st.composite
def _changed_model(draw: st.DrawFn, model: Data) -> None:
    """Change fields of a model that `spec_data` leaves at their defaults."""
    for name in sorted(draw(st.sets(st.sampled_from(sorted(SWITCHES)), max_size=2))):
        model[name] = draw(st.sampled_from(SWITCHES[name]))
    if model.get("parallel_residual"):
        model["norms_per_layer"] = draw(st.sampled_from([1, 2]))
    if "moe" in model and draw(st.integers(0, 2)) == 0:
        most = model["moe"]["n_experts"] / model["moe"]["top_k"]
        model["moe"]["capacity_factor"] = draw(st.sampled_from([1.0, 1.25, most]))
        model["moe"]["router_bias"] = draw(st.booleans())
    if draw(st.integers(0, 3)) == 0:
        model |= {"mla": LATENT, "bias": "none", "qk_norm": False}
        model["n_kv_heads"] = model["n_heads"]
        model["mla"] = LATENT | {"q_rank": draw(st.sampled_from([0, 64]))}


@st.composite
def _resized(draw: st.DrawFn, data: Data) -> None:
    """Give a cluster one GPU alone, a level more, or copies; or leave it."""
    topology = data["cluster"]["topology"]
    levels = topology["levels"]
    kind = draw(st.sampled_from(["as it is"] * 4 + ["one", "level", "copies"]))
    gpus = math.prod(level["size"] for level in levels)
    times = draw(st.sampled_from([n for n in (2, 3, 4, 8) if n * gpus <= 64]))
    top = {"name": "top", "gb_s": levels[-1]["gb_s"] / 2, "latency_us": 5.0}
    if kind == "one":
        topology["levels"] = [levels[0] | {"size": 1}]
        topology.pop("host", None)
        data["training"].pop("offload_to", None)
        data["pins"] = {}
    elif kind == "level":
        topology["levels"] = [*levels, top | {"size": times}]
    elif kind == "copies":
        topology["scale_out"] = top
        data["cluster"]["count"] = times
    if kind in ("level", "copies"):
        data["training"]["global_batch"] *= times


def _irregular() -> st.SearchStrategy[Data]:
    """Return random specs on GPUs that are not alike, without a limit on links.

    Under one not every order of GPUs is looked at, and answers say that nothing is
    proven: `feasible` or `unknown`.
    """

    def unlimited(data: Data) -> Data:
        data["limits"].pop("max_link_utilisation", None)
        return data

    return irregular_data().map(unlimited)


def any_data() -> st.SearchStrategy[Data]:
    """Return random specs of training; few on irregular hosts and unlike parts."""
    return _mixed([tree_data()] * 8 + [_irregular(), unlike_data()])


def one_cluster_data() -> st.SearchStrategy[Data]:
    """Return random specs of training on GPUs of one kind."""
    return _mixed([tree_data()] * 9 + [_irregular()])


def served_data() -> st.SearchStrategy[Data]:
    """Return random specs of serving."""
    return questions().map(lambda asked: serving_data(**asked))


def every_data() -> st.SearchStrategy[Data]:
    """Return random specs of training, and of serving."""
    return _mixed([any_data()] * 5 + [served_data()])


def _mixed(kinds: list[st.SearchStrategy[Data]]) -> st.SearchStrategy[Data]:
    return st.integers(0, len(kinds) - 1).flatmap(kinds.__getitem__)
