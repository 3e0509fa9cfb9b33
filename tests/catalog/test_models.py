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
    # Zhang et al. 2022 (arXiv 2205.01068) table 1: 125M to 175B.
    "opt-125m": (125e6, 0.5e6),
    "opt-1.3b": (1.3e9, 0.05e9),
    "opt-2.7b": (2.7e9, 0.05e9),
    "opt-13b": (13e9, 0.5e9),
    "opt-30b": (30e9, 0.5e9),
    "opt-66b": (66e9, 0.5e9),
    "opt-175b": (175e9, 0.5e9),
    # Touvron et al. 2023 (arXiv 2302.13971) table 2: 13.0B and, cut off, 65.2B.
    "llama-13b": (13.0e9, 0.05e9),
    "llama-65b": (65.2e9, 0.1e9),
    # The page: 10.3B.
    "falcon3-10b": (10.3e9, 0.05e9),
    # ai.meta.com/blog/llama-4-multimodal-intelligence: 109 and, cut off, 400 billion.
    "llama4-scout": (109e9, 0.5e9),
    "llama4-maverick": (400e9, 1e9),
    # Names and titles of pages; arXiv 2412.08905 cuts 14.7 off, as Gemma 4 rounds up.
    "phi-4": (14e9, 1e9),
    "phi-4-reasoning": (14e9, 1e9),
    "gemma4-26b-a4b": (26e9, 1e9),
    "gemma4-31b": (31e9, 0.5e9),
    # READMEs of the models, and arXiv 2508.14444: 12.31 billion.
    "hunyuan-a13b": (80e9, 0.5e9),
    "granite-4.0-micro": (3e9, 0.5e9),
    "nemotron-nano-12b-v2": (12.31e9, 5e6),
    "deepseek-llm-7b": (7e9, 0.5e9),
    "deepseek-llm-67b": (67e9, 0.5e9),
    "devstral-small-2-24b": (24e9, 0.5e9),
    "ministral-3-3b": (3e9, 0.5e9),
    "orion-14b": (14e9, 0.5e9),
    "redpajama-incite-3b": (2.8e9, 0.05e9),
    # Parmar et al. 2024 (arXiv 2402.16819) section 2: 3.2 and 12.5 billion.
    "nemotron-4-15b": (15.7e9, 0.1e9),
    # NVIDIA 2024 (arXiv 2406.11704) section 2.2: 9.4 and 331.6 billion.
    "nemotron-4-340b": (341.0e9, 0.1e9),
    # Not explained are 64 numbers a layer, and 56 beside the scales of fp8 weights.
    "moonlight-16b-a3b": (15_960_111_936, 1_728),
    "kimi-k2": (1_026_470_731_056, 3_416),
}
"""Models whose authors round; the counts of all others are exact."""


def next_token(model: Model, tables: int = 0) -> int:
    """Return the size of the layer that predicts a second token.

    It has a layer of the last kind, a projection of two vectors to one, three norms,
    and perhaps copies of the embedding and the head (arXiv 2412.19437, section 2.2).
    """
    last = model.of_kind(model.order.repeated[-1])
    last = last.model_copy(update={"shares_indexer": False})
    if last.mixer == "attention":
        last = last.model_copy(update={"state_space": None})
    longer = last.model_copy(update={"n_layers": last.n_layers + 1})
    layer = total_params(longer) - total_params(last)
    width = model.d_model
    return layer + 2 * width**2 + 3 * width + tables * model.vocab * width


def vision(width: int, layers: int, d_ff: int, out: int) -> int:
    """Return the size of the vision transformer of Qwen 3.5 and its projector.

    Patches of 2 x 3 x 16 x 16 numbers, 48 x 48 positions, and 2 x 2 patches that two
    matrices bring to the width `out` of the language model; all have biases.
    """
    patches = (2 * 3 * 16 * 16 + 1 + 48 * 48) * width
    layer = 4 * width + 4 * width * (width + 1) + 2 * d_ff * width + d_ff + width
    merged = 4 * width
    projector = 2 * width + merged * (merged + 1) + (merged + 1) * out
    return patches + layers * layer + projector


