"""Words for precisions, optimizers and what lives where mean what specs accept."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.evidence.published_numerics import is_pure
from meshwright.evidence.published_terms import VOCABULARY, Unpriced
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.plan_fields import MODULES, OFFLOADS
from meshwright.spec.training import OPTIMIZERS
from tests.evidence.test_runs import priced

FLAT: dict[str, Any] = {"config__tp": 1, "config__pp": 1, "config__dp": 16}
FSDP = FLAT | {"config__framework": "PyTorch FSDP", "config__zero_stage": 3}


def test_words_stand_for_accepted_values() -> None:
    assert {*VOCABULARY.precisions} <= {*PRECISIONS}
    assert {*VOCABULARY.optimizers} == {*OPTIMIZERS}
    assert {*VOCABULARY.offloads} == {*OFFLOADS} - {"none"}
    assert {*VOCABULARY.modules.values()} <= {*MODULES}


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("bf16-true", "bf16"),
        ("bf16-mixed", "bf16"),
        ("bfloat16", "bf16"),
        ("16-mixed", "fp16"),
        ("float16", "fp16"),
        ("4-bit", "bf16"),
        ("nf4", "bf16"),
        ("TF32", "tf32"),
        ("32-true", "fp32"),
    ],
)
def test_precisions_go_by_many_words(words: str, precision: str) -> None:
    assert priced(config__precision=words).spec.training.precision == precision


def test_matmuls_in_four_bits_are_twice_as_fast_as_in_eight() -> None:
    shape = {"n_layers": 8, "d_model": 8192, "n_heads": 64, "d_ff": 32768}
    model = {**shape, "vocab": 51200, "seq_len": 4096, "tied": True}
    where = {"model": model, "hardware__gpu": "B200-180GB-SXM", "date": "2026-01-01"}
    four, eight = (
        priced(**where, config__precision=word) for word in ("nvfp4", "mxfp8")
    )
    peaks = [one.spec.cluster.topology.gpu.peak_tflops.fp8 for one in (four, eight)]
    assert peaks[0] == 2 * (peaks[1] or 0)
    assert four.spec.training.precision == "fp8"
    assert eight.step_s / 2 < four.step_s < eight.step_s


@pytest.mark.parametrize(
    ("words", "date", "expected"),
    [
        ("Transformers Trainer", "2024-08", "autocast"),
        ("Transformers Trainer", "2024-06", "bf16"),
        ("torchtune (PyTorch)", "2025-01", "bf16"),
    ],
)
def test_adapters_of_peft_are_kept_in_fp32_since_a_version(
    words: str, date: str, expected: str
) -> None:
    run = {"config__framework": words, "config__task": "lora"}
    lora = priced(date=date, **run).spec.training.lora
    assert lora is not None
    assert lora.adapters == expected
    said = priced(date=date, **run, config__adapters="fp32").spec.training.lora
    assert said is not None
    assert said.adapters == "fp32"


def test_frozen_weights_of_gptq_are_not_those_of_bitsandbytes() -> None:
    found = priced(config__task="qlora", config__frozen_weights="int4 (GPTQ)")
    assert found.spec.training.lora is not None
    assert found.spec.training.lora.weights == "gptq"


def test_frozen_weights_beside_fp8_are_not_kept_twice() -> None:
    where = {"hardware__gpu": "H100", "config__precision": "fp8", "date": "2025-01-01"}
    assert priced(**where, config__task="lora").spec.training.fp8_weights == "primary"


def test_pure_bf16_keeps_eight_bytes_of_a_parameter() -> None:
    """Weights, gradients and two moments in 2 bytes each, over 16 GPUs; mixed
    precision of FSDP has 4 + 4 + 8.
    """
    pure = priced(**FSDP, config__precision="bf16-true")
    mixed = priced(**FSDP, config__precision="bf16-mixed")
    assert is_pure(pure.run.config)
    assert pure.spec.training.master_weights == "none"
    params = (mixed.allocated_gib - pure.allocated_gib) * 2**30 * 16 / (16 - 8)
    # 8 layers of 12 x 1,024^2 weights and a table of 51,200; a cast layer goes as well
    assert params == pytest.approx(8 * 12 * 1024**2 + 51200 * 1024, rel=0.35)


@pytest.mark.parametrize(
    ("words", "optimizer", "moments"),
    [
        ("8-bit Adam", "adamw-8bit", "fp32"),
        ("paged_adamw_8bit", "adamw-8bit", "fp32"),
        ("DeepSpeedCPUAdam", "adamw", "fp32"),
        ("fused AdamW, bf16 moments", "adamw", "bf16"),
        ("MuonH", "muon", "fp32"),
        ("SGD", "sgd", "fp32"),
        (None, "adamw", "fp32"),
    ],
)
def test_optimizers_go_by_many_words(
    words: str | None, optimizer: str, moments: str
) -> None:
    training = priced(config__optimizer=words).spec.training
    assert (training.optimizer, training.moments) == (optimizer, moments)


def test_what_no_word_says_is_refused_by_field() -> None:
    for field, words in (
        ("optimizer", "Lion"), ("precision", "posit8"), ("offload", "magic"),
    ):  # fmt: skip
        with pytest.raises(Unpriced, match=rf"^config\.{field}: {words} is not"):
            priced(**{f"config__{field}": words})


@pytest.mark.parametrize(
    ("words", "framework", "zero", "offload"),
    [
        ("optimizer", "Megatron-LM", 1, "optimizer"),
        ("optimizer", "DeepSpeed", 1, "optimizer"),
        ("optimizer", "DeepSpeed", 2, "gradients"),
        ("optimizer+params", "DeepSpeed", 3, "parameters"),
        ("cpu", "PyTorch FSDP", 3, "parameters"),
        ("optimizer states", "PyTorch FSDP", 3, "parameters"),
        ("none", "DeepSpeed", 2, "none"),
    ],
)
def test_offloaded_state_is_priced(
    words: str, framework: str, zero: int, offload: str
) -> None:
    names = {"config__framework": framework, "config__zero_stage": zero}
    left = priced(**FLAT, **names, config__offload=words)
    kept = priced(**FLAT, **names)
    assert left.plan.offload == offload
    assert (left.peak_gib < kept.peak_gib) == (offload != "none")
    assert (left.step_s > kept.step_s) == (offload != "none")


def test_activations_may_leave_alone() -> None:
    left = priced(**FLAT, config__offload="activations", config__recompute="none")
    kept = priced(**FLAT, config__recompute="none")
    assert left.plan.offload == "none"
    assert left.peak_gib < kept.peak_gib


def test_half_of_the_activations_may_leave_also_beside_a_pipeline() -> None:
    where = FLAT | {"config__pp": 2, "config__dp": 8, "config__recompute": "none"}
    none, half, every = (
        priced(**where, config__offload=words).peak_gib
        for words in ("none", "half of activations", "activations")
    )
    assert none > half > every > 0


def test_residuals_leave_where_nothing_else_is_kept() -> None:
    for recompute, leaves in (("full", True), ("selective (mlp)", False)):
        where = FLAT | {"config__recompute": recompute}
        found = priced(**where, config__offload="residuals").spec.training
        assert (found.offload_activations > 0) == leaves


def test_master_weights_are_the_parameters_where_none_are_kept_beside_them() -> None:
    words = {"config__offload": "optimizer moments, master weights"}
    pure = priced(**FLAT, **words, config__precision="bf16-true")
    assert pure.plan.offload == "parameters"
    assert priced(**FLAT, **words).plan.offload == "optimizer"


def test_liger_and_llm_q_have_kernels_of_their_own() -> None:
    liger = priced(config__framework="LLaMA-Factory (Transformers, Liger)")
    fused = liger.spec.training.fused
    assert fused is not None
    assert {"norm", "rope", "activation", "loss"} <= {*fused}
    assert (liger.spec.training.loss_chunks or 1) > 1
    assert priced(config__framework="llm.q").spec.training.loss_bytes == 0


def test_trainers_of_transformers_keep_results_beside_adapters() -> None:
    lora = FSDP | {"config__task": "lora", "config__fsdp": "full"}
    names = {"PyTorch FSDP, Transformers Trainer": True, "PyTorch FSDP": False}
    for name, keeps in names.items():
        found = priced(**lora | {"config__framework": name}).spec.training.lora
        assert found is not None
        assert found.keeps_results == keeps


def test_fsdp_of_litgpt_makes_gradients_of_frozen_matrices() -> None:
    lora = FSDP | {"config__task": "lora", "config__fsdp": "full"}
    for name, makes in {"LitGPT (Fabric)": True, "Fabric": False}.items():
        found = priced(**lora | {"config__framework": name}).spec.training.lora
        assert found is not None
        assert found.frozen_gradients == makes


@pytest.mark.parametrize(
    ("date", "framework", "weights", "keeps"),
    [
        ("2024-03", "LitGPT", "nf4", True),
        ("2024-08", "LitGPT", "nf4", True),
        ("2025-03", "LitGPT", "nf4", False),
        ("2024-03", "LitGPT", "int4 (GPTQ)", False),
        ("2024-03", "Transformers", "nf4", True),
        ("2024-08", "Transformers", "nf4", False),
        ("2024-03", "torchtune", "nf4", False),
        ("2024-03", "LitGPT", "bf16", False),
    ],
)
def test_old_matmuls_in_four_bits_keep_their_inputs(
    date: str, framework: str, weights: str, keeps: bool
) -> None:
    words = {"config__framework": framework, "config__frozen_weights": weights}
    words["config__recompute"] = "none"
    said = {"config__lora_dropout": True, "config__upcast": True}
    found = priced(date=date, **words, **said).spec.training.lora
    assert found is not None
    assert (found.keeps_inputs, found.dropout, found.upcast) == (keeps, True, True)
    assert found.keeps_graph == (keeps and framework == "LitGPT")


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        ("selective (core_attn)", "core_attn"),
        ("selective (core_attn, moe_act)", "core_attn+moe_act"),
        ("layer_norm, mlp", "layernorm+mlp"),
        ("selective: mla_up_proj", "mla_up_proj"),
    ],
)
def test_recomputed_modules_are_listed_in_words(words: str, modules: str) -> None:
    plan = priced(config__recompute=words).plan
    assert (plan.recompute, plan.recompute_modules) == ("selective", modules)


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({}, "full"),
        ({"date": "2026-02-09"}, "selective"),
        ({"config__compile": False}, "selective"),
        ({"config__framework": "Megatron-LM"}, "selective"),
        ({"model__moe": None}, "selective"),
    ],
)
def test_layers_of_compiled_experts_kept_nothing_before_february_2026(
    changes: dict[str, Any], mode: str
) -> None:
    experts = {"n_experts": 8, "top_k": 2, "expert_d_ff": 512}
    where = FSDP | {"date": "2025-11-01", "model__moe": experts}
    where |= {"config__framework": "torchtitan", "config__compile": True}
    where |= {"config__recompute": "selective (op)"}
    assert priced(**where | changes).plan.recompute == mode


def test_some_layers_of_each_stage_may_be_recomputed() -> None:
    def recomputed(**changes: Any) -> list[int]:
        stages = priced(**changes).plan.stages
        return [stage.recompute_layers for stage in stages]

    assert recomputed(config__recompute="full, 3 layers") == [3, 3]
    assert recomputed(config__recompute="block, 1 layer", config__vp=2) == [2, 2]
    assert recomputed(config__recompute_layers=[3, 1]) == [3, 1]
    assert recomputed(config__recompute_layers=[2]) == [2, 2]
    assert recomputed(config__recompute="no") == [0, 0]
    with pytest.raises(Unpriced, match="recompute_layers: 3 stages, not 2"):
        priced(config__recompute_layers=[1, 2, 3])


@pytest.mark.parametrize("words", ["1F1B", "Interleaved 1F1B", "interleaved_1f1b"])
def test_schedules_are_read_in_any_case(words: str) -> None:
    assert priced(config__schedule=words).plan.schedule == "1f1b"


@pytest.mark.parametrize(
    ("words", "schedule"), [("ZBVZeroBubble", "zb-v"), ("DualPipeV", "dualpipe-v")]
)
def test_schedules_of_two_chunks_go_by_names_of_pytorch(
    words: str, schedule: str
) -> None:
    assert VOCABULARY.schedules[words.lower()] == schedule


def test_forward_before_backward_is_gpipe() -> None:
    assert priced(config__schedule="AFAB").plan.schedule == "gpipe"


def test_the_loss_is_chunked_as_said() -> None:
    assert priced(config__loss_chunks=8).spec.training.loss_chunks == 8


@pytest.mark.parametrize(
    ("changes", "degrees"),
    [
        ({"config__dp": None}, (4, 2, 2)),
        ({"config__pp": None}, (4, 2, 2)),
        ({"config__tp": None, "config__pp": None, "config__dp": 16}, (16, 1, 1)),
        ({"config__tp": None, "config__pp": None, "config__dp": None,
          "config__fsdp": "full", "config__framework": "FSDP"}, (16, 1, 1)),
    ],
)  # fmt: skip
def test_degrees_follow_from_the_others(
    changes: dict[str, Any], degrees: tuple[int, int, int]
) -> None:
    run = priced(**changes)
    assert (run.plan.dp, run.plan.tp, run.plan.pp) == degrees
    left = {name for name in ("dp", "tp", "pp") if changes.get(f"config__{name}", 1)}
    assert {f"config.{n}" for n in {"dp", "tp", "pp"} - left} <= {*run.assumed}


def test_gradients_may_be_reduced_once_a_step() -> None:
    """Unsharded sums of 16 GPUs' gradients are there until the last micro-batch."""
    flat = FSDP | {"config__fsdp": "full", "config__micro_batch": 1}
    names = {"config__framework": "PyTorch FSDP, accelerate"}
    last, each = priced(**flat | names), priced(**flat)
    syncs = [one.spec.training.gradient_sync for one in (last, each)]
    assert syncs == ["last", "each"]
    assert last.step_s < each.step_s
    held_gib = (8 * 12 * 1024**2 + 51200 * 1024) * 4 * (1 - 1 / 16) / 2**30
    assert last.peak_gib - each.peak_gib == pytest.approx(held_gib, rel=0.1)
    one = priced(**flat | names, config__global_batch=16)
    assert one.spec.training.gradient_sync == "each"
    said = priced(**flat, config__gradient_sync="last")
    assert said.step_s == last.step_s


