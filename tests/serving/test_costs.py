"""What serving costs: memory and seconds against arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.cost.whole_model import total_params
from meshwright.serving.check import broken_rules, check
from meshwright.serving.deployment import Engine, ServingJob
from meshwright.serving.price import (
    bubble,
    cached_bytes,
    cached_tokens,
    decode_pass,
    prefill_passes,
    round_s,
)
from meshwright.spec.units import GIB
from tests.helpers.serving_specs import TINY, serving_job, serving_plan

ONE = np.array([1])

READ_BYTES_PER_S = Engine().memory * 1e12
"""What engines reach of the 1000 GB/s of a plain GPU."""


def parts_gb(job: ServingJob, tp: int = 1) -> dict[str, float]:
    (stage,) = check(job, serving_plan(job, tp)).stages
    return {name: gib * GIB / 1e9 for name, gib in stage.parts.items()}


def test_llama3_8b_at_8k_with_eight_requests_takes_28_gb_and_fits_40() -> None:
    """8.03e9 parameters in 2 bytes; 2 x 32 x 8 x 128 x 2 x 8192 = 1.07e9 a request."""
    job = serving_job(batch=8, prompt_len=7680, output_len=512)
    parts = parts_gb(job)
    assert parts["weights"] == pytest.approx(16.06, rel=1e-3)
    assert parts["cache"] == pytest.approx(8 * 1.0737, rel=1e-3)
    assert sum(parts.values()) == pytest.approx(28, rel=0.05)
    assert not broken_rules(job, serving_plan(job))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # Keys and values of 32 heads of 128.
        ("llama2-7b", 2 * 32 * 128 * 2),
        # Of 8 heads: grouped queries.
        ("llama3-70b", 2 * 8 * 128 * 2),
        # A latent vector of 512 and a rotary key of 64.
        ("deepseek-v3", (512 + 64) * 2),
    ],
)
def test_cache_of_a_token_and_layer(model: str, expected: int) -> None:
    assert cached_bytes(serving_job(model), ONE)[0] == expected


def test_heads_are_split_until_each_gpu_has_one_and_latent_vectors_never() -> None:
    tp = np.array([1, 2, 8, 16])
    shares = cached_bytes(serving_job("llama3-70b"), tp) / (2 * 128 * 2)
    assert shares.tolist() == [8, 4, 1, 1]
    assert len(set(cached_bytes(serving_job("deepseek-v3"), tp).tolist())) == 1


def test_only_the_last_page_of_a_request_is_partly_empty() -> None:
    job = serving_job(prompt_len=33, output_len=1)
    assert cached_tokens(job) == 48
    assert cached_tokens(job.with_inference(prompt_len=31)) == 32
    assert cached_tokens(job.with_inference(kv_block=1)) == 34


@pytest.mark.parametrize(
    ("precision", "bytes_each"),
    # 4 bytes of scale and zero point for 128 weights of half a byte.
    [("bf16", 2), ("fp8", 1), ("int8", 1), ("int4", 0.5 + 4 / 128)],
)
def test_weights_are_quantised_but_for_embedding_and_head(
    precision: str, bytes_each: float
) -> None:
    job = serving_job(precision=precision)
    ends = 2 * 128256 * 4096 + 4096
    layers = total_params(job.model) - ends
    expected = layers * bytes_each + ends * 2
    assert parts_gb(job)["weights"] * 1e9 == pytest.approx(expected, rel=1e-9)


def test_a_cache_in_fp8_is_half_as_large() -> None:
    whole = parts_gb(serving_job())["cache"]
    assert parts_gb(serving_job(kv_precision="fp8"))["cache"] == whole / 2


def test_decoding_reads_every_weight_once_at_the_rate_of_memory() -> None:
    """One request: layers' matrices, 2 bytes a weight, at the share that is reached."""
    job = serving_job(batch=1)
    parts = check(job, serving_plan(job)).tpot_parts
    layer = 4096 * (4096 + 2 * 1024) + 4096**2 + 3 * 4096 * 14336
    expected_s = 32 * layer * 2 / READ_BYTES_PER_S
    assert parts["weight matmuls"] == pytest.approx(expected_s, rel=2e-3)


def test_decoding_reads_the_cache_of_all_requests() -> None:
    """16 requests of 4096 tokens on average: far more than queries and outputs."""
    job = serving_job(batch=16, prompt_len=3584, output_len=1024)
    parts = check(job, serving_plan(job)).tpot_parts
    cached = 32 * 16 * 4096 * 2 * 8 * 128 * 2
    assert parts["attention"] == pytest.approx(cached / READ_BYTES_PER_S, rel=1e-3)


def test_prefill_takes_the_flops_of_its_matmuls() -> None:
    """2 FLOPs a weight and token at 90 % of 100 TFLOP/s, a few percent for tiles."""
    job = serving_job(batch=1, prompt_len=8192, output_len=2)
    parts = check(job, serving_plan(job)).ttft_parts
    layer = 4096 * (4096 + 2 * 1024) + 4096**2 + 3 * 4096 * 14336
    ideal_s = 32 * 2 * layer * 8192 / 0.9e14
    assert 1.0 < parts["weight matmuls"] / ideal_s < 1.1


