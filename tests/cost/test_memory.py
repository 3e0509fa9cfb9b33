"""What a GPU holds beside layers, and peaks that others have published."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.loading.load import load_spec
from meshwright.planner.solve import solve
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.spec import Spec

GIB = 2**30
H, LAYERS, SEQ, VOCAB = 1024, 8, 2048, 32_000
FF = 4 * H
TOKENS_BYTES = 2 * SEQ * H
"""Bytes of one sequence's residual stream."""
LAYER = 4 * H**2 + 2 * H * FF
"""Weights of a layer's matmuls; norms have 2 H more."""


def spec(pins: dict[str, Any], framework: str = "megatron", **training: object) -> Spec:
    gpu = {
        "memory_gib": 1000,
        "memory_gb_s": 2000,
        "peak_tflops": {"fp8": 600, "bf16": 300, "fp16": 300},
    }
    link = {"name": "l", "size": 4, "gb_s": 300, "latency_us": 1}
    return Spec.model_validate(
        {
            "model": {
                "n_layers": LAYERS, "d_model": H, "n_heads": 16, "d_ff": FF,
                "vocab": VOCAB, "bias": "none", "tied_embeddings": False,
                "norm": "rmsnorm",
            },
            "framework": framework,
            "cluster": {"topology": {"gpu": gpu, "levels": [link]}},
            "training": {"seq_len": SEQ, "global_batch": 16, **training},
            "pins": {"micro_batch": 1, "recompute": "none", **pins},
        }
    )  # fmt: skip


def best(asked: Spec) -> PricedPlan:
    found = solve(asked).best
    assert found is not None
    return found


def parts(
    pins: dict[str, Any], framework: str = "megatron", **training: object
) -> list[dict[str, float]]:
    """Return the parts of every stage, in bytes."""
    stages = best(spec(pins, framework, **training)).stages
    return [{name: n * GIB for name, n in s.parts.items()} for s in stages]


DATA = {"tp": 1, "pp": 1, "dp_shard": 4}
WHOLE = {"tp": 1, "pp": 1, "dp_replicate": 4, "zero": 0}
PIPE = {"tp": 1, "pp": 4, "zero": 0, "schedule": "1f1b"}


@pytest.mark.parametrize(
    ("framework", "training", "loss"),
    [
        # The logit in 2 bytes and its softmax in 4.
        ("megatron", {}, 6),
        ("megatron", {"fused": ["norm"]}, 6),
        ("internevo", {}, 6),
        # The gradient in place of the logits.
        ("megatron", {"loss_bytes": 0}, 2),
        # 2, an fp32 copy, it less the maximum, and the exponentials.
        ("deepspeed", {}, 14),
        # 2, logarithms, their gradient, and that of the fp32 copy.
        ("fsdp", {}, 14),
        # Of these the 2 bytes are dropped, and an eighth is there at a time.
        ("torchtitan", {"loss_chunks": 1}, 12),
        ("torchtitan", {}, 12 / 8),
        # 2 and the gradient, of which nothing else is as large in a compiled loss.
        ("torchtitan", {"loss_chunks": 1, "compile": True}, 4),
        ("torchtitan", {"compile": True}, 4 / 8),
        ("fsdp", {"compile": True}, 14),
        ("fsdp", {"fused": ["norm", "loss"]}, 6),
    ],
)
def test_logits_by_how_the_loss_is_computed(
    framework: str, training: dict[str, Any], loss: float
) -> None:
    (stage,) = parts(WHOLE, framework, **training)
    read = 2 * TOKENS_BYTES
    assert stage["logits"] == pytest.approx(SEQ * VOCAB * loss + read, rel=1e-9)


UPSTREAM = 2 * SEQ * (H + FF)
"""Gradients on their way through a layer."""
READ = 2 * TOKENS_BYTES
"""What final norm and head have read."""
MATMULS = 64 * 2**20
"""Workspaces of cuBLAS."""
BUFFERS = 2 * (LAYER + 2 * H) + 2 * VOCAB * H
"""A gradient for every shape of weight, of layers and head."""