def test_code_beside_a_framework_may_reduce_gradients_once() -> None:
    """What a run says counts, where the framework it is priced as has no such way."""
    flat = FSDP | {"config__fsdp": "full", "config__micro_batch": 1}
    titan = flat | {"config__framework": "a trainer like torchtitan"}
    once = priced(**titan, config__gradient_sync="last")
    each = priced(**titan)
    assert once.spec.training.gradient_sync == "last"
    assert once.peak_gib > each.peak_gib


def test_the_first_fsdp_of_transformers_holds_gradients() -> None:
    flat = FSDP | {"config__fsdp": "full"}
    names = {"PyTorch FSDP (Transformers)": True, "torchtune (PyTorch FSDP2)": False}
    for name, holds in names.items():
        found = priced(**flat | {"config__framework": name}).spec.training
        assert found.holds_gradients == holds


def test_fp8_weights_of_llm_q_stand_for_those_in_16_bits() -> None:
    where = {"hardware__gpu": "H100", "config__precision": "fp8"}
    where |= {"config__framework": "llm.q", "config__master_weights": "none"}
    found = priced(**where).spec.training
    assert (found.fp8_weights, found.master_weights) == ("primary", "none")


def test_fp8_weights_of_bridge_are_the_only_ones() -> None:
    where = {"hardware__gpu": "H100", "config__precision": "fp8", "date": "2025-09-01"}
    bridge = priced(**where, config__framework="Megatron-Bridge")
    megatron = priced(**where)
    assert bridge.spec.training.fp8_weights == "primary"
    assert megatron.spec.training.fp8_weights == "copies"
    said = priced(**where, config__primary_weights="fp8")
    assert said.spec.training.fp8_weights == "primary"


