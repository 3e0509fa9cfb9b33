"""Models from config.json have the parameters that their authors publish."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright import catalog
from meshwright.cost.whole_model import active_params, total_params
from meshwright.errors import SpecError
from meshwright.imports.hf import architectures, parse
from meshwright.spec.model import Model

MODELS: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "data" / "hf" / "models.yaml").read_text("utf-8")
)


def model_of(config: dict[str, Any], name: str = "config.json") -> Model:
    fields = parse(json.dumps(config), name).fields
    return Model.model_validate({"name": name, **fields})


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_published_ones(name: str) -> None:
    entry = MODELS[name]
    assert total_params(model_of(entry["config"], name)) == entry["params"]


def test_every_family_has_a_model_with_a_count() -> None:
    read = {entry["config"]["model_type"] for entry in MODELS.values()}
    assert read <= {*architectures(), "llama4", "gemma3"}


SAMPLES = os.environ.get("MESHWRIGHT_SHARED")


@pytest.mark.skipif(not SAMPLES, reason="MESHWRIGHT_SHARED names no folder of samples")
def test_all_configurations_of_the_samples_are_exact() -> None:
    folder = Path(str(SAMPLES)) / "samples"
    entries = yaml.safe_load((folder / "INDEX.yaml").read_text("utf-8"))
    if isinstance(entries, dict):
        entries = next(one for one in entries.values() if isinstance(one, list))
    checked = 0
    for entry in entries:
        if entry.get("kind") != "hf_config":
            continue
        model = model_of(json.loads((folder / entry["file"]).read_text("utf-8")))
        wanted = entry["expect"]
        assert total_params(model) == wanted["params_total"], entry["file"]
        if "params_active_per_token" in wanted:
            assert active_params(model) == wanted["params_active_per_token"]
        checked += 1
    assert checked >= 40


LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip


def refused(config: Any) -> str:
    text = config if isinstance(config, str) else json.dumps(config)
    with pytest.raises(SpecError) as caught:
        parse(text, "config.json")
    return str(caught.value)


def test_an_unknown_architecture_is_refused_by_name() -> None:
    told = refused(LLAMA | {"model_type": "rwkv", "architectures": ["RwkvModel"]})
    assert told.startswith("config.json: model_type: 'rwkv' ('RwkvModel') is not supp")
    assert "llama4_text" in told


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"model_type": "gemma4_text", "hidden_size_per_layer_input": 256},
            "hidden_size_per_layer_input: not modelled: separate embeddings",
        ),
        (
            LLAMA | {"model_type": "opt", "word_embed_proj_dim": 32},
            "word_embed_proj_dim: not modelled",
        ),
        (
            LLAMA | {"model_type": "opt", "do_layer_norm_before": False},
            "do_layer_norm_before: not modelled",
        ),
        (LLAMA | {"model_type": "phi", "qk_layernorm": True}, "qk_layernorm: not"),
        (
            LLAMA | {"model_type": "gemma2", "layer_types": ["linear", "linear"]},
            "layer_types: 'linear' is not supported",
        ),
        (LLAMA | {"hidden_size": "64"}, "hidden_size: '64': expected a whole number"),
        (LLAMA | {"num_hidden_layers": 10**6}, "num_hidden_layers: 1000000"),
        ({"model_type": "llama"}, "hidden_size: missing"),
        ("[]", "expected a config.json, as a mapping"),
        ('{"model_type": ', "config.json:1: not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(config: Any, told: str) -> None:
    assert told in refused(config)


def test_notes_say_what_the_file_leaves_out() -> None:
    config = {
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152},
    }  # fmt: skip
    read = parse(json.dumps(config), "config.json")
    assumed, alone = read.notes
    assert "num_attention_heads 8" in assumed
    assert "head_dim 256" in assumed
    assert "left out" in alone


def test_layers_alternate_as_in_the_file() -> None:
    maverick = model_of(MODELS["llama-4-maverick"]["config"])
    assert maverick.pattern == (
        "chunked dense", "chunked", "chunked dense", "full",
    )  # fmt: skip
    assert maverick.of_kind("chunked dense").moe is None
    assert maverick.of_kind("chunked").attention_chunk == 8192
    gemma = model_of(MODELS["gemma-3-27b"]["config"])
    assert (gemma.order.period, len(gemma.order.leading)) == (6, 2)


SHARED = ["shared", "shared", "shared", "full"]


@pytest.mark.parametrize(
    "says",
    [
        {"indexer_types": ["full"] * 3 + 18 * SHARED + ["shared"] * 3},
        {"index_topk_pattern": "FFF" + 18 * "SSSF" + "SSS"},
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
    ],
)
def test_an_indexer_picks_for_the_layers_behind_it(says: dict[str, Any]) -> None:
    """GLM-5.2 with the parameters that Transformers counts (Megatron-Bridge 067f987,
    examples/model_verification_cards/glm5-2/card.yaml: megatron_to_hf_cpu).
    """
    model = model_of({"model_type": "glm_moe_dsa"} | says)
    assert total_params(model) == 743_377_000_704
    assert model.order.leading == ("dense",) * 3 + ("shared",) * 3
    assert model.order.repeated == ("full", "shared", "shared", "shared")
    assert model.of_kind("dense").moe is None
    bundled = Model.model_validate(
        catalog.read(catalog.locate(catalog.MODELS, "glm-5.2", Path())).data
    )
    assert bundled.pattern == model.pattern
    assert bundled.kinds == model.kinds
