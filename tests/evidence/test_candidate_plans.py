"""From published layouts to plans: axes, uneven stages, and what is left unsaid."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.cost.state import loss_peak
from meshwright.evidence.published_terms import Unpriced
from meshwright.evidence.timed_runs import class_of
from meshwright.spec.training import Training
from tests.evidence.test_runs import priced

EXPERTS = {"n_experts": 8, "top_k": 2, "expert_d_ff": 512}


def stages(**changes: Any) -> tuple[int, ...]:
    return tuple(stage.layers for stage in priced(**changes).plan.stages)


def test_context_parallelism_stands_beside_data_parallelism() -> None:
    plan = priced(config__cp=2, config__dp=2, config__attention="flash").plan
    assert (plan.cp, plan.dp_shard, plan.world_size) == (2, 2, 16)


def test_virtual_stages_are_chunks() -> None:
    assert priced(config__vp=2).plan.vpp == 2
    assert priced(config__schedule="interleaved-vpp4").plan.vpp == 4


@pytest.mark.parametrize(
    ("layers", "pp", "vp", "expected"),
    [
        # 8 + 2 ends fill 2 stages of 5; 126 + 2 fill 8 x 8 chunks of 2
        (8, 2, 5, (4, 4)),
        (126, 8, 8, (15, 16, 16, 16, 16, 16, 16, 15)),
        # 61 + 2 fill nothing: 15 chunks of 4, and one of 1 at the end
        (61, 4, 4, (16, 16, 16, 13)),
        # no interleaving: as even as can be
        (61, 4, None, (16, 15, 15, 15)),
    ],
)
def test_uneven_stages(
    layers: int, pp: int, vp: int | None, expected: tuple[int, ...]
) -> None:
    degrees = {"config__pp": pp, "config__tp": 1, "config__dp": 16 // pp}
    found = stages(model__n_layers=layers, config__vp=vp, **degrees)
    assert found == expected
    assert sum(found) == layers


def test_experts_are_split_over_tensor_ranks_too_where_nemo_ran_them() -> None:
    split = {"model__moe": EXPERTS, "config__ep": 4, "config__sp": True}
    halves = priced(**split, config__framework="NeMo")
    assert (halves.plan.ep, halves.plan.etp) == (4, 2)
    assert priced(**split, config__framework="Megatron-Bridge").plan.etp == 1
    wide = {**split, "config__tp": 4, "config__dp": 4, "config__pp": 1}
    quarters = priced(**wide, config__framework="NeMo")
    assert (quarters.plan.ep, quarters.plan.etp) == (4, 4)
    assert quarters.assumed["config.etp"] == 4
    assert priced(**wide, config__framework="NeMo", config__etp=1).plan.etp == 1
    with pytest.raises(Unpriced, match=r"config\.etp: 2 is not modelled beside tp 4"):
        priced(**wide, config__framework="NeMo", config__etp=2)


def test_every_other_block_is_half_of_the_layers_recomputed_in_full() -> None:
    plan = priced(config__recompute="selective (every other block)").plan
    assert plan.recompute == "full"
    assert [stage.recompute_layers for stage in plan.stages] == [2, 2]


def test_recomputation_by_operations_is_of_every_layer() -> None:
    names = {"config__framework": "TorchTitan", "date": "2025-03-10"}
    plan = priced(config__recompute="selective (per-op)", **names).plan
    assert (plan.recompute, plan.recompute_modules) == ("selective", "")
    assert plan.recomputes_all_layers


@pytest.mark.parametrize(
    ("framework", "date", "expected"),
    [
        ("Megatron-LM", "2022-05-10", "plain"),
        ("Megatron-LM", "2024-05-10", "flash"),
        ("Megatron-LM", "", "flash"),
        ("Megatron-DeepSpeed", "2024-05-10", "plain"),
        ("flash-attention training code", "2022-05-10", "flash1"),
    ],
)
def test_attention_is_plain_until_fused_kernels_were_common(
    framework: str, date: str, expected: str
) -> None:
    run = priced(config__framework=framework, date=date)
    assert run.assumed["config.attention"] == expected


def test_the_least_recomputation_that_fits_is_assumed() -> None:
    """Of plain scores, 24 layers x 5 x 8 heads x 8,192^2 x 2 bytes are 60 GiB beside
    20 GiB of state; without them 16 bytes x 16,384 tokens x 4,096 x 24 are 24, and
    four times that for four times as many sequences.
    """
    small = priced(config__recompute=None)
    assert (small.plan.recompute, small.assumed["config.recompute"]) == ("none", "none")
    shape = {"n_layers": 24, "d_model": 4096, "n_heads": 32, "d_ff": 16384}
    model = {**shape, "vocab": 51200, "seq_len": 8192, "tied": True}
    degrees = {"config__tp": 4, "config__dp": 4, "config__pp": 1}
    large = priced(model=model, config__recompute=None, **degrees)
    assert large.assumed["config.recompute"] == "selective"
    huge = priced(model=model, config__recompute=None, config__micro_batch=8, **degrees)
    assert huge.assumed["config.recompute"] == "full"


def test_as_few_layers_as_fit_are_recomputed() -> None:
    """With a flash kernel and no dropout a layer saves 8 bytes, and 24 / 4 GPUs, per
    token and width: x 139,264 tokens x 4,096 = 7.4 GiB, as much as is there again where
    it is recomputed. Beside some 15 GiB of state and logits 15 of them do not fit in
    79.2, nor what 15 keep selectively, 66 GiB, but 7 and the inputs of 8 do, 60 GiB,
    where the allocator leaves no holes.
    """
    shape = {"n_layers": 15, "d_model": 4096, "n_heads": 32, "d_ff": 16384}
    run = priced(
        model={**shape, "vocab": 32000, "seq_len": 8192, "tied": True},
        date="2024-05-10",
        config__recompute=None,
        config__micro_batch=17,
        config__global_batch=272,
        config__tp=4,
        config__dp=4,
        config__pp=1,
        config__sp=False,
        config__expandable_segments=True,
    )
    assert run.assumed["config.recompute"] == "full, 1 in 2"
    assert [stage.recompute_layers for stage in run.plan.stages] == [8]


def test_xla_has_kernels_of_its_own() -> None:
    jax = priced(config__framework="MaxText (JAX/XLA FSDP)", config__recompute=None)
    torch = priced(config__framework="torchtitan", config__recompute=None)
    assert jax.spec.framework == torch.spec.framework == "torchtitan"
    assert [class_of(run).kernels for run in (jax, torch)] == ["xla", "fsdp"]


def test_scans_over_layers_recompute_all_of_them() -> None:
    jax = priced(config__recompute=None, config__framework="MaxText (JAX)")
    assert jax.plan.recompute == "full"


def test_micro_batches_fill_the_gpu_where_there_is_no_pipeline() -> None:
    """Of the 64 / 16 sequences of a rank all four fit; a pipeline takes one."""
    flat = priced(config__micro_batch=None, config__pp=1, config__tp=1, config__dp=16)
    assert (flat.plan.micro_batch, flat.plan.microbatches) == (4, 1)
    deep = priced(config__micro_batch=None)
    assert deep.plan.micro_batch == deep.assumed["config.micro_batch"] == 1
    # Whoever leaves out the micro-batch leaves out the chunks: of a layer each.
    assert deep.plan.vpp == deep.assumed["config.vp"] == 4


def test_a_batch_left_out_is_one_micro_batch_per_rank() -> None:
    degrees = {"config__pp": 1, "config__tp": 1, "config__dp": 16}
    run = priced(config__global_batch=None, **degrees)
    assert run.assumed["config.global_batch"] == run.spec.training.global_batch == 32
    assert run.run.config.global_batch == 32


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"config__fsdp": "hybrid"}, (8, 2)),
        ({"config__fsdp": "hybrid (shard group 4)"}, (4, 4)),
        ({"config__fsdp": "FSDP+DP (group not stated)"}, (8, 2)),
        ({"config__fsdp": "full"}, (16, 1)),
        ({"config__optimizer_shard_group": 4}, (4, 4)),
    ],
)
def test_shard_groups(words: dict[str, str], expected: tuple[int, int]) -> None:
    degrees = {"config__pp": 1, "config__tp": 1, "config__dp": 16}
    fsdp = {"config__framework": "FSDP", "config__zero_stage": 3}
    plan = priced(**degrees, **fsdp, **words).plan
    assert (plan.dp_shard, plan.dp_replicate) == expected


@pytest.mark.parametrize(("stage", "zero"), [(3, 3), (2, 0), (1, 0), (0, 0)])
def test_one_gpu_keeps_what_zero_3_does_to_a_layer(stage: int, zero: int) -> None:
    """It gathers weights in the precision of matmuls, and calls its hooks."""
    degrees = {"config__pp": 1, "config__tp": 1, "config__dp": 1}
    words = {"config__framework": "DeepSpeed", "config__zero_stage": stage}
    run = priced(**degrees, **words, hardware__n_gpus=1)
    assert run.plan.zero == zero


def test_shard_groups_grow_until_the_state_fits() -> None:
    """18.4 billion parameters x 16 bytes / 8 = 34 GiB fit an 80 GB GPU, not a 40 GB
    one beside gathered weights, gradients and activations."""
    shape = {"n_layers": 40, "d_model": 6144, "n_heads": 48, "d_ff": 24576}
    model = {**shape, "vocab": 51200, "seq_len": 2048, "tied": True}
    words = {"config__framework": "FSDP", "config__zero_stage": 3, "config__pp": 1,
             "config__fsdp": "hybrid", "config__tp": 1, "config__dp": 16,
             "config__micro_batch": 1}  # fmt: skip
    large = priced(model=model, **words)
    small = priced(model=model, **words, hardware__gpu="A100-40GB-SXM")
    assert (large.plan.dp_shard, small.plan.dp_shard) == (8, 16)


@pytest.mark.parametrize(
    ("changes", "tuned"),
    [
        ({"config__tuned": "vendor"}, "vendor"),
        ({"config__framework": "NeMo 24.07"}, "vendor"),
        ({"source": "https://github.com/NVIDIA/Megatron-LM"}, "vendor"),
        ({"source": "https://github.com/someone/megatron"}, "user"),
        ({"config__framework": "NeMo", "config__tuned": "user"}, "user"),
    ],
)
def test_who_tuned_a_run_is_said_or_taken_from_its_source(
    changes: dict[str, Any], tuned: str
) -> None:
    run = priced(**changes)
    assert run.spec.training.tuned == tuned
    assert ("config.tuned" in run.assumed) == ("config__tuned" not in changes)


@pytest.mark.parametrize(
    ("fields", "kernel", "operations"),
    [
        ({"config__framework": "Transformers 4.45.2"}, 6, 10),
        ({"config__framework": "Transformers 4.48.1, FSDP"}, 8, 12),
        ({"config__framework": "Transformers 4.49.0"}, 4, 10),
        ({"config__framework": "Transformers", "date": "2024-06"}, 6, 10),
        ({"config__framework": "Transformers", "date": "2024-12"}, 8, 12),
        ({"config__framework": "Transformers", "date": "2026-01"}, 4, 10),
    ],
)
def test_transformers_copies_logits_as_its_version_does(
    fields: dict[str, str], kernel: float, operations: float
) -> None:
    """Beside 16 bits: fp32, a shifted copy up to 4.48, logarithms and gradients."""
    for fused, expected in ((["loss"], kernel), (["norm"], operations)):
        run = priced(**fields, config__fused=fused)
        assert run.spec.training.loss_bytes == expected


@pytest.mark.parametrize(
    ("fields", "is_foreach"),
    [
        ({"config__framework": "Transformers"}, True),
        ({"config__framework": "Transformers", "date": "2026-01"}, False),
        (
            {"config__framework": "Transformers", "config__optimizer": "AdamW fused"},
            False,
        ),
        (
            {"config__framework": "Transformers", "config__optimizer": "AdamW 8-bit"},
            False,
        ),
        ({"config__framework": "DeepSpeed (Transformers)"}, False),
        ({"config__framework": "torchtitan"}, False),
    ],
)
def test_trainers_updated_tensor_by_tensor(
    fields: dict[str, str], is_foreach: bool
) -> None:
    run = priced(**{"date": "2024-06", **fields})
    assert run.spec.training.foreach == is_foreach


def test_memory_that_is_reserved_has_what_is_not_there_at_the_peak() -> None:
    """Logits that are cast are there in blocks of two sizes, which serve once."""
    fields = {"config__micro_batch": 1, "measured__peak_memory_gb": 40.0}
    cast = priced(config__framework="Transformers", **fields)
    plain = priced(config__framework="PyTorch", **fields)
    assert cast.beside_gib > plain.beside_gib
    assert cast.reserved_gib > cast.allocated_gib


def test_the_loss_is_that_of_its_time() -> None:
    def training(**fields: Any) -> Training:
        return priced(**fields).spec.training

    engine = {"config__framework": "Megatron-LM 0.14 + TE 2.11"}
    assert training(**engine).loss_bytes == 0
    assert training(config__framework="Megatron-LM + TE 2.18").loss_bytes is None
    assert training(**engine, config__loss_bytes=4).loss_bytes == 4
    alone = {"config__framework": "Transformers", "config__fused": ["norm", "loss"]}
    liger = "logits never whole (Liger)"
    assert training(**alone, config__loss_kernel=liger).loss_bytes is None
    titan = {"config__framework": "torchtitan"}
    assert training(**titan, date="2025-03").loss_chunks == 1
    assert training(**titan, date="2026-06-01").loss_chunks is None


@pytest.mark.parametrize(
    ("code", "date", "more", "beside"),
    [
        # The logarithms and two gradients in fp32, less the logit.
        ("torchtitan", "2025-03", {"compile": True, "tp": 1, "dp": 8}, (10, 10)),
        ("torchtitan", "2025-03", {"compile": True, "tp": 2, "dp": 4}, (14, 14)),
        ("torchtitan", "2025-03", {"compile": True, "loss_bytes": 5}, (5, 5)),
        ("torchtitan", "2025-03", {"compile": True, "fused": ["loss"]}, (4, 4)),
        # The gradient, since the loss is compiled too.
        ("torchtitan", "2025-08", {"compile": True}, (2, 8)),
        ("torchtitan", "2025-08", {"compile": False}, (10, 14)),
        ("torchtitan", "2025-08", {}, (10, 14)),
        # MaxText is compiled whole; its loss is not torchtitan's.
        ("MaxText", "2025-08", {"tp": 1, "dp": 8}, (10, 10)),
    ],
)
def test_the_loss_of_torchtitan_is_compiled_since_april_2025(
    code: str, date: str, more: dict[str, Any], beside: tuple[float, float]
) -> None:
    fields = {f"config__{name}": value for name, value in more.items()}
    found = priced(config__framework=code, date=date, **fields)
    assert loss_peak(found.spec) == beside


def test_context_parallelism_exchanges_as_published() -> None:
    swapped = priced(config__cp=2, config__dp=2, config__cp_comm_type="a2a")
    assert swapped.spec.training.context_exchange == "ulysses"
    with pytest.raises(Unpriced, match=r"^config.cp_comm_type: a2a\+p2p is not"):
        priced(config__cp=2, config__dp=2, config__cp_comm_type="a2a+p2p")


@pytest.mark.parametrize(
    ("said", "attention"),
    [
        ("unfused", "plain"),
        ("eager", "plain"),
        ("flex", "flash"),
        ("SDPA", "flash"),
        ("SDPA, with a mask", "efficient"),
        ("fused", "cudnn"),
    ],
)
def test_attention_is_what_its_words_say(said: str, attention: str) -> None:
    run = priced(config__attention=said, date="2025-06")
    assert run.spec.training.attention == attention


def test_modules_of_transformer_engine_are_kernels_under_any_code_base() -> None:
    engine = priced(config__framework="PyTorch FSDP2 (Transformer Engine)")
    fused = engine.spec.training.fused
    assert fused is not None
    assert {"norm", "activation", "rope"} <= {*fused}


def test_mlps_are_in_parts_where_a_run_says_so() -> None:
    assert priced(config__mlp_chunks=8).spec.training.mlp_chunks == 8
    assert priced().spec.training.mlp_chunks == 1
