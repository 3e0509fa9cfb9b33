"""Layers that predict further tokens: what they cost, and who trains them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.imports.read import read_launch
from tests.exports.small import LLAMA, spec_of
from tests.helpers.launches import written
from tests.helpers.plans import best_of
from tests.imports.launches.test_functions import OF_THE_HUB

PIPELINE: dict[str, Any] = {
    "tp": 1, "pp": 4, "cp": 1, "zero": 1, "vpp": 1, "micro_batch": 1,
    "recompute": "none", "offload": "none", "schedule": "1f1b",
}  # fmt: skip


def asked(mtp_layers: int, **fields: Any) -> dict[str, Any]:
    """Return the question of a small model on two hosts."""
    return {
        "model": {**LLAMA, "mtp_layers": mtp_layers},
        "cluster": {"topology": "dgx-h100", "count": 2},
        "framework": "megatron",
        "training": {"seq_len": 4096, "global_batch": 128},
        "pins": PIPELINE,
        **fields,
    }


def best(mtp_layers: int, **fields: Any) -> mw.PricedPlan:
    """Return the best plan of it."""
    found = best_of(mw.load(asked(mtp_layers, **fields), mw.Spec))
    assert found is not None
    return found


def test_the_last_stage_has_fewer_layers_beside_them() -> None:
    """Both are priced on the stage of the head, which is evened out by the split."""
    layers = [[stage.layers for stage in best(n).plan.stages] for n in (0, 2)]
    assert sum(layers[0]) == sum(layers[1]) == LLAMA["n_layers"]
    assert layers[1][-1] <= layers[0][-1] - 2


def test_the_last_stage_holds_their_weights_logits_and_a_second_embedding() -> None:
    pins = {**PIPELINE, "layers": [8, 8, 8, 8]}
    without, one, two = (best(n, pins=pins).stages[-1].parts for n in (0, 1, 2))
    width, vocab = 4096, 128_256
    table, joins, norms = vocab * width, 2 * width**2, 3 * width
    layer = width * 128 * (32 + 8 + 8 + 32) + 3 * width * 14336 + 2 * width
    gib = 2**30
    assert (one["weights"] - without["weights"]) * gib == pytest.approx(
        2 * (layer + joins + norms + table)
    )
    assert (two["weights"] - one["weights"]) * gib == pytest.approx(
        2 * (layer + joins + norms)
    )
    more = one["logits"] - without["logits"]
    assert more > without["logits"], "logits once more, and what a layer keeps"
    assert two["logits"] - one["logits"] == pytest.approx(more)


def test_a_further_token_takes_more_than_a_layer() -> None:
    """Beside a layer there are a matmul of twice the width, a head and a loss."""
    pins = {**PIPELINE, "pp": 1, "tp": 4}
    steps = [best(n, pins=pins).step_s for n in (0, 1)]
    deeper = best_of(
        mw.load({**asked(0, pins=pins), "model": {**LLAMA, "n_layers": 33}}, mw.Spec)
    )
    assert deeper is not None
    assert steps[1] > deeper.step_s > steps[0]


@pytest.mark.parametrize("framework", ["torchtitan", "deepspeed", "fsdp"])
def test_frameworks_that_leave_them_out_have_no_plan(framework: str) -> None:
    pins = {"pp": 1}
    conflict = mw.explain(asked(1, framework=framework, pins=pins)).conflict
    assert conflict is not None
    assert "mtp_supported" in {rule.rule for rule in conflict.rules}


@pytest.mark.parametrize(
    "fields",
    [
        {"training": {"seq_len": 4096, "global_batch": 128, "lora": {"rank": 8}}},
        {"inference": {"batch": 8, "prompt_len": 512, "output_len": 64}},
    ],
)
def test_adapters_and_serving_have_none(fields: dict[str, Any]) -> None:
    question = {**asked(1), **fields, "pins": {}}
    if "inference" in fields:
        del question["training"], question["framework"]
    with pytest.raises(mw.SpecError, match="mtp_layers"):
        mw.load(question)


def test_no_model_has_more_of_them_than_layers() -> None:
    with pytest.raises(mw.SpecError, match=r"mtp_layers: 33 are more than"):
        mw.load(asked(33))


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("layers", [[8, 8, 8, 8], [9, 9, 8, 6]])
def test_exports_train_them_and_are_read_again(
    target: str, layers: list[int], tmp_path: Path
) -> None:
    spec = spec_of(target, mtp_layers=1)
    spec = spec.having("pins", layers=tuple(layers), recompute=None)
    found = best_of(spec)
    assert found is not None
    path = written(mw.export(spec, found.plan, to=target), tmp_path)
    launch = read_launch(path)
    assert launch.value("model.mtp_layers") == 1
    assert not [note for note in launch.notes() if "mtp" in note or "layers m" in note]
    assert ("mL" in path.read_text(encoding="utf-8")) == (len({*layers}) > 1)


SCRIPT = """\
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 \\
  --num-attention-heads 16 --seq-length 4096 --micro-batch-size 1 \\
  --global-batch-size 32 --bf16 --pipeline-model-parallel-size 4 {}
"""


@pytest.mark.parametrize(
    ("options", "layers", "is_noted"),
    [
        ("--mtp-num-layers 2", 2, False),
        (
            "--mtp-num-layers 1 --pipeline-model-parallel-layout 'Ettt|tt|tt|tmL'",
            1,
            False,
        ),
        ("--pipeline-model-parallel-layout 'Ettt|tt|tt|tmL'", 1, False),
        (
            "--mtp-num-layers 1 --pipeline-model-parallel-layout 'Ettt|tt|ttm|tL'",
            1,
            True,
        ),
    ],
)
def test_launches_say_them(
    tmp_path: Path, options: str, layers: int, is_noted: bool
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.format(options))
    found = mw.import_file(path)
    assert found.fields["model"]["mtp_layers"] == layers
    assert any("layers m" in note for note in found.notes) == is_noted


def test_a_layout_that_has_other_ones_contradicts(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    layout = "--pipeline-model-parallel-layout 'Ettt|tt|tt|tmL'"
    path.write_text(SCRIPT.format(f"--mtp-num-layers 2 {layout}"))
    with pytest.raises(mw.SpecError, match="mtp-num-layers 2: contradicts"):
        mw.import_file(path)


@pytest.mark.parametrize(
    ("line", "layers"),
    [("", 1), ("cfg.model.mtp_num_layers = 2", 2), ("cfg.model.mtp_num_layers = 0", 0)],
)
def test_models_of_the_hub_are_trained_with_those_of_their_checkpoint(
    line: str, layers: int, tmp_path: Path
) -> None:
    """Providers of Megatron Bridge take them from config.json, unless they are told."""
    recipe = OF_THE_HUB.replace("zai-org/", "deepseek-ai/").format("DeepSeek-V3")
    path = tmp_path / "recipe.py"
    path.write_text(recipe.replace("    return", f"    {line}\n    return"))
    model = {"preset": "deepseek-v3", "mtp_layers": layers}
    found = mw.import_file(path)
    assert found.fields["model"] == (model if layers else "deepseek-v3")
    assert not any("mtp" in note for note in found.notes)


def test_a_config_of_the_hub_says_which_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256,
        "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000,
        "num_nextn_predict_layers": 2,
    }  # fmt: skip
    path.write_text(json.dumps(config))
    found = mw.import_file(path, kind="hf")
    assert found.fields["model"]["details"]["mtp_layers"] == 2
    assert any("say model.mtp_layers: 2" in note for note in found.notes)
