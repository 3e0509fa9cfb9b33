"""Kernels of attention by name: their rates, against published ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright.cost import attention
from meshwright.cost.compute import kernels
from meshwright.cost.job import Efficiency
from meshwright.evidence.published_spec import find_gpu
from meshwright.plans.skeletons import Shards
from meshwright.spec.gpu import Gpu
from meshwright.spec.model_parts import StateSpace
from meshwright.spec.spec import Spec
from meshwright.spec.training import AttentionKernel

WIDTH = 2_048


def core_flops_per_s(
    kernel: str,
    gpu: str | Gpu,
    seq_len: int,
    head_dim: int = 128,
    cp: int = 1,
    exchange: str = "ring",
    efficiency: Efficiency | None = None,
) -> float:
    """Return the FLOP/s of the forward of one causal core, 2,048 wide in all."""
    found = find_gpu(gpu) if isinstance(gpu, str) else gpu
    spec = Spec.model_validate(
        {
            "model": {"n_layers": 1, "d_model": WIDTH, "n_heads": WIDTH // head_dim}
            | {"d_ff": 4_096, "vocab": 32_000},
            "cluster": {"topology": {"gpu": found, "levels": [LEVEL]}},
            "training": {"seq_len": seq_len, "global_batch": 8, "attention": kernel}
            | {"context_exchange": exchange},
        }
    )
    one = np.array([1])
    shards = Shards(one, cp * one, one, one, one, np.array([False]))
    took = kernels(spec, efficiency or Efficiency(), shards).layer.attention_s[0]
    return float(2 * seq_len**2 * WIDTH / cp / took)


LEVEL = {"name": "node", "size": 8, "gb_s": 450, "latency_us": 1}
H100, A100, B200 = "h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm-180gb"


@pytest.mark.parametrize(
    ("kernel", "head_dim", "seq_len", "published"),
    [
        ("flash2", 128, 2_048, 298),
        ("flash2", 128, 16_384, 335),
        ("flash2", 64, 16_384, 299),
        ("cudnn", 128, 1_024, 410),
        ("cudnn", 128, 16_384, 539),
        ("cudnn", 64, 4_096, 363),
        ("flash3", 128, 4_096, 579),
        ("flash3", 128, 16_384, 616),
        ("flash3", 64, 16_384, 473),
    ],
)
def test_rates_on_h100_are_within_a_tenth_of_published_ones(
    kernel: str, head_dim: int, seq_len: int, published: float
) -> None:
    """TFLOP/s of causal forwards (Shah et al. 2024, FlashAttention-3, figure 5)."""
    rate = core_flops_per_s(kernel, H100, seq_len, head_dim)
    assert rate == pytest.approx(published * 1e12, rel=0.11)


@pytest.mark.parametrize(("kernel", "published"), [("cudnn", 1_112), ("flash4", 1_418)])
def test_rates_on_b200_are_within_a_tenth_of_published_ones(
    kernel: str, published: float
) -> None:
    """TFLOP/s at 131,072 tokens (SimuMax) and 8,192 (flash-attention, 2280)."""
    seq_len = 131_072 if kernel == "cudnn" else 8_192
    rate = core_flops_per_s(kernel, B200, seq_len)
    assert rate == pytest.approx(published * 1e12, rel=0.12)


def test_old_kernels_are_no_faster_on_newer_gpus() -> None:
    on = {gpu: core_flops_per_s("flash2", gpu, 16_384) for gpu in (A100, H100, B200)}
    assert on[A100] < on[H100] == pytest.approx(on[B200])


@pytest.mark.parametrize(
    ("kernel", "gpu", "slower"),
    [("flash2", B200, 1), ("cudnn", B200, 2), ("flash2", H100, 2), ("flash2", A100, 2)],
)
def test_what_slows_kernels_of_blackwell_leaves_older_instructions_alone(
    kernel: str, gpu: str, slower: float
) -> None:
    usual, power_limited = (
        core_flops_per_s(kernel, gpu, 16_384, efficiency=Efficiency(attention=share))
        for share in (0.55, 0.275)
    )
    assert usual / power_limited == pytest.approx(slower)


def test_each_version_is_faster_than_the_one_before() -> None:
    versions: list[AttentionKernel] = ["flash1", "triton", "flash2", "flash3", "flash4"]
    rates = [core_flops_per_s(version, H100, 8_192) for version in versions]
    assert rates == sorted(rates)


def test_a_kernel_beside_a_mask_skips_nothing() -> None:
    """Over twice the pairs, at less than half the rate; wide heads are slower still."""
    skips = core_flops_per_s("flash2", A100, 8_192)
    masked = core_flops_per_s("efficient", A100, 8_192)
    assert masked / skips == pytest.approx(0.45 / 2)
    wide = core_flops_per_s("efficient", A100, 8_192, head_dim=256)
    assert wide / masked == pytest.approx(0.4)


@pytest.mark.parametrize(("head_dim", "share"), [(64, 1.0), (128, 0.4), (256, 1.0)])
def test_tiles_that_shared_memory_does_not_hold(head_dim: int, share: float) -> None:
    """RTX PRO 6000 has 100 KiB: of heads 128 wide results leave registers, too."""
    at = find_gpu("rtx-pro-6000-96gb")
    roomy = at.model_copy(update={"shared_memory_kib": 164})
    rates = [core_flops_per_s("efficient", gpu, 8_192, head_dim) for gpu in (at, roomy)]
    assert rates[0] / rates[1] == pytest.approx(share)


def test_kernels_of_a_ring_get_a_part_of_the_sequence() -> None:
    """Of 8,192 tokens a quarter in a ring of four, all where they are gathered."""
    whole = core_flops_per_s("flash2", A100, 8_192)
    gathered = core_flops_per_s("flash2", A100, 8_192, cp=4, exchange="gather")
    ring = core_flops_per_s("flash2", A100, 8_192, cp=4)
    assert gathered == pytest.approx(whole)
    assert ring / whole == pytest.approx(2_048 / 2_348 / (8_192 / 8_492))


def test_a_scan_multiplies_and_moves_its_share_of_the_tokens() -> None:
    """Mamba-2 of 16 heads of 64, 2 groups of 64 states, in chunks of 128, on 2 GPUs.

    In bf16 its inputs, 1,280 wide, are read twice and results, 1,024 wide, written. In
    fp32, which counts twice, move states of 1,024 x 64 for every 128 tokens, and rows
    of 128 scores of 2 groups, both ways.
    """
    asked: list[tuple[float, float]] = []
    mixer = StateSpace(form="mamba2", n_heads=16, head_dim=64, groups=2, state_dim=64)
    work: Any = SimpleNamespace(
        gpu=SimpleNamespace(element=2, attention_s=lambda *two: asked.append(two)),
        tokens=1_000,
        shards=SimpleNamespace(tp=2),
    )
    attention._scan_s(work, mixer.model_copy(update={"chunk": 128}))
    ((flops, moved),) = asked
    states = attention.STATE_PASSES * 2 * 1_024 * 64 / 128
    assert moved == 500 * (2 * 1_280 + 1_024 + states + 2 * 2 * 2 * 128)
    # Scores and their sums over chunks, states made and read, and the convolution.
    macs = 2 * 128 * 64 + 16 * 128 * 64 + 2 * 16 * 64 * 64 + 4 * 1_280
    assert flops == 500 * 2 * macs
