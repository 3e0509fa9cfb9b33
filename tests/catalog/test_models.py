"""The model presets have exactly the parameters that their authors publish."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from meshwright import catalog
from meshwright.cost.parameters_and_flops import (
    embedding_params,
    head_params,
    kv_width,
    layer_params,
    norm_params,
)
from meshwright.cost.whole_model import layer_matmul_params, step_flops, total_params
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.model import Model

KIND = "specs/models"

EXACT = {
    # Sizes of the tensors in the safetensors files of each model's page.
    "gpt2-xl": 1_557_611_200,  # huggingface.co/openai-community/gpt2-xl
    "llama2-7b": 6_738_415_616,  # huggingface.co/meta-llama/Llama-2-7b-hf
    "llama2-13b": 13_015_864_320,  # huggingface.co/meta-llama/Llama-2-13b-hf
    "llama2-70b": 68_976_648_192,  # huggingface.co/meta-llama/Llama-2-70b-hf
    "llama3-8b": 8_030_261_248,  # huggingface.co/meta-llama/Meta-Llama-3-8B
    "llama3-70b": 70_553_706_496,  # huggingface.co/meta-llama/Meta-Llama-3-70B
    "llama3.1-8b": 8_030_261_248,  # huggingface.co/meta-llama/Llama-3.1-8B
    "llama3.1-70b": 70_553_706_496,  # huggingface.co/meta-llama/Llama-3.1-70B
    "llama3-405b": 405_853_388_800,  # huggingface.co/meta-llama/Llama-3.1-405B
    "mistral-7b": 7_241_732_096,  # huggingface.co/mistralai/Mistral-7B-v0.1
    # github.com/mosaicml/llm-foundry scripts/train/benchmarking/README.md
    "mpt-30b": 29_975_214_080,
    "qwen2.5-7b": 7_615_616_512,  # huggingface.co/Qwen/Qwen2.5-7B
    "qwen2.5-72b": 72_706_203_648,  # huggingface.co/Qwen/Qwen2.5-72B
    "gemma2-27b": 27_227_128_320,  # huggingface.co/google/gemma-2-27b
    "falcon-40b": 41_835_970_560,  # huggingface.co/tiiuae/falcon-40b
    "falcon-180b": 179_522_565_120,  # huggingface.co/tiiuae/falcon-180B
    "bloom-176b": 176_247_271_424,  # huggingface.co/bigscience/bloom
    "gpt-neox-20b": 20_554_567_680,  # huggingface.co/EleutherAI/gpt-neox-20b
    "mixtral-8x7b": 46_702_792_704,  # huggingface.co/mistralai/Mixtral-8x7B-v0.1
    "mixtral-8x22b": 140_620_634_112,  # huggingface.co/mistralai/Mixtral-8x22B-v0.1
    "qwen3-8b": 8_190_735_360,  # huggingface.co/Qwen/Qwen3-8B
    "qwen3-14b": 14_768_307_200,  # huggingface.co/Qwen/Qwen3-14B
    "qwen3-32b": 32_762_123_264,  # huggingface.co/Qwen/Qwen3-32B
    "qwen3-30b-a3b": 30_532_122_624,  # huggingface.co/Qwen/Qwen3-30B-A3B
    "qwen3-235b-a22b": 235_093_634_560,  # huggingface.co/Qwen/Qwen3-235B-A22B
    "deepseek-v2-lite": 15_706_484_224,  # huggingface.co/deepseek-ai/DeepSeek-V2-Lite
    "deepseek-v2": 235_741_434_880,  # huggingface.co/deepseek-ai/DeepSeek-V2
    # huggingface.co/deepseek-ai/DeepSeek-V3, without layer 61 (multi-token prediction)
    "deepseek-v3": 671_026_419_200,
}

ROUNDED = {
    # name: (published, half of the last digit that is printed)
    # Brown et al. 2020 (arXiv 2005.14165) table D.1: 174,600 M with a vocabulary of
    # 50,257; padding it to 51,200 adds 943 x 12,288 = 11.6 M, inside the rounding.
    "gpt3-175b": (174_600e6, 50e6),
    # The same table: 1,320 M. The preset pads the vocabulary, 943 x 2,048 = 1.9 M.
    "gpt-1.3b": (1_320e6, 5e6),
    # Korthikanti et al. 2022 (arXiv 2205.05198) table 3: 22B.
    "megatron-22b": (22e9, 0.5e9),
    # Narayanan et al. 2021 (arXiv 2104.04473) table 1: 529.6 and 1008.0 billion.
    "megatron-530b": (529.6e9, 0.05e9),
    "megatron-1t": (1008.0e9, 0.05e9),
    # Smith et al. 2022 (arXiv 2201.11990), title: 530B.
    "mt-nlg-530b": (530e9, 0.5e9),
    # Zhang et al. 2022 (arXiv 2205.01068) table 1: 175B.
    "opt-175b": (175e9, 0.5e9),
    # Parmar et al. 2024 (arXiv 2402.16819) section 2: 3.2 and 12.5 billion.
    "nemotron-4-15b": (15.7e9, 0.1e9),
    # NVIDIA 2024 (arXiv 2406.11704) section 2.2: 9.4 and 331.6 billion.
    "nemotron-4-340b": (341.0e9, 0.1e9),
}

GPTS = [
    "gpt3-175b",
    "gpt-1.3b",
    "megatron-22b",
    "megatron-530b",
    "megatron-1t",
    "mt-nlg-530b",
    "opt-175b",
]


def model(name: str) -> Model:
    return Model.model_validate(read_yaml(catalog.locate(KIND, name, Path())).data)


def test_every_preset_has_a_published_count() -> None:
    assert set(catalog.names(KIND)) == EXACT.keys() | ROUNDED.keys()


@pytest.mark.parametrize(("name", "published"), EXACT.items())
def test_parameters_are_exactly_those_published(name: str, published: int) -> None:
    assert total_params(model(name)) == published


@pytest.mark.parametrize(("name", "published"), ROUNDED.items())
def test_parameters_round_to_those_published(
    name: str, published: tuple[float, float]
) -> None:
    count, half_digit = published
    assert total_params(model(name)) == pytest.approx(count, abs=half_digit)


@pytest.mark.parametrize("name", catalog.names(KIND))
def test_preset_quotes_the_published_count(name: str) -> None:
    published = EXACT.get(name) or ROUNDED[name][0]
    assert model(name).published_params == published


@pytest.mark.parametrize("name", GPTS)
def test_gpt_follows_the_formula_of_narayanan(name: str) -> None:
    """Narayanan et al. 2021, eq. 2, times 12 l h^2, and the final norm of 2 h.

    P = 12 l h^2 + 13 l h + (V + s) h
    """
    gpt = model(name)
    layers, width = gpt.n_layers, gpt.d_model
    by_paper = 12 * layers * width**2 + 13 * layers * width
    by_paper += (gpt.vocab + gpt.learned_positions) * width
    assert total_params(gpt) == by_paper + 2 * width


def held_whole(preset: Model) -> int:
    """Return the parameters of a layer, but for biases, that every GPU holds whole."""
    whole = preset.norms_per_layer * norm_params(preset)
    whole += 2 * preset.head_dim if preset.qk_norm else 0
    if preset.moe is not None:
        whole += preset.moe.n_experts * (preset.d_model + preset.moe.router_bias)
    if preset.mla is not None:
        latent = preset.mla.q_rank + preset.mla.kv_rank
        whole += latent + preset.d_model * (latent + preset.mla.rope_dim)
    return whole


@pytest.mark.parametrize("name", catalog.names(KIND))
@pytest.mark.parametrize("tp", [2, 4, 8, 16])
def test_tensor_shards_add_up_to_the_layer(name: str, tp: int) -> None:
    """tp shards hold the layer once, and what is not split tp - 1 times more.

    Not split are norms and row-parallel biases (Shoeybi et al. 2019, section 3), and
    KV heads where there are fewer of them than shards; the router; and of latent
    attention what leads to the latent vectors.
    """
    preset = model(name)
    whole = layer_params(preset, np.array([1]))[0]
    shards = tp * layer_params(preset, np.array([tp]))[0]
    row_biases = 2 * preset.d_model if preset.bias == "all" else 0
    kv = 2 * kv_width(preset) * (preset.d_model + (preset.bias != "none"))
    kv = 0 if preset.mla is not None else kv
    kv_copies = max(tp / preset.n_kv_heads, 1) - 1
    again = (tp - 1) * (held_whole(preset) + row_biases) + kv_copies * kv
    assert shards == pytest.approx(whole + again, rel=1e-12)


@pytest.mark.parametrize("name", catalog.names(KIND))
def test_tensor_shards_add_up_to_the_ends(name: str) -> None:
    """The table is split by rows; learned positions and both norms are whole."""
    preset, one, four = model(name), np.array([1]), np.array([4])
    table = preset.vocab * preset.d_model
    whole = preset.learned_positions * preset.d_model
    whole += norm_params(preset) if preset.embedding_norm else 0
    assert embedding_params(preset, one)[0] == table + whole
    assert 4 * embedding_params(preset, four)[0] == table + 4 * whole
    # On a pipeline a tied head is a second copy of the table.
    two_stages = head_params(preset, four, np.array([2]))[0]
    assert 4 * two_stages == table + 4 * norm_params(preset)
    alone = head_params(preset, one, one)[0]
    assert alone == norm_params(preset) + (0 if preset.tied_embeddings else table)


def test_embedding_norm_of_bloom() -> None:
    """12 l h^2 + 13 l h + V h, and 2 h each for the final and the embedding's norm."""
    bloom = model("bloom-176b")
    layers, width = bloom.n_layers, bloom.d_model
    blocks = 12 * layers * width**2 + 13 * layers * width
    assert total_params(bloom) == blocks + bloom.vocab * width + 4 * width


