"""A frozen model beside the one that is trained, as DPO has it: bytes and seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from tests.exports.small import LLAMA
from tests.helpers.launches import written
from tests.helpers.plans import best_of

PARAMS = 32 * (4096 * 128 * (32 + 8 + 8 + 32) + 3 * 4096 * 14336 + 2 * 4096)
PARAMS += 2 * 128_256 * 4096 + 4096
GIB = 2**30

ONE_WAY: dict[str, Any] = {
    "tp": 1, "cp": 1, "micro_batch": 2, "recompute": "full", "offload": "none",
    "dp_shard": 8,
}  # fmt: skip


def best(reference: str, zero: int, **fields: Any) -> mw.PricedPlan:
    """Return the plan of a model of 8B on eight GPUs."""
    training = {"seq_len": 2048, "global_batch": 64, "reference_model": reference}
    question = {
        "model": LLAMA,
        "cluster": {"topology": "dgx-h100", "count": 1},
        "framework": "fsdp",
        "pins": {**ONE_WAY, "zero": zero},
    }
    given = {**question, **fields, "training": training | fields.get("training", {})}
    found = best_of(mw.load(given, mw.Spec))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kept", "zero", "each"), [("bf16", 3, 2 / 8), ("bf16", 2, 2), ("fp32", 3, 4 / 8)]
)
def test_the_copy_is_sharded_as_what_is_trained(
    kept: str, zero: int, each: float
) -> None:
    without, beside = (
        best(one, zero).stages[0].parts["weights"] for one in ("none", kept)
    )
    assert (beside - without) * GIB == pytest.approx(each * PARAMS)


def test_beside_adapters_nothing_more_is_held() -> None:
    """The model without its adapters is what they are compared with."""
    given = {"training": {"lora": {"rank": 8}}}
    without, beside = (
        best(
            one,
            0,
            framework="fsdp",
            pins={**ONE_WAY, "zero": 0, "dp_shard": 1, "dp_replicate": 8},
            **given,
        )
        for one in ("none", "bf16")
    )
    parts = [one.stages[0].parts["weights"] for one in (without, beside)]
    assert parts[0] == parts[1]
    assert beside.step_s > without.step_s


def test_it_adds_a_forward_and_whole_ends() -> None:
    """Of forward, recomputed forward and backward, four thirds of what is computed."""
    without, beside = best("none", 3), best("bf16", 3)
    compute = [one.time_parts["compute"] for one in (without, beside)]
    assert compute[1] / compute[0] == pytest.approx(4 / 3, rel=0.02)
    assert beside.time_parts["recompute"] == without.time_parts["recompute"]
    more = [one.stages[0].parts["workspace"] for one in (without, beside)]
    ends = 2 * (2 * 128_256 * 4096 + 4096)
    assert (more[1] - more[0]) * GIB == pytest.approx(ends)


@pytest.mark.parametrize(
    ("framework", "pins", "rule"),
    [
        ("megatron", {"pp": 1}, "reference_supported"),
        ("deepspeed", {"pp": 2}, "reference_supported"),
        ("fsdp", {"micro_batch": 1}, "pairs_whole"),
    ],
)
def test_pipelines_odd_batches_and_other_frameworks_have_none(
    framework: str, pins: dict[str, int], rule: str
) -> None:
    training = {"seq_len": 2048, "global_batch": 64, "reference_model": "bf16"}
    cluster = {"topology": "dgx-h100", "count": 1}
    question = {"model": LLAMA, "cluster": cluster, "training": training}
    conflict = mw.explain({**question, "framework": framework, "pins": pins}).conflict
    assert conflict is not None
    assert rule in {one.rule for one in conflict.rules}


TRL_DPO = """\
torchrun --nproc_per_node 8 -m trl.scripts.dpo --config dpo.yaml
"""

CONFIG = """\
model_name_or_path: Qwen/Qwen3-8B
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
max_length: 2048
bf16: true
"""


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ("", "fp32"),
        ("dtype: bfloat16\n", "bf16"),
        ("precompute_ref_log_probs: true\n", None),
    ],
)
def test_the_program_of_pairs_of_trl_says_that_there_is_one(
    tmp_path: Path, more: str, kept: str | None
) -> None:
    (tmp_path / "dpo.yaml").write_text(CONFIG + more)
    (tmp_path / "run.sh").write_text(TRL_DPO)
    found = mw.import_file(tmp_path / "run.sh").fields
    assert found["training"].get("reference_model") == kept
    assert found["pins"]["micro_batch"] == 4
    assert "loss_chunks" not in found["training"]


@pytest.mark.parametrize(
    ("text", "kept", "each"),
    [
        ("rl: dpo\n", "bf16", 4),
        ("rl: orpo\n", None, 4),
        ("rl: kto\n", None, 2),
        ("", None, 2),
    ],
)
def test_kinds_of_axolotl(
    tmp_path: Path, text: str, kept: str | None, each: int
) -> None:
    path = tmp_path / "axolotl.yaml"
    path.write_text(
        "base_model: Qwen/Qwen3-8B\nmicro_batch_size: 2\nsequence_len: 2048\n" + text
    )
    found = mw.import_file(path).fields
    assert found["training"].get("reference_model") == kept
    assert found["pins"]["micro_batch"] == each


@pytest.mark.parametrize("loss", ["sigmoid", "orpo"])
def test_a_loss_of_llama_factory_may_need_none(tmp_path: Path, loss: str) -> None:
    path = tmp_path / "dpo.yaml"
    path.write_text(
        "model_name_or_path: Qwen/Qwen3-8B\nstage: dpo\nfinetuning_type: full\n"
        f"cutoff_len: 2048\nper_device_train_batch_size: 1\npref_loss: {loss}\n"
    )
    found = mw.import_file(path).fields
    kept = {"sigmoid": "bf16", "orpo": None}[loss]
    assert found["training"].get("reference_model") == kept
    assert found["pins"]["micro_batch"] == 2


@pytest.mark.parametrize("target", ["axolotl", "llama-factory", "trl"])
def test_exports_start_the_same_plan(tmp_path: Path, target: str) -> None:
    plan = best("bf16", 3)
    training = {"seq_len": 2048, "global_batch": 64, "reference_model": "bf16"}
    question = {
        "model": LLAMA,
        "cluster": {"topology": "dgx-h100", "count": 1},
        "framework": "fsdp",
        "training": training,
    }
    written(mw.export(question, plan, to=target), tmp_path)
    found = mw.import_file(next(tmp_path.glob("*.sh"))).fields
    assert found["training"]["reference_model"] == "bf16"
    assert found["pins"]["micro_batch"] == 2


def test_scores_that_are_there_before_are_a_switch() -> None:
    training = {"seq_len": 2048, "global_batch": 64, "reference_model": "bf16"}
    question = {
        "model": LLAMA,
        "cluster": {"topology": "dgx-h100", "count": 1},
        "framework": "fsdp",
        "training": training,
    }
    told = {one.switch: one for one in mw.solve(mw.load(question, mw.Spec)).levers}
    found = told["reference_model"]
    assert "precompute_ref_log_probs" in found.option
    assert found.gain == pytest.approx(1 / 3, abs=0.1)


def test_its_logits_come_and_go_before_the_loss() -> None:
    """They count where they are more than what the loss has beside its logits."""
    logits_gib = 2 * 2048 * 128_256 * 2 / GIB
    for loss_bytes, more_gib in ((12.0, 0.0), (0.5, 0.75 * logits_gib)):
        given = {"training": {"loss_bytes": loss_bytes}}
        without, beside = (
            best(one, 2, **given).stages[0].parts["workspace"]
            for one in ("none", "bf16")
        )
        assert beside - without == pytest.approx(more_gib)
