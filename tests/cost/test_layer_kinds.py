"""Costs of models with several kinds of layers: sums over the layers of each kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from meshwright.cost import memory
from meshwright.cost.activations import saved_tensors
from meshwright.cost.job import Job, make_job
from meshwright.cost.layer_kinds import jobs_of_kinds
from meshwright.cost.links import block_counts
from meshwright.cost.parameters_and_flops import scan_macs
from meshwright.cost.price import price, stage_bytes, stage_seconds
from meshwright.cost.whole_model import (
    active_params,
    keys_seen,
    mixing_macs,
    step_flops,
    total_params,
    trained_params,
)
from meshwright.plans.columns import total
from meshwright.plans.skeletons import Split
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec
from tests.helpers.rows import row

MODEL: dict[str, Any] = {
    "n_layers": 8, "d_model": 512, "n_heads": 8, "n_kv_heads": 2, "d_ff": 2048,
    "vocab": 4096, "gated_mlp": True, "norm": "rmsnorm", "bias": "none",
    "tied_embeddings": False,
    "moe": {"n_experts": 4, "top_k": 2, "d_ff": 512},
    "state_space": {
        "form": "mamba2", "n_heads": 16, "head_dim": 64, "groups": 2, "state_dim": 64,
        "conv_bias": True, "chunk": 128,
    },
}  # fmt: skip
KINDS: dict[str, Any] = {
    "near": {"attention_window": 256},
    "all": {"experts": False},
    "state": {"mixer": "state_space"},
    "state and MLP": {"mixer": "state_space", "experts": False},
}


def model_of(pattern: list[str]) -> Model:
    kinds = {name: KINDS[name] for name in dict.fromkeys(pattern)}
    fields = {**MODEL, "kinds": kinds, "pattern": pattern}
    if not any("state" in name for name in pattern):
        fields.pop("state_space")
    return Model.model_validate(fields)


def job_of(pattern: list[str], **training: Any) -> Job:
    spec = {
        "model": model_of(pattern).model_dump(exclude_none=True),
        "cluster": {
            "topology": {
                "gpu": {
                    "memory_gib": 80, "memory_gb_s": 2000, "peak_tflops": {"bf16": 312},
                },
                "levels": [{"name": "a", "size": 8, "gb_s": 300, "latency_us": 2}],
            }
        },
        "training": {"seq_len": 2048, "global_batch": 16, **training},
    }  # fmt: skip
    return make_job(Spec.model_validate(spec))


def stages(
    pattern: list[str], layers: list[int], training: Any = None, **plan: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return seconds per micro-batch, and bytes but for workspace, of every stage."""
    rows = row(pp=len(layers), microbatches=4, **plan)
    prices = price(job_of(pattern, **(training or {})), rows)
    again = layers if rows.recompute[0] else [0] * len(layers)
    split = Split(np.array(layers), np.array(again))
    held = stage_bytes(prices, split)
    held.pop("workspace")
    return total(stage_seconds(rows, prices.time, split)), total(held)


@pytest.mark.parametrize("plan", [{}, {"recompute": 2}, {"zero": 3, "dp_shard": 2}])
@pytest.mark.parametrize("other", ["all", "state"])
def test_a_pattern_costs_the_mean_of_its_kinds(other: str, plan: Any) -> None:
    """Half of the layers of each of two models, and the ends of either."""
    mixed = stages(["near", other], [8], **plan)
    pure = [stages([name], [8], **plan) for name in ("near", other)]
    for each, one, two in zip(mixed, *pure, strict=True):
        assert each == pytest.approx((one + two) / 2, rel=1e-12)


ADAPTED = {"lora": {"rank": 8, "targets": ["attention", "mlp"]}}


@pytest.mark.parametrize("plan", [{}, {"recompute": 2}, {"zero": 3, "dp_shard": 2}])
def test_adapters_are_those_of_each_kind(plan: Any) -> None:
    """Layers without experts have adapters on their MLP, the others do not."""
    mixed = stages(["near", "all"], [8], ADAPTED, **plan)
    pure = [stages([name], [8], ADAPTED, **plan) for name in ("near", "all")]
    for each, one, two in zip(mixed, *pure, strict=True):
        assert one[0] != two[0]
        assert each == pytest.approx((one + two) / 2, rel=1e-12)
    specs = [job_of(names, **ADAPTED).spec for names in (["near", "all"], ["near"])]
    near, inner = 8 * 8 * (2 * (512 + 512) + 2 * (512 + 128)), 3 * (512 + 2048)
    assert [trained_params(spec) for spec in specs] == [near + 4 * 8 * inner, near]


