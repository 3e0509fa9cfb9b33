"""Which tensors a layer saves: how they are split, and what recomputing them frees.

Llama-3-8B's widths in bf16, sequences of 8,192, flash attention; bytes per token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.cost.activations import saved_bytes
from meshwright.plans.skeletons import CHEAP, LAYERNORM, MLP, PER_OP, Shards
from meshwright.spec.spec import Spec
from tests.helpers.fused import FUSED

H, FF, HEADS = 4096, 14336, 32
STATISTICS = 4 * HEADS
GPU = {"memory_gib": 80, "memory_gb_s": 2000, "peak_tflops": {"bf16": 300}}
LINK = {"name": "l", "size": 1, "gb_s": 300, "latency_us": 1}
EXPERTS = {"n_experts": 64, "top_k": 6, "d_ff": 1408, "shared_d_ff": 2816}


def llama(
    framework: str = "megatron", fused: str | None = None, **model: object
) -> Spec:
    return Spec.model_validate(
        {
            "model": {
                "n_layers": 4,
                "d_model": H,
                "n_heads": HEADS,
                "n_kv_heads": 8,
                "d_ff": FF,
                "vocab": 1024,
                "gated_mlp": True,
                "norm": "rmsnorm",
                "bias": "none",
                **model,
            },
            "framework": framework,
            "cluster": {"topology": {"gpu": GPU, "levels": [LINK]}},
            "training": {
                "seq_len": 8192,
                "global_batch": 1,
                "fused": FUSED[fused] if fused else None,
            },
        }
    )


def shards(tp: int, ep: int = 1, sp: bool = True) -> Shards:
    """Return one GPU of a group."""
    one = np.array([1])
    return Shards(tp * one, one, ep * one, one, one, np.array([sp]))


def per_token(
    spec: Spec, tp: int = 1, selective: bool = False, sp: bool = True
) -> float:
    return float(saved_bytes(spec, shards(tp, sp=sp), CHEAP * selective)[0])


@pytest.mark.parametrize(
    ("framework", "fused"),
    [
        ("megatron", "all"),
        ("deepspeed", "norms"),
        ("torchtitan", "norms"),
        ("fsdp", "norms"),
    ],
)
def test_frameworks_fuse_what_they_fuse(framework: str, fused: str) -> None:
    assert per_token(llama(framework)) == per_token(llama("megatron", fused))


def test_each_fusion_saves_its_copies() -> None:
    """The activated gate, 2 ff; for two norms 4 + 4 h in fp32 instead of 2 h."""
    every, norms, none = (per_token(llama(fused=f)) for f in ("all", "norms", "none"))
    assert norms - every == 2 * FF
    assert none - norms == 2 * (4 + 4 - 2) * H


@pytest.mark.parametrize("fused", ["all", "norms", "none"])
def test_recomputing_norms_and_activations_undoes_the_difference(fused: str) -> None:
    """Left are layer inputs 2 + 2 h, queries, keys, values, output and 2 x 2 ff."""
    left = 2 * 2 * H + 2 * H + 2 * 2 * H / 4 + 2 * H + STATISTICS + 2 * 2 * FF
    assert per_token(llama(fused=fused), selective=True) == left


def test_tensor_parallelism_splits_no_routed_expert() -> None:
    """Of a group of 4 each GPU sends its own quarter of the tokens through 6 experts.

    16 GPUs would repeat keys and values of 8 heads; all else is split evenly.
    """
    spec = llama(moe=EXPERTS)
    assert per_token(spec, 4) == pytest.approx(per_token(spec) / 4, rel=1e-12)
    repeated = 2 * 2 * (H / 4) * (1 / 8 - 1 / 16)
    expected = per_token(spec) / 16 + repeated
    assert per_token(spec, 16) == pytest.approx(expected, rel=1e-12)


def test_tokens_that_are_not_split_go_to_experts_whole() -> None:
    """Without sequence parallelism: a group splits shared experts and heads alone."""
    spec = llama(moe=EXPERTS)
    routed = 4 * 64 + 6 * (2 * H + 3 * 2 * 1408)
    whole = routed + 4 * 2 * H
    expected = whole + (per_token(spec) - whole) / 4
    assert per_token(spec, 4, sp=False) == pytest.approx(expected, rel=1e-12)


def test_experts_save_their_tokens_top_k_times() -> None:
    """Instead of the MLP's 3 x 2 ff: probabilities, inputs, inner widths."""
    mlp = 3 * 2 * FF
    routed = 4 * 64 + 6 * (2 * H + 3 * 2 * 1408)
    shared = 3 * 2 * 2816
    got = per_token(llama(moe=EXPERTS)) - per_token(llama())
    assert got == routed + shared - mlp


