"""From published shapes to models: presets fill what rows leave out."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.evidence.price import price_run
from meshwright.evidence.runs import Run
from meshwright.spec.model import Model
from tests.evidence.test_runs import priced, row

DEEPSEEK_V3 = {
    "name": "four layers", "n_layers": 4, "d_model": 7168, "n_heads": 128,
    "n_kv_heads": 128, "d_ff": 18432, "vocab": 129280, "seq_len": 4096,
    "gated_mlp": True, "tied": False, "arch_note": "MLA attention",
    "moe": {"n_experts": 256, "top_k": 8, "expert_d_ff": 2048, "shared": 1,
            "dense_layers": 1},
}  # fmt: skip


def model(**changes: Any) -> Model:
    config = {"config__attention": "flash", "config__tp": 1, "config__dp": 8}
    return price_run(Run.model_validate(row(**config, **changes))).spec.model


def test_a_preset_of_the_same_shape_fills_what_a_row_leaves_out() -> None:
    """A few layers of DeepSeek-V3: its latent attention, the row's dense layers."""
    found = model(model=DEEPSEEK_V3)
    assert found.mla is not None
    assert (found.mla.q_rank, found.mla.kv_rank, found.head_dim) == (1536, 512, 192)
    assert found.moe is not None
    assert (found.moe.first_dense_layers, found.moe.shared_d_ff) == (1, 2048)
    assert (found.name, found.n_layers, found.norm) == ("four layers", 4, "rmsnorm")


@pytest.mark.parametrize("change", [{"d_model": 8192}, {"vocab": 150000}])
def test_a_preset_of_another_shape_fills_nothing(change: dict[str, int]) -> None:
    dense = {**DEEPSEEK_V3, "moe": None, "arch_note": None, **change}
    assert model(model=dense).mla is None


def test_a_gpt_with_the_widths_of_pythia_is_no_pythia() -> None:
    pythia = {"n_layers": 16, "d_model": 2048, "n_heads": 8, "n_kv_heads": 8}
    pythia |= {"d_ff": 8192, "vocab": 50304}
    none = {"gated_mlp": False, "moe": None, "arch_note": None}
    found = model(model={**DEEPSEEK_V3, **pythia, **none})
    assert not found.parallel_residual


def test_experts_need_no_width_of_a_dense_layer() -> None:
    experts = {"n_experts": 8, "top_k": 2, "expert_d_ff": 512}
    found = model(model__d_ff=None, model__moe=experts)
    assert found.d_ff == 512
    assert found.moe is not None
    assert found.moe.first_dense_layers == 0


def test_runs_say_where_experts_drop_tokens() -> None:
    experts = {"n_experts": 8, "top_k": 2, "expert_d_ff": 512}
    for factor in (None, 1.0):
        found = model(model__moe={**experts, "capacity_factor": factor}).moe
        assert found is not None
        assert found.capacity_factor == factor


def test_a_run_says_that_it_has_dropout() -> None:
    assert model().dropout
    assert not model(model__dropout=False).dropout
    assert model(date="2024-05-10", model__dropout=True).dropout


def test_old_gpts_have_dropout_and_learned_positions() -> None:
    old, new = priced(), priced(date="2024-05-10")
    assert old.assumed["model.dropout"]
    assert (old.spec.model.dropout, old.spec.model.learned_positions) == (True, 1024)
    assert (new.spec.model.dropout, new.spec.model.learned_positions) == (False, 0)


@pytest.mark.parametrize(
    ("words", "learned", "alibi"),
    [("learned (counted)", 1024, False), ("ALiBi", 0, True), ("rotary", 0, False)],
)
def test_positions_are_as_published(words: str, learned: int, alibi: bool) -> None:
    found = model(model__pos_emb=words)
    assert (found.learned_positions, found.alibi) == (learned, alibi)