@pytest.mark.parametrize("plan", [{}, {"recompute": 2}, {"zero": 3, "dp_shard": 2}])
def test_state_spaces_are_frozen_beside_adapters(plan: Any) -> None:
    """They have no gradient of a weight, and keep no input for one."""
    names = ["near", "state and MLP"]
    mixed = stages(names, [8], ADAPTED, **plan)
    pure = [stages([name], [8], ADAPTED, **plan) for name in names]
    for each, one, two in zip(mixed, *pure, strict=True):
        assert each == pytest.approx((one + two) / 2, rel=1e-12)
    assert pure[1][1][0] < stages(names[1:], [8], **plan)[1][0]
    spec = job_of(names[1:], **ADAPTED).spec
    assert trained_params(spec) == 8 * 8 * 3 * (512 + 2048)


def test_what_a_frozen_state_space_saves() -> None:
    """The first projection's result, the scan's and the norm's input; no output's."""
    frozen, trained = (
        {
            one.name: one.bytes_per_token
            for kind in jobs_of_kinds(job_of(["state and MLP"], **training))
            for one in saved_tensors(kind.job.spec, is_dense=False)
        }
        for training in (ADAPTED, {})
    )
    assert frozen["state-space output"] == 0 < trained["state-space output"]
    assert frozen["attention norm output"] == 0 < trained["attention norm output"]
    for name in ("state-space input", "scan result", "state-space norm input"):
        assert frozen[name] == trained[name] > 0


def test_adapters_stand_beside_the_matrices_of_a_state_space() -> None:
    """The first reads the norm's result, the last the scan's: both are saved then."""
    both = {"lora": {"rank": 8, "targets": "state_space"}}
    job = job_of(["state"], **both)
    mixer = job.spec.model.state_space
    assert mixer is not None
    inner, width = 16 * 64, mixer.input_width
    assert trained_params(job.spec) == 8 * 8 * ((512 + width) + (inner + 512))
    tensors = {
        one.name: one.bytes_per_token
        for kind in jobs_of_kinds(job)
        for one in saved_tensors(kind.job.spec, is_dense=False)
    }
    assert tensors["state-space output"] == 2 * inner
    assert tensors["attention norm output"] == 2 * 512
    every = {"lora": {"rank": 8, "targets": ["attention", "mlp", "state_space"]}}
    seconds = [stages(["state and MLP"], [8], one)[0][0] for one in (every, ADAPTED)]
    assert seconds[0] > seconds[1]


def test_adapters_need_a_matrix_beside_them() -> None:
    fields = {**MODEL, "mixer": "state_space", "d_ff": 0, "norms_per_layer": 1}
    fields.pop("moe")
    spec = job_of(["near"]).spec.model_dump(exclude_none=True, mode="json")
    spec |= {"model": fields, "training": {**spec["training"], **ADAPTED}}
    with pytest.raises(
        ValidationError, match="name no matrix of the model; accepted: in_proj, "
    ):
        Spec.model_validate(spec)


def test_leading_layers_are_the_first_stages() -> None:
    """Two layers, then three pairs: the first stage has those two and a pair."""
    pattern = ["near", "near", *["all", "near"] * 3]
    order = model_of(pattern).order
    assert (len(order.leading), order.period, order.repeats) == (2, 2, 3)
    seconds, held = stages(pattern, [4, 4])
    near, all_of = (stages([name], [4, 4]) for name in ("near", "all"))
    # near near all near, and all near all near.
    for each, one, two in zip((seconds, held), near, all_of, strict=True):
        assert each[0] == pytest.approx((3 * one[0] + two[0]) / 4, rel=1e-9)
        assert each[1] == pytest.approx((one[1] + two[1]) / 2, rel=1e-9)


def test_leading_layers_keep_their_inputs_when_recomputed() -> None:
    """What saves less than other layers frees less, and keeps as much as they do."""
    pattern = ["near", "near", *["all", "near"] * 3]
    mixed, near, all_of = (
        stages(names, [4, 4], recompute=2)[1] for names in (pattern, ["near"], ["all"])
    )
    by_hand = (3 * near[0] + all_of[0]) / 4
    # Segments may begin in any layer, so that the largest input of one is counted.
    assert by_hand <= mixed[0] <= 1.01 * by_hand


@pytest.mark.parametrize(
    ("pattern", "layers", "near", "other"),
    [
        (["near", "near", *["all", "near"] * 3], [4, 4], [3, 2], [1, 2]),
        (["near", "near", "all", "near"] * 2, [2, 6], [1.5, 4.5], [0.5, 1.5]),
    ],
)
def test_stages_have_whole_patterns_or_shares_of_them(
    pattern: list[str], layers: list[int], near: list[float], other: list[float]
) -> None:
    rows, split = row(pp=2), Split(np.array([layers]), np.zeros((1, 2), dtype=int))
    found = block_counts(job_of(pattern), rows, split)
    blocks = {
        name: np.broadcast_to(counts, (1, 2))[0].tolist()
        for name, counts in found.items()
    }
    kinds = {"layer (near)": near, "layer (all)": other}
    assert kinds.items() <= blocks.items()
    assert (blocks["embedding"], blocks["head"]) == ([1, 0], [0, 1])
    assert blocks["dense layer"] == [0, 0]


