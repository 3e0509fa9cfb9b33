"""The model presets have exactly the parameters that their authors publish."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshwright import catalog
from meshwright.cost.transformer import (
    embedding_params,
    head_params,
    kv_width,
    layer_params,
    norm_params,
    total_params,
)
from meshwright.spec.model import Model
from meshwright.spec.source import read_yaml

KIND = "specs/models"

EXACT = {
    # Sizes of the tensors in the safetensors files of each model's page.
    "gpt2-xl": 1_557_611_200,  # huggingface.co/openai-community/gpt2-xl
    "llama2-7b": 6_738_415_616,  # huggingface.co/meta-llama/Llama-2-7b-hf
    "llama2-13b": 13_015_864_320,  # huggingface.co/meta-llama/Llama-2-13b-hf
    "llama2-70b": 68_976_648_192,  # huggingface.co/meta-llama/Llama-2-70b-hf
    "llama3-8b": 8_030_261_248,  # huggingface.co/meta-llama/Meta-Llama-3-8B
    "llama3-70b": 70_553_706_496,  # huggingface.co/meta-llama/Meta-Llama-3-70B
    "llama3-405b": 405_853_388_800,  # huggingface.co/meta-llama/Llama-3.1-405B
    "mistral-7b": 7_241_732_096,  # huggingface.co/mistralai/Mistral-7B-v0.1
    # github.com/mosaicml/llm-foundry scripts/train/benchmarking/README.md
    "mpt-30b": 29_975_214_080,
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
}

GPTS = ["gpt3-175b", "gpt-1.3b", "megatron-22b", "megatron-530b", "megatron-1t"]


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


@pytest.mark.parametrize("name", catalog.names(KIND))
@pytest.mark.parametrize("tp", [2, 4, 8, 16])
def test_tensor_shards_add_up_to_the_layer(name: str, tp: int) -> None:
    """tp shards hold the layer once, and what is not split tp - 1 times more.

    Not split are norms and row-parallel biases (Shoeybi et al. 2019, section 3), and
    KV heads where there are fewer of them than shards.
    """
    preset = model(name)
    whole = layer_params(preset, np.array([1]))[0]
    shards = tp * layer_params(preset, np.array([tp]))[0]
    norms = 2 * norm_params(preset)
    row_biases = 2 * preset.d_model if preset.bias == "all" else 0
    kv = 2 * kv_width(preset) * (preset.d_model + (preset.bias != "none"))
    kv_copies = max(tp / preset.n_kv_heads, 1) - 1
    again = (tp - 1) * (norms + row_biases) + kv_copies * kv
    assert shards == pytest.approx(whole + again, rel=1e-12)


@pytest.mark.parametrize("name", catalog.names(KIND))
def test_tensor_shards_add_up_to_the_ends(name: str) -> None:
    """The table is split by rows; learned positions and the final norm are whole."""
    preset, one, four = model(name), np.array([1]), np.array([4])
    table = preset.vocab * preset.d_model
    positions = preset.learned_positions * preset.d_model
    assert embedding_params(preset, one)[0] == table + positions
    assert 4 * embedding_params(preset, four)[0] == table + 4 * positions
    # On a pipeline a tied head is a second copy of the table.
    two_stages = head_params(preset, four, np.array([2]))[0]
    assert 4 * two_stages == table + 4 * norm_params(preset)
    alone = head_params(preset, one, one)[0]
    assert alone == norm_params(preset) + (0 if preset.tied_embeddings else table)
