"""Attention that is data-parallel beside tensor-parallel experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.planner.options import Options
from meshwright.serving.check import broken_rules, check
from meshwright.serving.deployment import ServingJob, make_serving_job
from meshwright.serving.explain import explain_serving
from meshwright.serving.solve import largest_batch, solve_serving
from meshwright.spec.plan_fields import Pins
from meshwright.spec.serving import ServingSpec
from meshwright.spec.units import GIB
from tests.helpers.command import run
from tests.helpers.serving_specs import TINY, serving_job, serving_plan, serving_spec

LATENT: dict[str, Any] = {
    **TINY,
    "n_kv_heads": 8,
    "mla": {"kv_rank": 64, "rope_dim": 16, "nope_dim": 32, "v_dim": 32},
    "moe": {"n_experts": 16, "top_k": 2, "d_ff": 256, "shared_d_ff": 128},
}
"""Latent attention and experts, on the widths of the tiny model."""

ASKED: dict[str, Any] = {"batch": 64, "prompt_len": 256, "output_len": 64}
GPUS = 4


def job(**changes: int) -> ServingJob:
    return serving_job(LATENT, gpus=(GPUS,), **ASKED | changes)


def priced(groups: int, **changes: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return bytes and seconds between tokens of a plan by part."""
    served = job(**changes)
    changed = serving_plan(served, GPUS).model_copy(update={"attention_dp": groups})
    told = check(served, changed)
    assert not broken_rules(served, changed)
    return {n: gib * GIB for n, gib in told.stages[0].parts.items()}, told.tpot_parts


def test_attention_is_replicated_experts_are_not_and_the_cache_is_split() -> None:
    """By hand, in numbers of 16 bits: what a GPU has of 1 and of 4 groups."""
    (one, _), (four, _) = priced(1), priced(GPUS)
    width, heads = 256, 8
    # Queries of 48, keys and values of 32 each from 64; outputs of 32 a head.
    attention = width * heads * 48 + 64 * heads * 64 + heads * 32 * width
    shared, ends = 3 * width * 128, 2 * 1024 * width
    split = 7 * (attention + shared) + ends
    more = 2 * split * (1 - 1 / GPUS)
    assert four["weights"] - one["weights"] == pytest.approx(more, rel=1e-9)
    # Every GPU caches the latent vectors of all requests, or of a quarter of them.
    assert one["cache"] == 7 * 64 * 320 * (64 + 16) * 2
    assert four["cache"] == one["cache"] / GPUS


def test_groups_read_less_cache_and_gather_tokens_once_a_layer() -> None:
    (_, one), (_, four) = priced(1, prompt_len=16_384), priced(GPUS, prompt_len=16_384)
    # A GPU reads the latent vectors of all requests, or of a quarter of them.
    assert four["attention"] < one["attention"] / 2
    # Two all-reduces a layer and a gather of logits, or one gather and scatter a layer.
    assert one["tensor links"] * 0.8 < 2 * four["tensor links"] < one["tensor links"]


def test_two_groups_lie_between_one_and_four() -> None:
    weights, caches = zip(
        *((part["weights"], part["cache"]) for part, _ in map(priced, (1, 2, 4))),
        strict=True,
    )
    assert weights[0] < weights[1] < weights[2]
    assert caches[0] == 2 * caches[1] == 4 * caches[2]


DEEPSEEK = """\
model: deepseek-v3
cluster: {topology: dgx-h200}
inference: {batch: %d, prompt_len: 2048, output_len: 512, precision: fp8,
  objective: throughput}
"""


def test_many_requests_of_deepseek_v3_attend_apart_and_one_does_not(
    tmp_path: Path,
) -> None:
    """As its authors and SGLang serve it: more requests fit, and they are faster."""
    path = tmp_path / "serve.yaml"
    path.write_text(DEEPSEEK % 256)
    done = run("solve", str(path))
    assert "tp 8 · attention dp 8 · pp 1" in done.stdout, done.stderr
    assert "vLLM: --data-parallel-size 8" in done.stdout
    served = make_serving_job(mw.load(path, mw.ServingSpec))
    apart, whole = (
        largest_batch(served, serving_plan(served, 8).model_copy(update=update), 8192)
        for update in ({"attention_dp": 8}, {})
    )
    assert apart > 3 * whole
    path.write_text(DEEPSEEK % 1)
    assert "tp 8 · pp 1" in run("solve", str(path)).stdout


def test_dense_models_have_replicas_instead() -> None:
    spec = serving_spec(TINY, gpus=(2,), pins={"attention_dp": 2}, **ASKED)
    told = explain_serving(spec, None, Options())
    assert not told.fits
    assert "pin attention_dp" in {rule.rule for rule in told.broken_rules}
    assert told.conflict is not None
    assert [rule.rule for rule in told.conflict.rules] == ["pins.attention_dp"]


def test_training_refuses_the_pin_by_name() -> None:
    with pytest.raises(mw.SpecError, match="attention_dp: '2' is of inference alone"):
        mw.load("gpt-1.3b-2xh100-nvlink", mw.Spec, pins=["attention_dp=2"])


def test_the_plan_is_written_read_and_launched() -> None:
    spec = serving_spec(LATENT, gpus=(GPUS,), pins={"attention_dp": 2}, **ASKED)
    best = solve_serving(spec).best
    assert best is not None
    assert str(best.plan).endswith(",attention_dp=2")
    pins = Pins.model_validate({"tp": best.plan.tp, "attention_dp": 2})
    again = explain_serving(spec, pins, Options()).outcome.best
    assert again is not None
    assert again.plan == best.plan
    tp = best.plan.tp
    assert best.plan.launch_options["SGLang"].startswith(f"--tp-size {tp} ")
    assert "--dp-size 2 --enable-dp-attention" in best.plan.launch_options["SGLang"]
    assert "--data-parallel-size 2" in best.plan.launch_options["vLLM"]


def test_a_plan_whose_groups_do_not_divide_is_refused() -> None:
    spec = serving_spec(LATENT, gpus=(GPUS,), **ASKED)
    plan = serving_plan(job(), GPUS).model_copy(update={"attention_dp": 3})
    with pytest.raises(mw.SpecError, match="attention_dp: 3 for tp 4"):
        mw.price(spec, plan)


@pytest.mark.parametrize(
    ("precision", "tp", "told"),
    [
        ("fp8", 8, ["the 1,536 of an expert over tp 8 are 192."]),
        ("fp8", 4, []),  # 384 are three blocks
        ("bf16", 8, []),
    ],
)
def test_experts_that_cut_blocks_of_fp8_are_told(
    precision: str, tp: int, told: list[str]
) -> None:
    """Qwen3-235B-A22B-FP8 starts over four GPUs and not over eight."""
    fields = {
        "model": "qwen3-235b-a22b",
        "cluster": {"machine": "dgx-h200"},
        "inference": {
            **{"batch": 8, "prompt_len": 512, "output_len": 64},
            "precision": precision,
        },
        "pins": {"tp": tp, "pp": 1},
    }
    outcome = solve_serving(mw.load(fields, ServingSpec), Options(is_by_kind=False))
    assert outcome.best is not None
    assert len(outcome.remarks) == len(told)
    assert all(words in outcome.remarks[0] for words in told)
    assert outcome.from_json(json.dumps(outcome.to_dict())).remarks == outcome.remarks
