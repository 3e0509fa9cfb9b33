"""Bytes that PyTorch saves for a layer's backward against those predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from meshwright.cost.activations import saved_bytes
from meshwright.plans.skeletons import CHEAP, Shards
from meshwright.spec.spec import Spec
from tests.helpers.fused import FUSED

GPU = {"memory_gib": 80, "memory_gb_s": 2000, "peak_tflops": {"bf16": 300, "fp32": 20}}
LINK = {"name": "l", "size": 1, "gb_s": 300, "latency_us": 1}
CLUSTER = {"topology": {"gpu": GPU, "levels": [LINK]}}

Fields = dict[str, object]

GPT: Fields = {
    "n_layers": 1,
    "d_model": 2048,
    "n_heads": 16,
    "d_ff": 8192,
    "vocab": 1024,
    "learned_positions": 8192,
}
LLAMA: Fields = {
    "n_layers": 1,
    "d_model": 4096,
    "n_heads": 32,
    "d_ff": 14336,
    "vocab": 1024,
    "gated_mlp": True,
    "norm": "rmsnorm",
    "bias": "none",
}
GQA: Fields = {"n_kv_heads": 8}
QWEN3: Fields = {"n_kv_heads": 8, "qk_norm": True}
GEMMA2: Fields = {"n_kv_heads": 8, "norms_per_layer": 4}
DROPOUT: Fields = {"dropout": True}
PARALLEL: Fields = {"parallel_residual": True}
MIXTRAL: Fields = {"moe": {"n_experts": 8, "top_k": 2, "d_ff": 14336}}
SHARED: Fields = {
    "moe": {"n_experts": 64, "top_k": 6, "d_ff": 1408, "shared_d_ff": 2816}
}
PADDED: Fields = {
    "moe": {"n_experts": 8, "top_k": 2, "d_ff": 14336, "capacity_factor": 1.5}
}
MLA_WIDTHS = {"kv_rank": 512, "rope_dim": 64, "nope_dim": 128, "v_dim": 128}
MLA: Fields = {"head_dim": 192, "mla": {**MLA_WIDTHS, "q_rank": 1536}}
MLA_LITE: Fields = {"head_dim": 192, "mla": MLA_WIDTHS}
ATTENTION: Fields = {"targets": "attention"}


@dataclass(frozen=True)
class Case:
    """A layer, and its bytes per token and d_model."""

    model: Fields
    attention: str
    fused: str
    predicted: float
    counted: float
    selective: bool = False
    precision: str = "bf16"
    lora: Fields | None = None

    @property
    def spec(self) -> Spec:
        job = {"seq_len": 8192, "global_batch": 1, "attention": self.attention}
        job |= {"fused": FUSED[self.fused], "precision": self.precision}
        if self.lora is not None:
            job["lora"] = self.lora
        return Spec.model_validate(
            {"model": self.model, "cluster": CLUSTER, "training": job}
        )

    def predict(self) -> float:
        one = np.array([1])
        alone = Shards(one, one, one, one, one, one > 1)
        return float(saved_bytes(self.spec, alone, CHEAP * self.selective)[0])


def count(case: Case, batch: int = 1) -> float:
    pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[torch]'")
    from tests.helpers.torch_layers import saved_bytes_per_token

    return saved_bytes_per_token(case.spec, case.fused, case.selective, batch)


CASES = {
    "gpt": Case(GPT, "flash", "all", 32.03, 32.04),
    "gpt dropout": Case(GPT | DROPOUT, "flash", "all", 34.03, 34.04),
    "gpt gqa": Case(GPT | GQA, "flash", "all", 30.03, 30.04),
    "gpt plain": Case(GPT, "plain", "all", 160.00, 160.00),
    "gpt plain dropout": Case(GPT | DROPOUT, "plain", "all", 354.00, 354.00),
    "gpt plain dropout, selective": Case(
        GPT | DROPOUT, "plain", "all", 34.00, 34.00, selective=True
    ),
    "gpt gqa plain": Case(GPT | GQA, "plain", "all", 160.00, 160.00),
    "gpt gqa plain dropout": Case(GPT | GQA | DROPOUT, "plain", "all", 354.00, 354.00),
    "gpt parallel": Case(GPT | PARALLEL, "flash", "all", 30.03, 30.04),
    "llama": Case(LLAMA, "flash", "all", 37.03, 37.03),
    "llama, eager": Case(LLAMA, "flash", "none", 56.03, 56.03),
    "llama dropout, eager": Case(LLAMA | DROPOUT, "flash", "none", 58.03, 58.03),
    "llama plain": Case(LLAMA, "plain", "all", 165.00, 165.00),
    "llama plain dropout, eager": Case(
        LLAMA | DROPOUT, "plain", "none", 378.00, 378.00
    ),
    "llama gqa": Case(LLAMA | GQA, "flash", "all", 34.03, 34.03),
    "llama gqa, fused norms": Case(LLAMA | GQA, "flash", "norms", 41.03, 41.03),
    "llama gqa, eager": Case(LLAMA | GQA, "flash", "none", 53.03, 53.03),
    "llama gqa, eager, fp32": Case(
        LLAMA | GQA, "flash", "none", 90.03, 90.03, precision="fp32"
    ),
    "llama gqa dropout, eager": Case(
        LLAMA | GQA | DROPOUT, "flash", "none", 55.03, 55.03
    ),
    "llama gqa, selective": Case(
        LLAMA | GQA, "flash", "all", 23.03, 23.03, selective=True
    ),
    "llama gqa, eager, selective": Case(
        LLAMA | GQA, "flash", "none", 23.03, 23.03, selective=True
    ),
    "llama gqa plain dropout": Case(
        LLAMA | GQA | DROPOUT, "plain", "all", 359.00, 359.00
    ),
    "llama gqa plain, eager": Case(LLAMA | GQA, "plain", "none", 184.00, 184.00),
    "llama gqa plain, selective": Case(
        LLAMA | GQA, "plain", "all", 34.00, 34.00, selective=True
    ),
    "llama parallel, eager": Case(LLAMA | PARALLEL, "flash", "none", 56.03, 56.03),
    "llama parallel, eager, fp32": Case(
        LLAMA | PARALLEL, "flash", "none", 92.03, 92.03, precision="fp32"
    ),
    "llama parallel, eager, selective": Case(
        LLAMA | PARALLEL, "flash", "none", 24.03, 24.03, selective=True
    ),
    "qwen3": Case(LLAMA | QWEN3, "flash", "all", 36.53, 36.57),
    "qwen3, eager": Case(LLAMA | QWEN3, "flash", "none", 63.03, 63.07),
    "gemma2, eager": Case(LLAMA | GEMMA2, "flash", "none", 69.03, 69.04),
    "gemma2, eager, selective": Case(
        LLAMA | GEMMA2, "flash", "none", 39.03, 39.03, selective=True
    ),
    "mixtral": Case(LLAMA | GQA | MIXTRAL, "flash", "all", 59.04, 59.06),
    "mixtral, eager": Case(LLAMA | GQA | MIXTRAL, "flash", "none", 93.04, 93.06),
    "mixtral, selective": Case(
        LLAMA | GQA | MIXTRAL, "flash", "all", 41.04, 41.05, selective=True
    ),
    "mixtral, eager, selective": Case(
        LLAMA | GQA | MIXTRAL, "flash", "none", 49.04, 49.06, selective=True
    ),
    "padded experts": Case(LLAMA | GQA | PADDED, "flash", "all", 82.04, 82.06),
    "shared experts": Case(LLAMA | SHARED, "flash", "all", 44.59, 44.64),
    "shared experts, fused norms": Case(LLAMA | SHARED, "flash", "norms", 74.09, 74.15),
    "latent attention": Case(LLAMA | MLA, "flash", "all", 41.06, 41.07),
    "latent attention, fused norms": Case(LLAMA | MLA, "flash", "norms", 50.06, 50.07),
    "latent attention, eager": Case(LLAMA | MLA, "flash", "none", 65.03, 65.04),
    "latent attention, selective": Case(
        LLAMA | MLA, "flash", "all", 30.06, 30.06, selective=True
    ),
    "latent keys alone": Case(LLAMA | MLA_LITE, "flash", "all", 39.56, 39.57),
    "lora": Case(LLAMA | GQA, "flash", "all", 34.09, 34.09, lora={}),
    "lora on queries": Case(
        LLAMA | GQA, "flash", "all", 25.04, 25.04, lora={"targets": "q_proj"}
    ),
    "lora, eager": Case(LLAMA | GQA, "flash", "none", 45.09, 45.09, lora={}),
    "lora on attention, eager": Case(
        LLAMA | GQA, "flash", "none", 36.06, 36.06, lora={"targets": "attention"}
    ),
    "lora on down_proj, fused norms": Case(
        LLAMA | GQA, "flash", "norms", 37.04, 37.04, lora={"targets": "down_proj"}
    ),
    "lora on o_proj, gpt plain": Case(
        GPT, "plain", "all", 148.06, 148.07, lora={"targets": "o_proj", "rank": 64}
    ),
    "lora, experts": Case(
        LLAMA | GQA | MIXTRAL, "flash", "none", 65.07, 65.09, lora=ATTENTION
    ),
    "lora, shared experts": Case(
        LLAMA | SHARED, "flash", "norms", 55.99, 56.05, lora={"targets": "mlp"}
    ),
    "lora, latent attention": Case(LLAMA | MLA, "flash", "all", 41.13, 41.13, lora={}),
    "lora, parallel, eager": Case(
        LLAMA | PARALLEL, "flash", "none", 46.06, 46.06, lora={"targets": "mlp"}
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_prediction_is_what_the_table_says(case: Case) -> None:
    per_width = case.predict() / case.spec.model.d_model
    assert per_width == pytest.approx(case.predicted, abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_pytorch_saves_what_is_predicted(case: Case) -> None:
    counted = count(case)
    assert counted / case.spec.model.d_model == pytest.approx(case.counted, abs=0.006)
    assert case.predict() == pytest.approx(counted, rel=2e-3)


@pytest.mark.parametrize("name", ["gpt", "llama gqa plain dropout", "mixtral, eager"])
def test_pytorch_saves_as_much_per_token_of_a_larger_batch(name: str) -> None:
    assert count(CASES[name], batch=3) == pytest.approx(count(CASES[name]), rel=1e-3)


def test_llama_layer_in_eager_pytorch() -> None:
    """Llama-3-8B: h 4,096, ff 3.5 h, keys h / 4; bytes per token and h.

    Two norms: fp32 input and fp32 normalised, 4 + 4 each; their outputs 2 each.
    Queries 2, keys and values 0.5 each, attention output 2, and 32 fp32 statistics.
    MLP: gate, activated gate, value and their product, 2 x 3.5 each.
    """
    h = 4096
    expected = 2 * (4 + 4) + 2 * 2 + 2 + 2 * 0.5 + 2 + 32 * 4 / h + 4 * 2 * 3.5
    assert expected == pytest.approx(53.03, abs=0.005)
    case = CASES["llama gqa, eager"]
    assert case.predict() == pytest.approx(expected * h, rel=1e-12)
    assert count(case) == pytest.approx(expected * h, rel=1e-3)