def test_megatron_turing_is_the_530b_model_of_megatron() -> None:
    """Nothing that is priced differs: arXiv 2201.11990 and 2205.05198, table 3."""
    names = {"name": "", "published_params": None}
    turing = model("mt-nlg-530b").model_copy(update=names)
    assert turing == model("megatron-530b").model_copy(update=names)


@pytest.mark.parametrize(
    ("name", "norms"),
    # Width and weights (and biases) per norm: Gemma 2 has four RMS norms, Falcon's
    # new decoder and GPT-NeoX two layer norms.
    [
        ("gemma2-27b", 4 * 4_608),
        ("falcon-40b", 2 * 2 * 8_192),
        ("gpt-neox-20b", 2 * 2 * 6_144),
    ],
)
def test_norms_of_a_layer(name: str, norms: int) -> None:
    preset = model(name)
    biases = 0
    if preset.bias == "all":
        # Queries, keys, values and the output, 4 h; the MLP's two, f + h.
        biases = 5 * preset.d_model + preset.d_ff
    rest = layer_params(preset, np.array([1]))[0] - layer_matmul_params(preset) - biases
    assert rest == norms


def test_one_norm_less_per_layer() -> None:
    """GPT-J's and Falcon-7B's layers share one norm: 2 h less in each layer."""
    two = model("falcon-40b")
    one = two.model_copy(update={"norms_per_layer": 1})
    assert total_params(two) - total_params(one) == 60 * 2 * 8_192


