"""The rank of a plan among all skeletons, against brute force over all plans."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import meshwright as mw
from meshwright.cost.job import make_job
from meshwright.explanations.judged_plan import rank
from meshwright.spec.spec import Spec
from tests.helpers.simplicity_oracle import Everything, Key, everything

LAYERS = 5

ROUNDING_S = 3e-8
"""Seconds that whole ticks may be off: one for each of thirty terms."""

MODEL: dict[str, Any] = {
    "n_layers": LAYERS, "d_model": 512, "n_heads": 8, "d_ff": 2048, "vocab": 8000,
}  # fmt: skip

GPU: dict[str, Any] = {
    "memory_gib": 4.4,
    "memory_gb_s": 900.0,
    "peak_tflops": {"bf16": 100.0},
}

EXPERTS = {"n_experts": 4, "top_k": 2, "d_ff": 512}

KINDS: dict[str, dict[str, Any]] = {
    "dense": {"model": MODEL, "pins": {"cp": 1, "vpp": 1, "zero": [0, 1]}},
    "experts": {
        "model": MODEL | {"moe": EXPERTS},
        "pins": {"cp": 1, "vpp": 1, "zero": 1, "schedule": "1f1b"},
    },
}


@cache
def spec_of(kind: str) -> Spec:
    levels = [
        {"name": "node", "size": 2, "gb_s": 50.0, "latency_us": 2.0},
        {"name": "net", "size": 2, "gb_s": 5.0, "latency_us": 5.0},
    ]
    return Spec.model_validate(
        {
            "cluster": {"topology": {"gpu": GPU, "levels": levels}},
            "training": {"seq_len": 1024, "global_batch": 8, "precision": "bf16"},
            "framework": "megatron",
            **KINDS[kind],
        }
    )


@cache
def walked(kind: str) -> tuple[Everything, dict[Key, float]]:
    """Return all plans, and the least step of each skeleton."""
    every, least = everything(spec_of(kind)), dict[Key, float]()
    for key, step_s in zip(every.decisions, every.step_s, strict=True):
        least[key] = min(step_s, least.get(key, step_s))
    return every, least


@pytest.mark.parametrize(("kind", "most_open"), [("dense", 200), ("experts", 420)])
def test_a_rank_counts_the_skeletons_whose_plan_is_faster(
    kind: str, most_open: int
) -> None:
    """`most_open` is in how many ranks all that were asked for may differ."""
    job, (_, least) = make_job(spec_of(kind)), walked(kind)
    steps, open_ranks = sorted(least.values()), 0
    assert len(steps) > 40
    for at in range(0, len(steps), 14):
        # Below the plan itself, so that rounding does not make it faster than it is.
        step_s = steps[at] - 2 * ROUNDING_S
        found = rank(job, step_s)
        assert found is not None
        faster = sum(step < step_s - ROUNDING_S for step in steps)
        as_fast = sum(step < step_s + ROUNDING_S for step in steps)
        assert found.of == len(steps)
        assert found.first <= 1 + as_fast
        assert found.last >= max(faster, 1)
        assert found.beaten == 1 - found.last / found.of
        open_ranks += found.last - found.first
    assert open_ranks <= most_open
    first, last = rank(job, steps[0] / 2), rank(job, 2 * steps[-1])
    assert first is not None
    assert last is not None
    assert (first.first, first.last) == (1, 1)
    assert (last.first, last.last, last.beaten) == (len(steps), len(steps), 0.0)


@pytest.mark.parametrize(
    "name", ["gpt-1.3b-2x4090-pcie", "gpt2-xl-2x3090-nvlink", "llama2-13b-8xa100"]
)
def test_the_fastest_plan_is_the_first(name: str) -> None:
    """Its skeleton was counted as a faster one, by nanoseconds of whole ticks."""
    spec = mw.load(name, mw.Spec)
    fastest = mw.solve(spec, by_kind=False, safety=False).optimum
    assert fastest is not None
    standing = mw.explain(spec, str(fastest.plan)).standing
    assert standing is not None
    assert (standing.first, standing.last) == (1, 1)
