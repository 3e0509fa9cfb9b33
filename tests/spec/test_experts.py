"""Experts and latent attention in a spec: defaults, and what is refused and why."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw
from tests.helpers.command import SPEC, refusal

TRAINING = "training: {seq_len: 1024, global_batch: 8}\n"
LATENT = "mla: {kv_rank: 64, rope_dim: 16, nope_dim: 32, v_dim: 32}"
MOE = "moe: {n_experts: 8, top_k: 2, d_ff: 512"
NO_KV = SPEC.replace("  n_kv_heads: 4\n", "")


def with_fields(*fields: str, text: str = SPEC) -> str:
    lines = "".join(f"  {field}\n" for field in fields)
    return text.replace("  vocab: 32000\n", f"  vocab: 32000\n{lines}")


def load(folder: Path, text: str) -> mw.Spec:
    path = folder / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    return mw.load(str(path), mw.Spec)


def test_experts_left_out_are_none(tmp_path: Path) -> None:
    model = load(tmp_path, SPEC).model
    assert (model.moe, model.mla, model.qk_norm) == (None, None, False)
    assert model.first_dense_layers == 0


def test_experts_have_defaults(tmp_path: Path) -> None:
    moe = load(tmp_path, with_fields(MOE + "}")).model.moe
    assert moe is not None
    assert (moe.shared_d_ff, moe.first_dense_layers, moe.router_bias) == (0, 0, False)
    assert moe.capacity_factor is None


def test_latent_attention_says_the_width_of_heads(tmp_path: Path) -> None:
    """16 + 32, where d_model / n_heads is 512 / 8 = 64; seven heads divide nothing."""
    text = with_fields(LATENT, "bias: none", text=NO_KV)
    model = load(tmp_path, text).model
    assert (model.head_dim, model.n_kv_heads) == (48, 8)
    seven = load(tmp_path, text.replace("n_heads: 8", "n_heads: 7")).model
    assert (seven.head_dim, seven.n_kv_heads) == (48, 7)


def test_a_preset_with_experts_takes_overrides(tmp_path: Path) -> None:
    model = "model: {preset: deepseek-v3, n_layers: 8}\n"
    spec = load(tmp_path, f"{model}cluster: dgx-h100\n{TRAINING}")
    assert spec.model.first_dense_layers == 3
    assert spec.model.head_dim == 192


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            ["moe: {n_experts: 4, top_k: 6, d_ff: 512}"],
            ":8: model.moe.top_k: 6 is above model.moe.n_experts; accepted: up to 4",
        ),
        (
            [MOE + ", first_dense_layers: 8}"],
            ":8: model.moe.first_dense_layers: 8 leaves no layer of model.n_layers 8 "
            "to experts; accepted: up to 7",
        ),
        (
            [MOE + ", capacity_factor: 4.5}"],
            ":8: model.moe.capacity_factor: 4.5 is above model.moe.n_experts / "
            "model.moe.top_k; accepted: up to 4",
        ),
        (
            [MOE + ", capacity_factor: 0}"],
            ":8: model.moe.capacity_factor: 0: expected a number above 0",
        ),
        (
            ["moe: {n_experts: 8, top_k: 2}"],
            ":8: model.moe.d_ff: missing; expected inner width of one routed expert",
        ),
        (
            [MOE + ", experts: 2}"],
            ":8: model.moe.experts: unknown field; did you mean n_experts?",
        ),
        (["moe: 8"], ":8: model.moe: 8: expected a mapping with the fields n_experts"),
        (
            [LATENT, "bias: none"],
            ":5: model.n_kv_heads: 4 beside model.mla; accepted: model.n_heads 8",
        ),
        (
            [LATENT, "n_kv_heads: 8", "bias: none", "head_dim: 64"],
            ":10: model.head_dim: 64 beside model.mla; accepted: nope_dim + rope_dim "
            "48",
        ),
        (
            [LATENT, "n_kv_heads: 8"],
            ": model.bias: 'all' beside model.mla; accepted: none",
        ),
        (
            [LATENT, "n_kv_heads: 8", "bias: none", "qk_norm: true"],
            ":10: model.qk_norm: true beside model.mla; accepted: false",
        ),
        (
            [LATENT.replace("kv_rank: 64", "kv_rank: 0")],
            ":8: model.mla.kv_rank: 0: expected a whole number from 1",
        ),
    ],
)
def test_what_no_model_has_is_refused(
    fields: list[str], expected: str, tmp_path: Path
) -> None:
    gives_kv_heads = any(field.startswith("n_kv_heads") for field in fields)
    path = tmp_path / "spec.yaml"
    path.write_text(with_fields(*fields, text=NO_KV if gives_kv_heads else SPEC))
    message = refusal(str(path))
    assert expected in message
    assert "Traceback" not in message