def test_capacity_pads_routed_experts_alone() -> None:
    padded = llama(moe={**EXPERTS, "capacity_factor": 1.25})
    more = per_token(padded) - per_token(llama(moe=EXPERTS))
    assert more == 0.25 * 6 * (2 * H + 3 * 2 * 1408)


def imbalanced(imbalance: float | None, moe: dict[str, Any]) -> Spec:
    spec = llama(moe=moe)
    changed = {"expert_imbalance": imbalance}
    training = spec.training.model_copy(update=changed)
    return spec.model_copy(update={"training": training})


def test_expert_parallelism_moves_tokens_and_saves_none() -> None:
    """Balanced, a GPU receives as many copies as it sends; dropped tokens balance."""
    for moe, imbalance in ((EXPERTS, 1), ({**EXPERTS, "capacity_factor": 1.25}, None)):
        spec = imbalanced(imbalance, moe)
        alone, split = (saved_bytes(spec, shards(4, ep)) for ep in (1, 64))
        np.testing.assert_array_equal(alone, split)


def test_experts_of_the_fullest_gpu_save_more_than_their_share() -> None:
    routed = 6 * (2 * H + 3 * 2 * 1408)
    for said, imbalance in ((None, 1.2), (1.5, 1.5)):
        spec = imbalanced(said, EXPERTS)
        alone, split = (saved_bytes(spec, shards(1, ep)) for ep in (1, 64))
        assert (split - alone)[0] == pytest.approx((imbalance - 1) * routed)


def test_leading_dense_layers_are_those_of_a_dense_model() -> None:
    dense, mixed = llama(), llama(moe={**EXPERTS, "first_dense_layers": 1})
    for bits in (0, CHEAP, LAYERNORM, MLP, PER_OP):
        expected = saved_bytes(dense, shards(2), bits)
        for spec in (dense, mixed):
            got = saved_bytes(spec, shards(2), bits, is_dense=True)
            np.testing.assert_array_equal(got, expected)


def test_latent_attention_saves_latents_and_heads() -> None:
    """DeepSeek-V3's ranks: heads replace queries, keys, values and output."""
    mla = {"q_rank": 1536, "kv_rank": 512, "rope_dim": 64, "nope_dim": 128, "v_dim": 96}
    spec = llama(n_kv_heads=HEADS, head_dim=192, mla=mla)
    latents = 2 * (1536 + 512) * 2 + 2 * 64
    heads = 2 * HEADS * (192 + 192 + 96 + 96)
    plain = 2 * (H + 2 * H / 4 + H)
    assert per_token(spec) - per_token(llama()) == latents + heads - plain
    assert per_token(spec, 8) == pytest.approx(per_token(spec) / 8, rel=1e-12)
    whole = latents + 4 * 2 * H
    expected = whole + (per_token(spec) - whole) / 8
    assert per_token(spec, 8, sp=False) == pytest.approx(expected, rel=1e-12)


def test_key_norms_are_split_as_keys_are() -> None:
    """Norms of 32 heads of queries and 8 of keys read 2 bytes a number, on 16 GPUs."""
    more = per_token(llama(qk_norm=True), 16) - per_token(llama(), 16)
    assert more == pytest.approx(2 * H / 16 + 2 * (H / 4) / 8, rel=1e-12)


def test_an_mlp_in_parts_saves_its_input_and_one_part() -> None:
    """Gate, value and their product are 3 x 14,336 numbers of two bytes."""
    whole = llama()
    training = whole.training.model_copy(update={"mlp_chunks": 4})
    cut = whole.model_copy(update={"training": training})
    left = per_token(whole) - per_token(cut)
    assert left == pytest.approx(2 * 3 * FF * 3 / 4)