def test_leading_dense_layers_are_blocks_of_the_first_stage() -> None:
    """A model without a pattern has them among the layers of its first stage."""
    data = job_of(["near"]).spec.model_dump(mode="json", exclude_none=True)
    data["model"] |= {"kinds": {}, "pattern": []}
    data["model"]["moe"]["first_dense_layers"] = 2
    job = make_job(Spec.model_validate(data))
    rows, split = row(pp=2), Split(np.array([[3, 5]]), np.zeros((1, 2), dtype=int))
    found = block_counts(job, rows, split)
    assert found["layer"].tolist() == [[1, 5]]
    assert np.broadcast_to(found["dense layer"], (1, 2)).tolist() == [[2, 0]]


def test_parameters_are_those_of_the_layers() -> None:
    mixed = model_of(["near", "all", "all", "state"])
    pure = {name: model_of([name]) for name in KINDS}
    shares = {"near": 2, "all": 4, "state": 2}
    ends = 2 * 4096 * 512 + 512
    by_hand = sum((total_params(pure[n]) - ends) * k // 8 for n, k in shares.items())
    assert total_params(mixed) == by_hand + ends
    idle = 4 * 2 * 3 * 512 * 512
    assert active_params(mixed) == total_params(mixed) - idle


def test_a_state_space_by_hand() -> None:
    """Mamba-2 of 16 heads of 64, and 2 groups of 64: in, conv, vectors, norm, out."""
    model = model_of(["state"])
    mixer = 512 * (2 * 1024 + 2 * 128 + 16) + 1280 * 5 + 3 * 16 + 1024 + 1024 * 512
    experts = 4 * 3 * 512 * 512 + 4 * 512
    layer = mixer + experts + 2 * 512
    assert total_params(model) == 8 * layer + 2 * 4096 * 512 + 512


@pytest.mark.parametrize(("mixer", "width"), [("state_space", 2320), ("attention", 2)])
def test_the_first_matmul_of_a_state_space_may_be_the_widest(
    mixer: str, width: int
) -> None:
    """Its 2 x 1,024 + 2 x 2 x 64 + 16 results, beside an MLP of 1: gate and up."""
    spec = job_of(["state"]).spec
    narrow = {"mixer": mixer, "d_ff": 1, "moe": None, "pattern": (), "kinds": {}}
    model = spec.model.model_copy(update=narrow)
    job = make_job(spec.model_copy(update={"model": model}))
    at_work = memory._at_work(job, row(), np.zeros(1))
    assert at_work.tolist() == [2048 * 2 * (512 + width)]


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, 1024.0),
        ({"attention_window": 256}, 256 - 256**2 / 4096),
        ({"attention_window": 4096}, 1024.0),
        ({"attention_chunk": 512}, 256.0),
        ({"attention_chunk": 8192}, 1024.0),
    ],
)
def test_keys_that_a_token_sees(fields: dict[str, int], seen: float) -> None:
    """The mean over a sequence of 2,048, under a causal mask."""
    model = Model.model_validate({**MODEL, "state_space": None, **fields})
    assert keys_seen(model, 2048) == seen
    positions = np.arange(2048)
    window = fields.get("attention_window", 2048)
    chunk = fields.get("attention_chunk", 2048)
    each = np.minimum(positions, window) if window < 2048 else positions
    each = positions % chunk if chunk < 2048 else each
    assert each.mean() == pytest.approx(seen, abs=1)


def test_only_the_scan_of_a_state_space_mixes_tokens() -> None:
    """It takes as much for a token of a longer sequence; attention takes more."""
    model = model_of(["state", "all"])
    scan, every = (model.of_kind(name) for name in model.pattern)
    assert scan.state_space is not None
    for seq_len in (2048, 4096):
        assert mixing_macs(scan, seq_len) == scan_macs(scan.state_space, is_causal=True)
        assert mixing_macs(every, seq_len) == seq_len / 2 * 2 * 512


def test_a_window_lowers_flops_and_seconds() -> None:
    near = model_of(["near"])
    macs = [mixing_macs(model_of([n]).of_kind(n), 2048) for n in ("near", "all")]
    assert macs[0] < macs[1] / 3
    whole = Model.model_validate({**MODEL, "state_space": None})
    assert step_flops(near, 2048, 8) < step_flops(whole, 2048, 8)