def fp8_scales(model: Model, layers: int) -> int:
    """Return the scales of fp8 weights, one per block of 128 x 128 numbers."""
    mla, moe, width = model.mla, model.moe, model.d_model
    assert moe is not None
    heads, wide = model.n_heads, model.n_heads * model.head_dim
    attention = [(wide, width), *2 * [(kv_width(model), width)], (width, wide)]
    if mla is not None:
        attention = [
            (mla.q_rank, width),
            (wide, mla.q_rank),
            (mla.kv_rank + mla.rope_dim, width),
            (heads * (mla.nope_dim + mla.v_dim), mla.kv_rank),
            (width, heads * mla.v_dim),
        ]
        if (found := mla.indexer) is not None:
            attention += [(found.n_heads * found.head_dim, mla.q_rank)]
            attention += [(found.head_dim, width)]
    dense = 3 * [(model.d_ff, width)]
    sparse = 3 * moe.n_experts * [(moe.d_ff, width)] + 3 * [(moe.shared_d_ff, width)]
    first = moe.first_dense_layers
    every = layers * attention + first * dense + (layers - first) * sparse
    return sum(-(-rows // 128) * -(-columns // 128) for rows, columns in every)


def wide_norms(model: Model) -> int:
    """Return what norms over all query and all key heads have more than ours."""
    heads = model.n_heads + model.n_kv_heads - 2
    return model.n_layers * heads * model.head_dim


# Vision and its projector: keras-hub (keras_hub/src/models/gemma3/gemma3_presets.py),
# a preset with them less the one of text alone.
GEMMA_VISION = {
    "gemma3-4b": 4_299_915_632 - 3_880_099_328,
    "gemma3-12b": 12_187_079_280 - 11_765_788_416,
    "gemma3-27b": 27_432_062_576 - 27_009_002_240,
}

# Width, layers and MLP of vision in config.json of Qwen 3.5.
QWEN_VISION = {
    "qwen3.5-0.8b": (768, 12, 3_072),
    **dict.fromkeys(["qwen3.5-2b", "qwen3.5-4b"], (1_024, 24, 4_096)),
    **dict.fromkeys(
        [
            "qwen3.5-9b",
            "qwen3.5-27b",
            "qwen3.5-35b-a3b",
            "qwen3.5-122b-a10b",
            "qwen3.5-397b-a17b",
        ],
        (1_152, 27, 4_304),
    ),
}

NEXT_TOKEN = {
    # name: the copies of tables that the layer has
    **dict.fromkeys(QWEN_VISION, 0),
    **{"glm-4.5-air": 2, "glm-4.5": 2, "glm-4.6": 0, "glm-4.7": 2},
    **{"glm-4.7-flash": 2, "glm-5": 0, "glm-5.2": 0, "deepseek-v3.2": 2},
    **{"hy3-preview": 0, "mimo-7b": 0},
}


def on_the_page_alone(name: str, model: Model) -> int:
    """Return what the published count has and the model leaves out."""
    more = GEMMA_VISION.get(name, 0)
    if name in QWEN_VISION:
        more += vision(*QWEN_VISION[name], model.d_model)
    if name in NEXT_TOKEN:
        more += next_token(model, NEXT_TOKEN[name])
    if name == "olmo-1b":
        # Its norms, two a layer and one at the end, have neither weights nor biases.
        more -= (2 * model.n_layers + 1) * norm_params(model)
    elif name.startswith(("olmo", "minimax")):
        more += wide_norms(model)
    if name in ("deepseek-v3.2", "kimi-k2", "minimax-m2"):
        more += fp8_scales(model, model.n_layers + (name in NEXT_TOKEN))
    if name == "llama4-scout":
        # The same as in Maverick: its page less the language model alone, which
        # transformers counts (tests/data/hf/models.yaml).
        more += 401_583_781_376 - 400_711_848_960
    return more


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
    return Model.model_validate(catalog.read(catalog.locate(KIND, name, Path())).data)


@pytest.mark.parametrize("name", catalog.names(KIND))
def test_parameters_are_those_published(name: str) -> None:
    preset = model(name)
    published = preset.published_params
    assert published is not None
    count, half_digit = ROUNDED.get(name, (published, 0))
    assert count == published
    whole = total_params(preset) + on_the_page_alone(name, preset)
    assert abs(whole - count) <= half_digit


@pytest.mark.parametrize("name", ["deepseek-v3", "glm-4.5", "qwen3-next-80b-a3b"])
def test_further_tokens_are_predicted_by_as_many_parameters(name: str) -> None:
    found = model(name)
    further = found.model_copy(update={"mtp_layers": 1})
    assert total_params(further) - total_params(found) == next_token(found)


def test_the_module_of_deepseek_v3_has_the_published_size() -> None:
    """Its authors count 11.5 billion beside embedding and head (README_WEIGHTS.md)."""
    assert next_token(model("deepseek-v3")) == pytest.approx(11.5e9, abs=0.15e9)


def test_what_pages_count_besides_is_of_models_that_there_are() -> None:
    named = {*ROUNDED, *GEMMA_VISION, *QWEN_VISION, *NEXT_TOKEN}
    assert named <= {*catalog.names(KIND)}


def test_models_go_by_their_names_on_the_hub_and_by_aliases() -> None:
    hubs = {name: model(name).details.hub for name in catalog.names(KIND)}
    file = Path(str(catalog.folder(KIND))) / catalog.ALIASES
    aliases: dict[str, str] = read_yaml(file).data["models"]
    known = {catalog.fold_model(one) for one in [*hubs, *filter(None, hubs.values())]}
    assert known.isdisjoint(map(catalog.fold_model, aliases))
    for name, hub in hubs.items():
        others = (f"{hub}-Instruct", f"me/{hub}-fp16", f"{hub}-NVFP4") if hub else ()
        for spelled in filter(None, (name, hub, *others)):
            assert catalog.bundled(KIND, spelled).stem == name
    for alias, name in aliases.items():
        assert catalog.bundled(KIND, alias).stem == name


def test_vision_is_that_of_keras_hub() -> None:
    """qwen3_5_moe_presets.py has 35B-A3B with vision and, by another name, without."""
    with_it, without = 35_107_181_936, 34_660_610_688
    assert vision(1_152, 27, 4_304, 2_048) == with_it - without


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


def is_plain(preset: Model) -> bool:
    """Return whether a model has no part that the two tests below leave out."""
    moe = preset.moe
    has_gate = moe is not None and (moe.shared_gate or moe.own_norms > 0)
    has_indexer = preset.mla is not None and preset.mla.indexer is not None
    return not (has_gate or has_indexer or preset.head_bias or preset.attention_sinks)


PLAIN = [name for name in catalog.names(KIND) if is_plain(model(name))]


@pytest.mark.parametrize("name", PLAIN)
def test_tensor_shards_add_up_to_the_layer(name: str) -> None:
    """tp shards hold the layer once, and what is not split tp - 1 times more.

    Not split are norms and row-parallel biases (Shoeybi et al. 2019, section 3), and
    KV heads where there are fewer of them than shards; the router; and of latent
    attention what leads to the latent vectors.
    """
    preset, tp = model(name), np.array([2, 4, 8, 16])
    whole = layer_params(preset, np.array([1]))[0]
    row_biases = 2 * preset.d_model if preset.bias == "all" else 0
    kv = 2 * kv_width(preset) * (preset.d_model + (preset.bias != "none"))
    kv = 0 if preset.mla is not None else kv
    kv_copies = np.maximum(tp / preset.n_kv_heads, 1) - 1
    again = (tp - 1) * (held_whole(preset) + row_biases) + kv_copies * kv
    shards = tp * layer_params(preset, tp)
    assert shards == pytest.approx(whole + again, rel=1e-12)


@pytest.mark.parametrize("name", PLAIN)
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
