"""Parameters and FLOPs of experts and latent attention, by arithmetic of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright import catalog
from meshwright.cost.parameters_and_flops import (
    dense_layer_params,
    expert_params,
    layer_params,
    scan_macs,
)
from meshwright.cost.whole_model import (
    active_params,
    keys_seen,
    layer_matmul_params,
    step_flops,
    total_params,
)
from meshwright.spec.model import Model
from meshwright.spec.model_parts import StateSpace

ONE = np.array([1])
DEGREES = np.array([1, 2, 4, 8])

SMALL: dict[str, Any] = {
    "n_layers": 5,
    "d_model": 64,
    "n_heads": 8,
    "d_ff": 256,
    "vocab": 512,
    "norm": "rmsnorm",
    "bias": "none",
}
EXPERTS = {"n_experts": 16, "top_k": 2, "d_ff": 32}
LATENT = {"q_rank": 24, "kv_rank": 12, "rope_dim": 4, "nope_dim": 10, "v_dim": 6}


def preset(name: str) -> Model:
    path = catalog.locate("specs/models", name, Path())
    return Model.model_validate(catalog.read(path).data)


def small(**fields: object) -> Model:
    return Model.model_validate(SMALL | fields)


def test_layer_of_mixtral() -> None:
    """Attention 2 x 4096^2 + 2 x 4096 x 1024 = 41,943,040; norms 2 x 4096; router
    8 x 4096 = 32,768. An expert 3 x 4096 x 14336 = 176,160,768, eight 1,409,286,144.

    32 x (41,943,040 + 8,192 + 32,768 + 1,409,286,144) + 2 x 32000 x 4096 + 4096.
    """
    mixtral = preset("mixtral-8x7b")
    assert layer_params(mixtral, ONE)[0] == 41_943_040 + 8_192 + 32_768
    assert list(expert_params(mixtral, DEGREES)) == [
        1_409_286_144 / ep for ep in DEGREES
    ]
    assert total_params(mixtral) == 32 * 1_451_270_144 + 262_144_000 + 4_096


def test_layers_of_deepseek_v3() -> None:
    """Queries 7168 x 1536 + 1536 + 1536 x 128 x 192, keys and values 7168 x 576 + 512
    + 512 x 128 x 256, output 128 x 128 x 7168: 187,107,328. Two norms of 7168.

    The first three layers have 3 x 7168 x 18432 = 396,361,728, the others one shared
    expert of 3 x 7168 x 2048 = 44,040,192 and a router of 256 x 7168 + 256.
    """
    v3 = preset("deepseek-v3")
    queries = 7_168 * 1_536 + 1_536 + 1_536 * 128 * 192
    keys_and_values = 7_168 * 576 + 512 + 512 * 128 * 256
    outside = queries + keys_and_values + 128 * 128 * 7_168 + 2 * 7_168
    assert outside == 187_107_328 + 14_336
    assert dense_layer_params(v3, ONE)[0] == outside + 396_361_728
    assert layer_params(v3, ONE)[0] == outside + 44_040_192 + 256 * 7_169
    assert expert_params(v3, ONE)[0] == 256 * 44_040_192


@pytest.mark.parametrize(
    ("name", "billions", "half_digit"),
    [
        # Jiang et al. 2024 (arXiv 2401.04088) section 1: 13B; its page says 12.9B.
        ("mixtral-8x7b", 12.9, 0.05),
        # mistral.ai/news/mixtral-8x22b: 39B.
        ("mixtral-8x22b", 39, 0.5),
        # DeepSeek-AI 2024 (arXiv 2405.04434), abstract: 21B.
        ("deepseek-v2", 21, 0.5),
        # Yang et al. 2025 (arXiv 2505.09388) section 1: 22B.
        ("qwen3-235b-a22b", 22, 0.5),
    ],
)
def test_active_parameters_are_those_published(
    name: str, billions: float, half_digit: float
) -> None:
    active = active_params(preset(name)) / 1e9
    assert active == pytest.approx(billions, abs=half_digit)


@pytest.mark.parametrize(
    ("name", "billions", "counts_look_up"),
    [
        # Its model card: 3.3B activated.
        ("qwen3-30b-a3b", 3.3, True),
        # github.com/deepseek-ai/DeepSeek-V3 README_WEIGHTS.md: 36.6B, head included.
        ("deepseek-v3", 36.6, False),
        # DeepSeek-AI 2024 (arXiv 2405.04434), appendix B: 2.4B.
        ("deepseek-v2-lite", 2.4, False),
    ],
)
def test_active_parameters_cut_to_those_published(
    name: str, billions: float, counts_look_up: bool
) -> None:
    model = preset(name)
    left_out = 0 if counts_look_up else model.vocab * model.d_model
    assert billions <= (active_params(model) - left_out) / 1e9 < billions + 0.1


def test_active_parameters_of_mixtral() -> None:
    """Two experts of eight: 32 x 6 x 176,160,768 = 33,822,867,456 lie idle."""
    mixtral = preset("mixtral-8x7b")
    assert active_params(mixtral) == 46_702_792_704 - 33_822_867_456


def test_a_dense_model_is_active_throughout() -> None:
    dense = preset("qwen3-8b")
    assert active_params(dense) == total_params(dense)
    assert list(expert_params(dense, DEGREES)) == [0, 0, 0, 0]
    assert list(layer_params(dense, DEGREES)) == list(
        dense_layer_params(dense, DEGREES)
    )


def test_query_and_key_norms() -> None:
    """Qwen3: a weight of head_dim for queries and one for keys, in every layer."""
    without = preset("qwen3-32b").model_copy(update={"qk_norm": False})
    assert total_params(preset("qwen3-32b")) - total_params(without) == 64 * 2 * 128


def test_flops_of_mixtral() -> None:
    """A token meets 41,943,040 in attention, the router's 32,768, and two experts of
    176,160,768 in 32 layers, and a head of 131,072,000; attention adds 6 x s x 4096.
    """
    weights = 32 * (41_943_040 + 32_768 + 2 * 176_160_768) + 131_072_000
    per_token = step_flops(preset("mixtral-8x7b"), 4_096, 3) / (3 * 4_096)
    assert per_token == 6 * weights + 32 * 6 * 4_096 * 4_096


def test_flops_of_deepseek_v3() -> None:
    """Matmuls of attention: 187,107,328 less its norms' 1,536 + 512. Scores are 128 x
    192 wide, what they weigh 128 x 128: forward s x (24,576 + 16,384) FLOPs causally,
    three times that with the backward. About 2.5e11 a token: 6 x 37e9, and attention.
    """
    attention = 187_107_328 - 2_048
    experts = 9 * 44_040_192 + 256 * 7_168
    weights = 3 * (attention + 396_361_728) + 58 * (attention + experts)
    weights += 129_280 * 7_168
    v3 = preset("deepseek-v3")
    per_token = step_flops(v3, 4_096, 2) / (2 * 4_096)
    assert per_token == 6 * weights + 61 * 3 * 4_096 * (24_576 + 16_384)
    # Vectors and the input embedding are met, and multiply nothing.
    assert weights == pytest.approx(active_params(v3) - 129_280 * 7_168, rel=1e-4)


def test_flops_of_mla_without_query_compression() -> None:
    """DeepSeek-V2-Lite: queries straight from the input, 2048 x 16 x 192."""
    queries, down, up = 2_048 * 16 * 192, 2_048 * 576, 512 * 16 * 256
    output, experts = 16 * 128 * 2_048, 3 * 2_048 * (6 * 1_408 + 2_816) + 2_048 * 64
    weights = queries + down + up + output + experts
    assert layer_matmul_params(preset("deepseek-v2-lite")) == weights


def test_latent_projections_down_are_on_every_gpu() -> None:
    """Down: 64 x (24 + 12 + 4) = 2,560 and norms 24 + 12 and 2 x 64, whole. Up and out:
    24 x 8 x 14 = 2,688, 12 x 8 x 16 = 1,536, 8 x 6 x 64 = 3,072, and the MLP's 2 x 64
    x 256 = 32,768, split.
    """
    held = dense_layer_params(small(mla=LATENT), DEGREES)
    whole, split = 2_560 + 36 + 128, 2_688 + 1_536 + 3_072 + 32_768
    assert list(held) == [whole + split / tp for tp in DEGREES]


def test_shared_experts_and_biases() -> None:
    """With biases everywhere a layer of 2 x 48 shared inner columns and 16 experts of
    32 has, in the shared expert, 48 split and 64 whole of them, and per expert 32 + 64.

    Attention: 4 x 64^2 split, biases 3 x 64 split and 64 whole; norms 4 x 64 whole;
    router 16 x 64.
    """
    model = small(moe=EXPERTS | {"shared_d_ff": 48}, bias="all", norm="layernorm")
    split = 4 * 64**2 + 3 * 64 + 2 * 64 * 48 + 48
    whole = 64 + 4 * 64 + 64 + 16 * 64
    assert list(layer_params(model, DEGREES)) == [split / tp + whole for tp in DEGREES]
    experts = 16 * (2 * 64 * 32 + 32 + 64)
    assert list(expert_params(model, DEGREES)) == [experts / ep for ep in DEGREES]


def test_no_shared_expert_has_no_bias() -> None:
    """Attention and its biases, norms and router alone, as above."""
    model = small(moe=EXPERTS, bias="all", norm="layernorm")
    assert layer_params(model, ONE)[0] == 4 * 64**2 + 4 * 64 + 4 * 64 + 16 * 64


def test_leading_layers_count_as_dense() -> None:
    """Each turns 16 experts of 2 x 64 x 32 and a router of 16 x 64 into 2 x 64 x 256;
    a token meets two of those experts.
    """
    none = small(moe=EXPERTS)
    three = small(moe=EXPERTS | {"first_dense_layers": 3})
    mlp, expert, router = 2 * 64 * 256, 2 * 64 * 32, 16 * 64
    change = total_params(three) - total_params(none)
    assert change == 3 * (mlp - 16 * expert - router)
    assert active_params(three) - active_params(none) == 3 * (mlp - 2 * expert - router)
    flops = step_flops(three, 128, 2) - step_flops(none, 128, 2)
    assert flops == 6 * 3 * (mlp - 2 * expert - router) * 128 * 2


def test_router_bias_has_no_flops() -> None:
    biased = small(moe=EXPERTS | {"router_bias": True})
    assert total_params(biased) - total_params(small(moe=EXPERTS)) == 5 * 16
    assert step_flops(biased, 64, 1) == step_flops(small(moe=EXPERTS), 64, 1)


def test_experts_in_a_latent_space_are_narrow() -> None:
    """Two matrices of 64 x 16 lead there and back, whole on every GPU; experts of 32
    read and write 16 values where others have 64.
    """
    plain, latent = small(moe=EXPERTS), small(moe=EXPERTS | {"latent_d": 16})
    ways = 2 * 64 * 16
    more = layer_params(latent, DEGREES) - layer_params(plain, DEGREES)
    assert list(more) == [ways] * len(DEGREES)
    assert expert_params(latent, ONE)[0] == 16 * 2 * 16 * 32
    narrower = 2 * (64 - 16) * 32
    change = total_params(latent) - total_params(plain)
    assert change == 5 * (ways - 16 * narrower)
    flops = step_flops(latent, 128, 2) - step_flops(plain, 128, 2)
    assert flops == 6 * 5 * (ways - 2 * narrower) * 128 * 2


def test_an_indexer_is_whole_on_every_gpu() -> None:
    """Queries of 3 heads of 8 from the latent vector, one key, a weight of a head."""
    indexer = {"n_heads": 3, "head_dim": 8, "top_k": 16}
    with_one = dense_layer_params(small(mla={**LATENT, "indexer": indexer}), DEGREES)
    more = with_one - dense_layer_params(small(mla=LATENT), DEGREES)
    queries, key_and_weights, norm = 24 * 3 * 8, 64 * (8 + 3), 2 * 8
    assert more.tolist() == [queries + key_and_weights + norm] * 4


def test_a_layer_that_shares_an_indexer_has_none_and_reads_what_it_picked() -> None:
    """Of four layers one picks 16 of 128 tokens, by 3 heads of 8; all attend to 16.

    In the mean over a causal mask a token sees 16 - 16 ** 2 / (2 x 128) = 15 keys; an
    indexer scores 64 of them.
    """
    mla = {**LATENT, "indexer": {"n_heads": 3, "head_dim": 8, "top_k": 16}}
    kinds = {"picks": {}, "shares": {"shares_indexer": True}}
    pattern = ["picks", "shares", "shares", "shares"]
    every = small(mla=mla, n_layers=4)
    shared = small(mla=mla, n_layers=4, kinds=kinds, pattern=pattern)
    weights = 24 * 3 * 8 + 64 * (8 + 3)
    fewer = total_params(every) - total_params(shared)
    assert fewer == 3 * (weights + 2 * 8)
    saved = step_flops(every, 128, 2) - step_flops(shared, 128, 2)
    assert saved == 3 * 6 * (weights + 64 * 3 * 8) * 128 * 2
    assert keys_seen(shared.of_kind("shares"), 128) == 15


def test_the_multiply_adds_of_a_scan_by_hand() -> None:
    """Products of matrices for a chunk of 128 tokens, and what a causal mask spares."""
    sizes = {"n_heads": 16, "head_dim": 64, "groups": 2, "state_dim": 64, "chunk": 128}
    mixer = StateSpace.model_validate({"form": "mamba2", **sizes})
    tokens, heads, groups, state, width = 128, 16, 2, 64, 64
    scores = tokens * tokens * state
    results = tokens * tokens * width
    states = 2 * heads * tokens * state * width
    convolution = tokens * 4 * (heads * width + 2 * groups * state)
    inside, beside = groups * scores + heads * results, states + convolution
    assert scan_macs(mixer, False) * tokens == inside + beside
    assert scan_macs(mixer, True) * tokens == inside / 2 + beside
    # Keys with keys, their inverse with keys and with values, queries with keys.
    delta = mixer.model_copy(update={"form": "delta_net"})
    inside = heads * (3 * scores + 2 * results)
    assert scan_macs(delta, False) * tokens == inside + beside