def test_frozen_weights_stay_in_16_bits_beside_fp8_matmuls_where_a_run_says_so() -> (
    None
):
    """They have 2 bytes a parameter then, 1 where fp8 stands for them."""
    where = {"config__precision": "fp8", "hardware__gpu": "H100-80GB-SXM"}
    usual = priced(**where, config__lora_rank=16)
    kept = priced(**where, config__lora_rank=16, config__primary_weights="bf16")
    assert usual.spec.training.fp8_weights == "primary"
    assert kept.spec.training.fp8_weights == "copies"
    assert kept.allocated_gib > usual.allocated_gib


def test_megatron_sums_gradients_of_fp16_in_16_bits() -> None:
    """Its default is fp32 beside bf16 alone: 2 bytes of each parameter less."""
    usual = priced(config__precision="fp16")
    wide = priced(config__precision="fp16", config__gradients="fp32")
    low = priced(config__precision="fp16", config__gradients="bf16")
    assert usual.peak_gib == low.peak_gib < wide.peak_gib
    bf16 = priced(config__precision="bf16")
    assert bf16.peak_gib == pytest.approx(wide.peak_gib)


def test_a_run_in_fp32_trains_all_weights_unless_it_has_adapters() -> None:
    assert priced(**FSDP, config__precision="fp32").spec.training.lora is None
    found = priced(**FSDP, config__frozen_weights="fp32").spec.training.lora
    assert found is not None
    assert found.weights == "fp32"
    with pytest.raises(Unpriced, match=r"lora.*precision fp32"):
        priced(**FSDP, config__precision="fp32", config__task="lora")
