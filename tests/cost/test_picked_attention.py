"""Attention to the tokens that an indexer picks: published rates, and the loss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright.cost import picked_attention
from meshwright.cost.activations import saved_tensors
from meshwright.cost.compute import LayerKernels, kernels
from meshwright.cost.job import Efficiency
from meshwright.evidence.published_spec import find_gpu
from meshwright.plans.skeletons import Shards
from meshwright.spec.spec import Spec

LATENT = {
    "q_rank": 2_048,
    "kv_rank": 512,
    "rope_dim": 64,
    "nope_dim": 192,
    "v_dim": 256,
}
INDEXER = {"n_heads": 32, "head_dim": 128, "top_k": 2_048}
GLM = {
    "n_layers": 2,
    "d_model": 6_144,
    "n_heads": 64,
    "d_ff": 12_288,
    "vocab": 154_880,
    "bias": "none",
    "mla": {**LATENT, "indexer": INDEXER},
}
"""Layers of GLM-5.2 (zai-org/GLM-5.2, config.json)."""

SHARING: dict[str, Any] = {
    "kinds": {"full": {}, "shared": {"shares_indexer": True}},
    "pattern": ["full", "shared"],
}
LEVEL = {"name": "node", "size": 8, "gb_s": 450, "latency_us": 1}
AT_BEST = Efficiency(gemm=1.0, memory=1.0, launch_s=1e-7)


def spec_of(seq_len: int, model: dict[str, Any] | None = None, **fields: Any) -> Spec:
    gpu = find_gpu(fields.pop("gpu", "h100-sxm-80gb"))
    return Spec.model_validate(
        {
            "model": {**GLM, **(model or {})},
            "cluster": {"topology": {"gpu": gpu, "levels": [LEVEL]}},
            "framework": fields.pop("framework", "ideal"),
            "training": {"seq_len": seq_len, "global_batch": 8, **fields},
        }
    )


def layer_of(spec: Spec, kind: str = "", cp: int = 1) -> LayerKernels:
    """Return the kernels of a layer at peak rates."""
    if kind:
        only = spec.model.of_kind(kind)
        spec = spec.model_copy(update={"model": only})
    one = np.array([1])
    shards = Shards(one, cp * one, one, one, one, np.array([False]))
    return kernels(spec, AT_BEST, shards).layer


def core_s(seq_len: int, gpu: str) -> tuple[float, float]:
    """Return the seconds of a core without an indexer, forward and backward."""
    layer = layer_of(spec_of(seq_len, SHARING, gpu=gpu), "shared")
    return float(layer.attention_s[0]), float(layer.attention_backward_s[0])


@pytest.mark.parametrize(
    ("gpu", "forward", "backward"),
    [
        ("h100-sxm-80gb", 640, 371),
        ("b200-sxm-180gb", 1_450, 0),
        ("gb200-186gb", 0, 672),
    ],
)
def test_rates_are_those_published(gpu: str, forward: float, backward: float) -> None:
    """TFLOP/s of 64 heads that read 2,048 tokens each (FlashMLA, cudnn-frontend).

    Of 131,072 queries few see fewer. 2 and 5 matmuls are 576 and 512 wide.
    """
    pairs = 131_072 * (2_048 - 2_048**2 / (2 * 131_072)) * 64
    forward_s, backward_s = core_s(131_072, gpu)
    if forward:
        rate = 2 * pairs * (576 + 512) / forward_s / 1e12
        assert rate == pytest.approx(forward, rel=0.05)
    if backward:
        rate = 2 * pairs * (3 * 576 + 2 * 512) / backward_s / 1e12
        assert rate == pytest.approx(backward, rel=0.05)


def test_a_kernel_scores_the_half_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token costs 2 FLOP for each of the half of 4,096 keys, 64 heads of 128 wide."""
    asked: list[tuple[Any, ...]] = []
    no_loop = SimpleNamespace(scores_by_head=lambda *_: np.array([False]))
    monkeypatch.setattr(picked_attention, "framework_of", lambda _: no_loop)
    indexer: Any = SimpleNamespace(n_heads=64, head_dim=128)

    def attention_s(*amounts: Any) -> float:
        asked.append(amounts)
        return 1.0

    work: Any = SimpleNamespace(
        spec=SimpleNamespace(training=SimpleNamespace(seq_len=4096, text_tokens=4096)),
        gpu=SimpleNamespace(
            attention_s=attention_s, stream_s=lambda moved: moved, element=2
        ),
        tokens=1_000,
        shards=[None],
    )
    # The sum over heads is written and read in fp32.
    scored = picked_attention._scores_s(work, indexer, 0.5)
    assert scored == 1.0 + 1_000 * 4_096 * 8 / 2
    assert asked == [(1_000 * 4096 * 64 * 128, 1_000 * 64 * 128, 0.5)]


@pytest.mark.parametrize(
    ("model", "fields", "cp", "by_head"),
    [
        ({}, {}, 1, False),
        (SHARING, {}, 1, True),
        ({}, {"document_tokens": 512}, 1, True),
        ({}, {}, 2, True),
        (SHARING, {"document_tokens": 512}, 2, False),
    ],
)
def test_when_megatron_scores_head_by_head(
    model: dict[str, Any], fields: dict[str, Any], cp: int, by_head: bool
) -> None:
    """32 matmuls in fp32 over all pairs of tokens take longer than one kernel."""
    took = {
        framework: layer_of(
            spec_of(4_096, model, framework=framework, **fields),
            "full" if model else "",
            cp,
        ).attention_s[0]
        for framework in ("ideal", "megatron")
    }
    assert (took["megatron"] > 1.5 * took["ideal"]) == by_head