def test_flops_of_heads_narrower_than_the_model() -> None:
    """Gemma 2 27B: 32 heads of 128 are 4,096 wide, the model 4,608 (4,608 / 32 = 144).

    Per layer q and output 2 x 4,608 x 4,096 = 37,748,736, k and v 2 x 4,608 x 16 x 128
    = 18,874,368, MLP 3 x 4,608 x 36,864 = 509,607,936; head 256,000 x 4,608 =
    1,179,648,000. A causal mask keeps half of 2 x 2 x s x 4,096 FLOPs forward, three
    times that with the backward: 6 s x 4,096 per layer and token.
    """
    gemma = model("gemma2-27b")
    weights = 46 * (37_748_736 + 18_874_368 + 509_607_936) + 1_179_648_000
    per_token = step_flops(gemma, 8_192, 5) / (5 * 8_192)
    assert per_token == 6 * weights + 46 * 6 * 8_192 * 4_096


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norms_per_layer": 3}, "without model.parallel_residual; accepted: 2 or 4"),
        ({"norms_per_layer": 2.0}, "write 2"),
        ({"norms_per_layer": True}, "expected a whole number"),
        ({"norms_per_layer": 1}, "without model.parallel_residual; accepted: 2 or 4"),
        (
            {"norms_per_layer": 4, "parallel_residual": True},
            "with model.parallel_residual; accepted: 1 or 2",
        ),
        ({"alibi": True, "learned_positions": 8}, "accepted: one of them"),
        ({"embedding_norm": 1}, "embedding_norm"),
    ],
)
def test_fields_that_no_model_has_are_refused(
    fields: dict[str, object], message: str
) -> None:
    shape = {"n_layers": 2, "d_model": 64, "n_heads": 4, "d_ff": 256, "vocab": 512}
    with pytest.raises(ValidationError, match=message):
        Model.model_validate({**shape, **fields})
