"""What the engine does with weights, cached heads and the host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.serving.check import check
from meshwright.serving.deployment import Engine
from tests.helpers.serving_specs import TINY, serving_job, serving_plan

LONG = {"batch": 16, "prompt_len": 3584, "output_len": 1024}


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_unpacking_a_weight_takes_as_long_as_so_many_bytes(precision: str) -> None:
    """One request: every weight of a layer's matrices is read once."""
    job = serving_job(batch=1, precision=precision)
    parts = check(job, serving_plan(job)).tpot_parts
    layer = 4096 * (4096 + 2 * 1024) + 4096**2 + 3 * 4096 * 14336
    each = job.weight_bytes + Engine().unpack_bytes
    expected_s = 32 * layer * each / (Engine().memory * 1e12)
    assert parts["weight matmuls"] == pytest.approx(expected_s, rel=3e-3)


def test_fp8_weights_are_not_unpacked() -> None:
    assert serving_job(precision="fp8").read_bytes == 1


def test_a_kernel_that_works_head_by_head_rereads_the_cache_of_a_group() -> None:
    """Llama 3 8B has 4 queries a key; 16 requests of 4096 tokens, 128 KiB each."""
    grouped, per_head = (
        serving_job(**LONG, decode_attention=kernel)
        for kernel in ("grouped", "per_head")
    )
    cached = 32 * 16 * 4096 * 2 * 8 * 128 * 2 / (Engine().memory * 1e12)
    once, each = (
        check(job, serving_plan(job)).tpot_parts["attention"]
        for job in (grouped, per_head)
    )
    assert once == pytest.approx(cached, rel=1e-3)
    assert each == pytest.approx(cached * max(1, 4 / Engine().reread), rel=1e-3)


def test_no_kernel_rereads_where_every_head_has_its_own_keys() -> None:
    jobs = [
        serving_job("llama2-7b", batch=2, prompt_len=1024, decode_attention=kernel)
        for kernel in ("grouped", "per_head")
    ]
    first, second = (check(job, serving_plan(job)).tpot_s for job in jobs)
    assert first == second


@given(st.booleans(), st.integers(1, 8))
def test_the_gpu_waits_once_a_pass_for_a_host_that_is_not_overlapped(
    overlap: bool, batch: int
) -> None:
    job = serving_job(TINY, batch=batch, prompt_len=40, overlap_host=overlap)
    host_s = check(job, serving_plan(job)).tpot_parts["host"]
    assert host_s == (0.0 if overlap else Engine().pass_s)


def test_a_short_prompt_waits_for_its_launches_and_a_long_one_does_not() -> None:
    """Seven tiny layers are as slow as the host; 32 of 8192 tokens are not."""
    short = serving_job(TINY, batch=1, prompt_len=40, overlap_host=True)
    ttft_s = check(short, serving_plan(short)).ttft_s
    parts = check(short, serving_plan(short)).ttft_parts
    assert ttft_s == pytest.approx(7 * Engine().layer_s + parts["head"])
    long = serving_job(batch=1, prompt_len=8192, overlap_host=True)
    assert check(long, serving_plan(long)).ttft_parts["host"] == 0