@pytest.mark.parametrize("mode", ["full", "none"])
def test_the_loss_is_over_before_a_layer_is_at_work(mode: str) -> None:
    """The larger of both counts, recomputed or not."""
    (stage,) = parts({**DATA, "zero": 1, "recompute": mode})
    logits = 6 * SEQ * VOCAB + READ
    assert logits > stage["activations"] / LAYERS + UPSTREAM
    assert stage["workspace"] == pytest.approx(BUFFERS + MATMULS, rel=1e-9)
    assert stage["logits"] == pytest.approx(logits, rel=1e-9)


def test_gradients_of_logits_outlive_a_loss_in_place() -> None:
    """They are as large; the gradient of the input of the head comes on top.

    Under sequence parallelism the head has gathered its whole input.
    """
    (stage,) = parts({**DATA, "zero": 1}, loss_bytes=0)
    assert stage["logits"] == pytest.approx(2 * SEQ * VOCAB + READ, rel=1e-9)
    expected = BUFFERS + MATMULS + TOKENS_BYTES
    assert stage["workspace"] == pytest.approx(expected, rel=1e-9)
    split = {"tp": 4, "pp": 1, "sequence_parallel": True}
    (stage,) = parts(split, loss_bytes=0)
    assert stage["logits"] == pytest.approx(SEQ * VOCAB / 2 + READ / 4, rel=1e-9)
    buffers = 2 * (LAYER / 4 + 2 * H) + 2 * VOCAB * H / 4
    streams = TOKENS_BYTES * (1 + 1 + 1 / 4)
    expected_there = buffers + MATMULS + streams
    assert stage["workspace"] == pytest.approx(expected_there, rel=1e-9)


def test_logits_are_whole_where_the_loss_is_not_parallel() -> None:
    """What is gathered of a logit and its gradient have 2 bytes each."""
    split = {"tp": 4, "pp": 1, "dp": 1, "sequence_parallel": False}
    parallel, whole = (
        parts(split, "deepspeed", loss_parallel=is_parallel)[0]["logits"] - READ
        for is_parallel in (True, False)
    )
    assert parallel == pytest.approx(14 * SEQ * VOCAB / 4, rel=1e-9)
    assert whole == pytest.approx(18 * SEQ * VOCAB, rel=1e-9)


@pytest.mark.parametrize(("compiles", "loss"), [(False, 16), (True, 10)])
def test_a_parallel_loss_writes_its_gradient_by_index(
    compiles: bool, loss: float
) -> None:
    """Of fp32: logarithms, zeros, exponentials, sum; compiled, zeros and the sum."""
    split = {"tp": 4, "pp": 1, "dp": 1, "sequence_parallel": True}
    training = {"compile": compiles, "loss_chunks": 1}
    (stage,) = parts(split, "torchtitan", **training)
    assert stage["logits"] == pytest.approx(loss * SEQ * VOCAB / 4 + READ / 4, rel=1e-9)


def test_pytorchs_pipelines_shard_after_the_last_micro_batch() -> None:
    """Gradients of 4 bytes and cast weights of 2 are whole, at every stage of ZeRO."""
    for zero in (2, 3):
        pins = {"tp": 1, "pp": 2, "dp_shard": 2, "zero": zero, "layers": [4, 4]}
        stage = parts({**pins, "schedule": "1f1b", "vpp": 1}, "torchtitan")[0]
        numbers = 4 * (LAYER + 2 * H) + VOCAB * H
        assert stage["gradients"] == pytest.approx(4 * numbers, rel=1e-9)
        assert stage["weights"] == pytest.approx((4 / 2 + 2) * numbers, rel=1e-9)


@pytest.mark.parametrize(
    ("framework", "ends"), [("fsdp", 2), ("torchtitan", 0), ("deepspeed", 0)]
)
def test_fsdp_keeps_ends_whole_that_it_does_not_reshard(
    framework: str, ends: int
) -> None:
    """A larger vocabulary takes as much more beside its shards, in 16 bits."""
    held = []
    for vocab in (VOCAB, 2 * VOCAB):
        asked = spec({**DATA, "zero": 3}, framework, loss_chunks=1000)
        model = asked.model.model_copy(update={"vocab": vocab})
        stage = best(asked.model_copy(update={"model": model})).stages[0]
        held.append(stage.parts["workspace"] * GIB)
    assert held[1] - held[0] == pytest.approx(ends * 2 * VOCAB * H, rel=0.05, abs=1e6)


