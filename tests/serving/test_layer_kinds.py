"""Serving of windows, and of layers that alternate."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from meshwright.serving.deployment import ServingJob, attended_share
from meshwright.serving.price import memory, price
from tests.helpers.serving_specs import TINY, serving_job, serving_spec
from tests.serving.test_rules import row

KINDS: dict[str, Any] = {"near": {"attention_window": 64}, "all": {}}


def job_of(**more: Any) -> ServingJob:
    model = {**TINY, "n_layers": 8, **more}
    return serving_job(model, prompt_len=512, output_len=128)


def test_windows_are_cached_alone_and_alternate_by_halves() -> None:
    near, every = job_of(attention_window=64), job_of()
    both = job_of(kinds=KINDS, pattern=["near", "all"])
    jobs, rows = (near, every, both), row(requests=4)
    held = [float(memory(job, rows).layer["cache"][0]) for job in jobs]
    assert held[0] == held[1] / (512 + 128) * 64
    assert held[2] == pytest.approx((held[0] + held[1]) / 2)
    taken = [price(job, rows).first_token.layer["attention"][0] for job in jobs]
    assert taken[2] == pytest.approx((taken[0] + taken[1]) / 2)


def test_the_share_that_is_attended() -> None:
    """A token in the middle of the output has 512 + 64 before it."""
    near = job_of(attention_window=64)
    assert attended_share(near, is_prefill=False) == pytest.approx(64 / 576, rel=0.01)
    seen = 64 - 64**2 / 1024
    assert attended_share(near, is_prefill=True) == pytest.approx(seen / 256)
    assert attended_share(job_of(), is_prefill=True) == 1.0


def test_layers_without_kernels_are_refused() -> None:
    mixer = {
        "form": "mamba2", "n_heads": 8, "head_dim": 32, "groups": 1, "state_dim": 16,
    }  # fmt: skip
    model = {**TINY, "mixer": "state_space", "state_space": mixer}
    told = r"model\.state_space: 'recurrent layers' is not modelled beside inference"
    with pytest.raises(ValidationError, match=told):
        serving_spec(model)