def test_prefill_is_bound_by_compute_and_decoding_by_memory() -> None:
    """Twice the peak halves the one, twice the bandwidth the other."""
    job = serving_job(batch=1)
    quick = serving_job(batch=1, gpu={"peak_tflops": {"bf16": 200}})
    wide = serving_job(batch=1, gpu={"memory_gb_s": 2000})
    base, computes, reads = (
        check(one, serving_plan(one)) for one in (job, quick, wide)
    )
    assert computes.ttft_s < 0.6 * base.ttft_s
    assert computes.tpot_s > 0.95 * base.tpot_s
    assert reads.ttft_s > 0.9 * base.ttft_s
    assert reads.tpot_s < 0.55 * base.tpot_s


def test_small_kernels_do_not_get_shorter_on_more_gpus() -> None:
    """Two norms, one cache write and one activation a layer, 4 us each."""
    job = serving_job(TINY, gpus=(4,), batch=1)
    for tp in (1, 4):
        parts = check(job, serving_plan(job, tp)).tpot_parts
        assert parts["small kernels"] == pytest.approx(7 * 4 * 4e-6)


def test_tensor_parallelism_pays_two_all_reduces_a_layer() -> None:
    """Two GPUs, 2 us up and 2 down: two steps of 4 us, and a kernel of 4 us."""
    job = serving_job(TINY, gpus=(2,), batch=1)
    alone = check(job, serving_plan(job)).tpot_parts["tensor links"]
    assert alone == 0
    links_s = check(job, serving_plan(job, 2)).tpot_parts["tensor links"]
    bytes_s = 256 * 2 / (0.8 * 100e9)
    # A ring of two passes each half twice. The head gathers half of 1024 logits.
    head_s = 1024 * 2 / 2 / (0.8 * 100e9) + 4e-6 + 4e-6
    expected_s = 7 * 2 * (bytes_s + 2 * 4e-6 + 4e-6) + head_s
    assert links_s == pytest.approx(expected_s, rel=1e-9)


def test_stages_hand_on_the_residual_stream() -> None:
    job = serving_job(TINY, gpus=(2,), batch=1)
    sends_s = check(job, serving_plan(job, layers=(4, 3))).tpot_parts["pipeline sends"]
    assert sends_s == pytest.approx(256 * 2 / (0.8 * 100e9) + 4e-6 + 4e-6)


def test_a_pass_meets_half_of_the_square_and_chunks_meet_what_is_before() -> None:
    job = serving_job(prompt_len=1000, prefill_tokens=500)
    found, count = prefill_passes(job, ONE, ONE)
    assert count[0] == 2
    assert found.tokens[0] == 500
    # 1 + 2 + ... + 1000.
    assert count[0] * found.pairs[0] == 1000 * 1001 / 2
    # The first chunk meets its own 500 tokens, the second all 1000.
    assert count[0] * found.cached[0] == 500 + 1000


def test_short_prompts_share_a_pass() -> None:
    job = serving_job(prompt_len=100, prefill_tokens=1000)
    found, count = prefill_passes(job, np.array([25]), np.array([25]))
    assert count[0] == 3
    assert found.tokens[0] * 3 == 2500
    assert found.sampled[0] * 3 == 25
    assert found.cached[0] == found.tokens[0]


def test_decoding_stands_in_the_middle_of_the_output() -> None:
    job, requests = serving_job(prompt_len=100, output_len=50), np.array([3])
    found = decode_pass(job, requests, requests)
    assert found.cached[0] == 3 * 125


@pytest.mark.parametrize(
    ("stages", "groups", "round_", "waits"),
    [
        # One group: the other stage waits.
        ([2.0, 2.0], 1, 4.0, 0.5),
        ([2.0, 2.0], 2, 4.0, 0.0),
        # The slow stage is never idle, the other for a third of the round.
        ([3.0, 1.0], 2, 6.0, 1 / 3),
        ([1.0, 1.0, 1.0], 6, 6.0, 0.0),
    ],
)
def test_rounds(stages: list[float], groups: int, round_: float, waits: float) -> None:
    assert round_s(np.array(stages), groups) == round_
    assert bubble(np.array(stages), groups) == pytest.approx(waits)


def test_experts_that_no_token_visits_are_not_read() -> None:
    """8 experts, 2 a token: one token reads 2, many read all 8."""
    moe = {"n_experts": 8, "top_k": 2, "d_ff": 4096}
    model = TINY | {"d_model": 4096, "head_dim": 32, "moe": moe}

    def experts(tokens: int) -> float:
        job = serving_job(model, batch=tokens, prompt_len=16, output_len=16)
        dense = serving_job(
            {name: each for name, each in model.items() if name != "moe"} | {"d_ff": 8},
            batch=tokens,
            prompt_len=16,
            output_len=16,
        )
        both = [check(one, serving_plan(one)).tpot_parts for one in (job, dense)]
        return both[0]["weight matmuls"] - both[1]["weight matmuls"]

    one_expert_s = 7 * 3 * 4096 * 4096 * 2 / READ_BYTES_PER_S
    assert experts(1) == pytest.approx(2 * one_expert_s, rel=0.05)
    # Of 64 tokens (1 - 1/4)^64 leave an expert alone: never.
    assert experts(64) == pytest.approx(8 * one_expert_s, rel=0.05)