def test_one_micro_batch_has_gradients_where_activations_were() -> None:
    """In code without buffers, and where logits were, which here are more than them."""
    pins = {"tp": 4, "pp": 1, "recompute": "full", "sequence_parallel": False}
    pins |= {"recompute_layers": "all", "offload": "none"}
    of_layers = LAYERS * 2 * (LAYER / 4 + 2 * H)
    for framework, spared in (("generic", of_layers), ("deepspeed", 0)):
        once, twice = (
            parts(pins, framework, global_batch=batch)[0]["gradients"]
            for batch in (1, 2)
        )
        assert twice - once == pytest.approx(spared)


def test_an_update_tensor_by_tensor_follows_the_passes() -> None:
    """The roots of second moments, 4 bytes a weight, count beyond what was there."""
    params = LAYERS * (LAYER + 2 * H) + 2 * VOCAB * H + H
    pins = {"tp": 1, "pp": 1, "dp_shard": 4, "zero": 3, "recompute": "full"}
    for length, more in ((SEQ, False), (SEQ // 16, True)):
        one, other = (
            parts(pins, "fsdp", foreach=foreach, loss_chunks=64, seq_len=length)[0]
            for foreach in (False, True)
        )
        added = other["optimizer"] - one["optimizer"]
        assert 0 <= added < 4 * params / 4
        assert (added > 0) == more


def test_an_update_tensor_by_tensor_moves_more() -> None:
    """In pure bf16 one kernel moves 14 bytes a weight, eight operations 40."""
    pins = {"tp": 1, "pp": 1, "dp_shard": 4, "zero": 3}
    pure = {"master_weights": "none", "gradients": "bf16", "moments": "bf16"}
    one, other = (
        best(spec(pins, "fsdp", foreach=foreach, **pure)).time_parts["optimizer"]
        for foreach in (False, True)
    )
    assert other / one == pytest.approx(40 / 14)


def test_deepspeed_casts_a_group_of_gradients_at_a_time() -> None:
    """Of ZeRO-3 with 1e9 weights on a GPU: 6 bytes of each of them, and not of all."""
    model = {"d_ff": 2**19}
    pins = {"tp": 1, "pp": 1, "dp_shard": 4, "recompute": "full"}
    third, second = (
        best(
            with_model(spec({**pins, "zero": zero}, "deepspeed", seq_len=128), model)
        ).stages[0]
        for zero in (3, 2)
    )
    params = LAYERS * (4 * H**2 + 2 * H * 2**19)
    assert params / 4 > 1e9
    spared = (second.parts["optimizer"] - third.parts["optimizer"]) * GIB
    assert spared >= 6 * (params / 4 - 1e9)


def test_results_of_recomputed_layers_may_stay_until_all_are_done() -> None:
    """A residual stream for every layer, beside the one at work and not the loss."""
    pins = {"tp": 1, "pp": 1, "dp_shard": 4, "zero": 3, "recompute": "full"}
    for chunks, more in ((512, LAYERS * TOKENS_BYTES), (1, 0)):
        freed, kept = (
            parts(pins, "fsdp", lora={"keeps_results": stays}, loss_chunks=chunks)[0]
            for stays in (False, True)
        )
        assert total(kept) - total(freed) == pytest.approx(more)


def total(held: dict[str, float]) -> float:
    return sum(held.values())


def with_model(asked: Spec, changed: dict[str, int]) -> Spec:
    model = asked.model.model_copy(update=changed)
    return asked.model_copy(update={"model": model})


def test_swapping_tokens_for_heads_saves_attention_twice() -> None:
    """Once by heads, as the kernel wrote it, and once by tokens for the last matmul."""
    pins = {"tp": 1, "pp": 1, "cp": 2, "dp": 2, "zero": 1}
    ring, swapped = (
        parts(pins, context_exchange=how)[0]["activations"]
        for how in ("ring", "ulysses")
    )
    assert swapped - ring == pytest.approx(LAYERS * TOKENS_BYTES / 2, rel=1e-9)


def test_deepspeed_keeps_what_stages_have_sent() -> None:
    """A residual stream per micro-batch in flight: 4, 3, 2 and 1 of them."""
    even = {**PIPE, "layers": [2] * 4, "vpp": 1}
    kept, freed = (parts(even, name, fused=["norm", "activation"])
                   for name in ("deepspeed", "megatron"))  # fmt: skip
    for stage, (one, other) in enumerate(zip(kept, freed, strict=True)):
        more = one["activations"] - other["activations"]
        assert more == pytest.approx((4 - stage) * TOKENS_BYTES, rel=1e-6)


def test_megatron_has_a_gradient_for_every_shape_of_weight() -> None:
    """2 bytes a weight, beside those of the step; others add up what they compute."""
    for framework, buffers in (("megatron", BUFFERS), ("deepspeed", 0)):
        stage = parts({**PIPE, "layers": [2] * 4, "vpp": 1}, framework)[1]
        layer = buffers - 2 * VOCAB * H if buffers else 0
        expected = UPSTREAM + MATMULS + layer
        assert stage["workspace"] == pytest.approx(expected, rel=1e-9)


def test_experts_share_one_gradient_buffer() -> None:
    """4 experts of a layer have weights of one shape; shared ones may have it too."""
    base = spec({**PIPE, "layers": [2] * 4, "vpp": 1, "ep": 1})
    stages = []
    for shared in (0, FF, 2 * FF):
        moe = {"n_experts": 4, "top_k": 1, "d_ff": FF, "shared_d_ff": shared}
        model = base.model.model_validate({**base.model.model_dump(), "moe": moe})
        stages.append(best(base.model_copy(update={"model": model})).stages[1])
    one, alike, more = (stage.parts["workspace"] * GIB for stage in stages)
    weights = 4 * H**2 + 2 * H * FF + 4 * H + 2 * H
    assert one == pytest.approx(UPSTREAM + MATMULS + 2 * weights, rel=1e-9)
    assert alike == pytest.approx(one, rel=1e-9)
    assert more - one == pytest.approx(2 * 4 * H * FF, rel=1e-9)


def leading(
    ff: int, recompute: str, again: list[int], framework: str = "megatron"
) -> list[float]:
    """Return the bytes of activations of stages of 2 layers, of which 2 lead."""
    pins = {"layers": [2] * 4, "ep": 1, "recompute": recompute}
    base = spec({**PIPE, **pins, "recompute_layers": again, "vpp": 1}, framework)
    moe = {"n_experts": 4, "top_k": 2, "d_ff": FF, "first_dense_layers": 2}
    changed = {**base.model.model_dump(), "d_ff": ff, "moe": moe}
    model = base.model.model_validate(changed)
    stages = best(base.model_copy(update={"model": model})).stages
    return [stage.parts["activations"] * GIB for stage in stages]


def test_leading_layers_keep_their_inputs_though_experts_save_more() -> None:
    """Of 4, 3, 2 and 1 micro-batches in flight, 2 layers each, all recomputed."""
    expected = [in_flight * 2 * TOKENS_BYTES for in_flight in (4, 3, 2, 1)]
    assert leading(H, "full", [2] * 4) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("ff", [H, FF, 16 * FF])
def test_leading_layers_never_hold_less_than_they_do(ff: int) -> None:
    """Each of the first stage's 2, of 4 micro-batches, saves all or its input."""
    saved = leading(ff, "none", [0] * 4, "generic")[0] / 2
    kept = 4 * TOKENS_BYTES
    for again in (1, 2):
        told = leading(ff, "full", [again, 2, 2, 2], "generic")[0]
        assert told >= ((2 - again) * saved + again * kept) * (1 - 1e-9)


def test_zero_3_gathers_a_layer_and_some_of_the_next() -> None:
    """FSDP the next layer, DeepSpeed 50 million parameters: both hold 12.6 here."""
    wide = {"n_layers": 2, "d_model": 4096, "n_heads": 32, "d_ff": 16384, "vocab": 512}
    layer = 4 * 4096**2 + 2 * 4096 * 16384
    assert layer > 50e6
    ahead = {"deepspeed": 50e6, "fsdp": layer}
    for framework, most in ahead.items():
        base = spec({**DATA, "zero": 3}, framework)
        model = base.model.model_validate({**wide, "bias": "none", "norm": "rmsnorm"})
        (stage,) = best(base.model_copy(update={"model": model})).stages
        weights = layer + 2 * 4096
        gathered = 2 * (weights + min(most + (2 * 4096) * (framework == "fsdp"), 1e18))
        # FSDP has those of one layer beside what it reduces of another, in fp32.
        gradients = (2 if framework == "deepspeed" else 2 + 4) * weights
        upstream = 2 * SEQ * (4096 + 16384)
        # Embedding, which is the head too, and the final norm, in FSDP's root.
        root = 2 * (512 * 4096 + 4096) * (framework == "fsdp")
        # The loss of a small vocabulary takes less.
        working = upstream - stage.parts["logits"] * GIB
        expected = gathered + gradients + working + MATMULS + root
        assert stage.parts["workspace"] * GIB == pytest.approx(expected, rel=1e-6)


def test_what_is_not_pytorchs_depends_on_the_framework() -> None:
    """A context, and a communicator for each of an FSDP's one or two axes, or eight."""
    for framework, gib in (("megatron", 3.0), ("deepspeed", 3.0), ("fsdp", 1.5)):
        (stage,) = parts(WHOLE, framework)
        assert stage["overhead"] == gib * GIB


def nvidia(model: str, gpus: int, pins: dict[str, int], **training: object) -> float:
    """Return the GiB of state on a GPU of a NeMo run on H100."""
    data: dict[str, Any] = load_spec("llama3-8b-2xh100-nvlink").model_dump()
    asked = {
        "model": load_model(model),
        "framework": "megatron",
        "cluster": load_cluster("dgx-h100", gpus // 8),
        "training": {"gradients": "bf16", **training},
        "limits": {"memory_gib": 1000},
        "pins": {"pp": 1, "zero": 1, "micro_batch": 1, "recompute": "none", **pins},
    }
    (stage,) = best(Spec.model_validate(data | asked)).stages
    return sum(stage.parts[name] for name in ("weights", "gradients", "optimizer"))


def load_model(name: str) -> dict[str, Any]:
    from tests.golden.test_published_numbers import bundled

    return bundled("specs/models", name)


def load_cluster(name: str, count: int) -> dict[str, Any]:
    from tests.golden.test_published_numbers import bundled

    topology = bundled("topologies", name)
    topology["gpu"] = bundled("topologies/gpus", topology["gpu"])
    return {"topology": topology, "count": count}


def test_nemo_holds_what_it_logs_after_a_step() -> None:
    """`memory_allocated` in NVIDIA's DGX Cloud benchmarking recipes, v25.04, for H100.

    Nemotron-4 15B, tp 2, 32 shards: 7.28 Gi parameters x (2 + 2 + 12 / 32) = 31.8 of
    32.10. Llama 3 8B, 4 shards of the data x 2 of the sequence: 7.48 x 5.5 = 41.1 of
    41.23.
    """
    got = nvidia(
        "nemotron-4-15b", 64, {"tp": 2, "dp_shard": 32}, seq_len=4096, global_batch=256
    )
    assert got == pytest.approx(32.10, rel=0.01)
    got = nvidia(
        "llama3-8b", 8, {"tp": 1, "cp": 2, "dp_shard": 4},
        seq_len=8192, global_batch=128,
    )  # fmt: skip
    assert got == pytest.approx(41.23, rel=0.01)


LLAMA_70B = {
    "n_layers": 12, "d_model": 8192, "n_heads": 64, "n_kv_heads": 8, "d_ff": 28672,
}  # fmt: skip
LLAMA_405B = {
    "n_layers": 4, "d_model": 16384, "n_heads": 128, "n_kv_heads": 16, "d_ff": 53248,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "pins", "gib"),
    [
        (LLAMA_70B, {"tp": 8, "pp": 1, "dp": 1}, 28.29),
        (LLAMA_70B, {"tp": 4, "pp": 1, "dp": 2}, 39.07),
        (LLAMA_70B, {"tp": 1, "pp": 2, "dp": 4}, 66.55),
        (LLAMA_405B, {"tp": 8, "pp": 1, "dp": 1}, 38.57),
        (LLAMA_405B, {"tp": 2, "pp": 1, "dp": 4}, 81.59),
        (LLAMA_405B, {"tp": 1, "pp": 2, "dp": 4}, 87.08),
    ],
)
def test_peaks_of_megatron_on_b200(
    model: dict[str, int], pins: dict[str, int], gib: float
) -> None:
    """PyTorch's largest allocation in SimuMax's real runs, 4 micro-batches.

    https://github.com/MooreThreads/SimuMax docs/b200/b200_release_v1.2_summary.md:
    Megatron-LM 0.14, Transformer Engine 2.11, sequences of 4,096, nothing recomputed.
    """
    cluster = load_cluster("dgx-h100", 1)
    zero = 1 if pins["dp"] > 1 else 0
    asked = {
        "model": {
            **model, "vocab": 128256, "gated_mlp": True, "norm": "rmsnorm",
            "bias": "none", "tied_embeddings": False,
        },
        "cluster": cluster,
        # Its runs fuse the loss as Transformer Engine did then.
        "training": {
            "seq_len": 4096, "global_batch": 4 * pins["dp"], "loss_bytes": 0,
        },
        "limits": {"memory_gib": 1000},
        "pins": {
            "micro_batch": 1, "zero": zero, "dp_shard": pins["dp"], "vpp": 1,
            "sequence_parallel": pins["tp"] > 1, "recompute": "none",
            "layers": [model["n_layers"] // pins["pp"]] * pins["pp"], **pins,
        },
    }  # fmt: skip
    stages = best(Spec.model_validate(asked)).stages
    allocated = max(s.total_gib - s.parts["overhead"] for s in stages)
    assert allocated == pytest.approx(gib, rel=0.002)


@pytest.mark.parametrize("framework", ["megatron", "fsdp"])
def test_one_gpu_has_no_communicators(framework: str) -> None:
    pins = {"tp": 1, "pp": 1, "dp_replicate": 1, "zero": 0}
    asked = spec(pins, framework)
    level = asked.cluster.topology.levels[0].model_copy(update={"size": 1})
    topology = asked.cluster.topology.model_copy(update={"levels": (level,)})
    cluster = asked.cluster.model_copy(update={"topology": topology})
    alone = best(asked.model_copy(update={"cluster": cluster}))
    assert alone.stages[0].parts["overhead"] == pytest.approx(1.1)
    assert parts(WHOLE, framework)[0]["overhead"] > 1.4 * GIB


@pytest.mark.parametrize(
    ("pins", "share"),
    [
        ({**WHOLE, "recompute": "none"}, 0.0),
        ({**WHOLE, "recompute": "full"}, 0.1),
        ({**DATA, "zero": 2, "recompute": "full"}, 0.1),
        ({**DATA, "zero": 3, "recompute": "full"}, 0.2),
        ({**PIPE, "recompute": "full"}, 0.1),
    ],
)
def test_recomputed_layers_leave_holes_unless_segments_expand(
    pins: dict[str, Any], share: float
) -> None:
    """They are a share of what comes and goes; tensors are as large as without."""
    pins |= {} if pins["recompute"] == "none" else {"recompute_layers": "all"}
    for without, stage in zip(
        parts(pins, "generic"),
        parts(pins, "generic", expandable_segments=False),
        strict=True,
    ):
        passing = [without[n] for n in ("activations", "workspace", "logits")]
        lost = stage.pop("fragments", 0.0)
        assert lost == pytest.approx(share * sum(passing), rel=1e-9)
        assert stage == pytest.approx(without, rel=1e-9)


def test_matmuls_in_fp8_keep_8_bits_of_their_inputs() -> None:
    """Of both norms, attention and MLP, where code is nothing but the mathematics."""
    saved = {
        precision: parts(WHOLE, "generic", precision=precision)[0]
        for precision in ("bf16", "fp8")
    }
    spared = saved["bf16"]["activations"] - saved["fp8"]["activations"]
    # Attention keeps its result in 16 bits too.
    assert spared == pytest.approx(LAYERS * SEQ * (2 * H + FF - H), rel=1e-9)
    assert saved["fp8"]["weights"] == saved["bf16"]["weights"]


def test_ranks_that_share_nothing_but_data_have_few_communicators() -> None:
    for pins, gib in ((WHOLE, 1.5), (PIPE, 3.0), ({"tp": 4, "pp": 1}, 3.0)):
        assert parts(pins, "generic")[0]["overhead"] == gib * GIB