def test_a_longer_sequence_than_a_kernel_scores() -> None:
    """Scores of 16,384 tokens are 1 GiB in fp32."""
    ratios = [
        layer_of(spec_of(tokens, framework="megatron")).attention_s[0]
        / layer_of(spec_of(tokens)).attention_s[0]
        for tokens in (16_384, 16_896)
    ]
    assert ratios[0] == 1
    assert ratios[1] > 2


def backward_s(over: str, model: dict[str, Any], framework: str = "ideal") -> float:
    spec = spec_of(4_096, model, framework=framework, indexer_loss=over)
    return float(layer_of(spec, "full" if model else "").attention_backward_s[0])


def test_the_loss_over_picks() -> None:
    """Of 4,096 tokens that read 1,536 in the mean and have 2,048 places for picks.

    The target is 64 heads of 576 at the rate of the backward, 0.74 of 0.55 of the peak,
    by 1,536 / 1,706; three products of the indexer, as if it had 64 heads of 128, at
    all of that rate; 340 bytes a place; and gradients of its three matrices.
    """
    spec = spec_of(4_096)
    gpu = spec.cluster.topology.gpu
    peak_flops = (gpu.peak_tflops.bf16 or 0) * 1e12
    rate = 0.74 * 0.55 * peak_flops
    target_s = 2 * 4_096 * 1_536 * 64 * 576 / (rate * 1_536 / 1_706)
    gradients_s = 3 * 2 * 4_096 * 2_048 * 64 * 128 / rate
    moved_s = 340 * 4_096 * 2_048 / (gpu.memory_gb_s * 1e9)
    expected_s = target_s + gradients_s + moved_s
    matrices = 2_048 * 32 * 128 + 6_144 * (128 + 32)
    matrices_s = 2 * 4_096 * matrices / peak_flops
    loss_s = backward_s("picked", {}) - backward_s("none", {})
    # Small matmuls reach a part of the peak.
    assert expected_s + matrices_s < loss_s < expected_s + 3 * matrices_s


def test_a_loss_over_all_costs_more() -> None:
    assert backward_s("none", {}) < backward_s("picked", {}) < backward_s("all", {})


def test_megatron_runs_attention_again_for_a_loss_of_shared_picks() -> None:
    """The forward of the core, beside what the same loss costs without sharing."""
    spec = spec_of(4_096, SHARING, framework="megatron")
    forward_s = float(layer_of(spec, "shared").attention_s[0])
    alone, shared = (
        backward_s("picked", model, "megatron") - backward_s("none", model, "megatron")
        for model in ({}, SHARING)
    )
    assert shared - alone == pytest.approx(forward_s)


def test_a_layer_that_shares_picks_has_no_loss() -> None:
    took = [
        layer_of(spec_of(4_096, SHARING, indexer_loss=over), "shared")
        for over in ("picked", "none")
    ]
    assert took[0].attention_backward_s == took[1].attention_backward_s


def test_stored_scores_take_longer_than_kernels() -> None:
    """All pairs in fp32, twelve times over, in place of those that are picked."""
    by_kernel = layer_of(spec_of(4_096))
    stored = layer_of(spec_of(4_096, attention="plain"))
    assert stored.attention_s[0] > 5 * by_kernel.attention_s[0]
    assert stored.attention_backward_s[0] > 5 * by_kernel.attention_backward_s[0]


def test_what_the_host_starts() -> None:
    """120 operations, 6 for each of 32 heads, and 90 for the loss, of 25 a layer."""
    one, sharing = (
        layer_of(spec_of(4_096, SHARING, framework="megatron"), kind)
        for kind in ("full", "shared")
    )
    one_s = AT_BEST.dispatch_s / 25
    forward_s = one.dispatch_s[0] - sharing.dispatch_s[0]
    assert forward_s == pytest.approx((120 + 6 * 32) * one_s)
    backward = one.dispatch_backward_s[0] - sharing.dispatch_backward_s[0]
    assert backward == pytest.approx(90 * one_s)


@pytest.mark.parametrize(("over", "trained"), [("picked", 32 * 129 + 128), ("none", 0)])
def test_what_a_layer_saves(over: str, trained: int) -> None:
    """Numbers of 2 bytes: queries of 192 and of 576 and results of 512 and 256 a head.

    One key of 576 for all heads; picks of 4 bytes, of which a query has 2,048; and
    gradients of the indexer's queries, weights and key, where it has a loss.
    """
    spec = spec_of(4_096, indexer_loss=over)
    sizes = {one.name: one.bytes_per_token for one in saved_tensors(spec, True)}
    assert sizes["queries"] == 2 * 64 * 192
    assert sizes["latent queries"] == 2 * 64 * 576
    assert sizes["latent keys"] == 2 * 576
    assert sizes["latent output"] == 2 * 64 * 512
    assert sizes["attention output"] == 2 * 64 * 256
    assert sizes["picks"] == 4 * 2_048
    assert sizes.get("indexer", 0) == 2 * trained


def test_stored_scores_are_saved_for_all_tokens() -> None:
    """13 bytes for each of 64 heads and 4,096 tokens, and no numbers of picks."""
    spec = spec_of(4_096, attention="plain")
    sizes = {one.name: one.bytes_per_token for one in saved_tensors(spec, True)}
    assert sizes["softmax"] == 13 * 64 * 4_096
    assert "picks" not in sizes
