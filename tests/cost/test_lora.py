"""LoRA: published numbers of adapters and bits, and what freezing weights must save."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cost.activations import layer_input_bytes, saved_bytes
from meshwright.cost.compute import kernels
from meshwright.cost.job import Efficiency, Job, make_job
from meshwright.cost.price import Prices, price
from meshwright.cost.state import NF4_BYTES, end_state, layer_state
from meshwright.cost.whole_model import (
    checkpoint_size,
    job_flops,
    state_size,
    total_params,
    trained_params,
)
from meshwright.planner.rows import build_lattice
from meshwright.plans.columns import total
from meshwright.plans.skeletons import Shards
from meshwright.spec.plan_fields import NONE
from meshwright.spec.spec import Spec
from tests.helpers.plans import best_of

NODE = "dgx-h100"
_ONE = np.array([1])
ONE = Shards(_ONE, _ONE, _ONE, _ONE, _ONE, np.array([False]))


def spec_of(lora: dict[str, Any] | None, **fields: Any) -> Spec:
    training = {"seq_len": 2048, "global_batch": 16, **fields.pop("training", {})}
    if lora is not None:
        training["lora"] = lora
    spec = {"model": "llama3-8b", "cluster": {"topology": NODE}, "training": training}
    return mw.load(spec | fields, Spec)


@pytest.mark.parametrize(
    ("model", "lora", "published"),
    [
        # Alpaca-LoRA's `print_trainable_parameters`: r 8 on q_proj and v_proj.
        ("llama2-7b", {"rank": 8, "targets": ["q_proj", "v_proj"]}, 4_194_304),
        # Unsloth's notebooks: r 16 on all seven matrices.
        ("llama2-7b", {"rank": 16}, 39_976_960),
        ("llama3-8b", {"rank": 16}, 41_943_040),
    ],
)
def test_trained_parameters_are_those_that_peft_prints(
    model: str, lora: dict[str, Any], published: int
) -> None:
    assert trained_params(spec_of(lora, model=model)) == published


def test_a_weight_in_nf4_has_the_bits_of_the_paper() -> None:
    # Dettmers et al. 2023, section 3: 0.127 bits of constants instead of 0.5.
    assert pytest.approx(4 + 0.127, abs=5e-4) == 8 * NF4_BYTES


def test_flops_are_two_thirds_of_training_beside_adapters_and_attention() -> None:
    """70,000 tokens of attention aside, 4 FLOPs per weight instead of 6."""
    full, small = job_flops(spec_of(None)), job_flops(spec_of({"rank": 1}))
    tokens = 2048 * 16
    table = 128_256 * 4096  # the look-up of the embedding is no matmul
    vectors = 65 * 4096  # and norms are none
    weights = total_params(spec_of(None).model) - table - vectors
    adapters = 41_943_040 / 16
    assert full - small == pytest.approx((2 * weights - 6 * adapters) * tokens)


def test_a_checkpoint_has_adapters_alone() -> None:
    assert checkpoint_size(spec_of({})) == 41_943_040 * (2 + 12)


def test_state_is_that_of_adapters_beside_frozen_weights() -> None:
    """Weights of adapters, their gradients in fp32 and AdamW's 12 bytes; 2 a weight."""
    frozen = 2 * total_params(spec_of({}).model)
    assert state_size(spec_of({})) == 41_943_040 * (2 + 4 + 12) + frozen


def test_a_frozen_weight_has_neither_gradient_nor_optimizer() -> None:
    state = layer_state(spec_of({"weights": "int8"}))
    assert (state.weights, state.gathered) == (1, 1)
    assert (state.total, state.updated, state.reduced, state.renewed) == (1, 0, 0, 0)


@pytest.mark.parametrize("framework", ["megatron", "fsdp", "deepspeed"])
def test_frameworks_that_have_lora_find_a_plan(framework: str) -> None:
    assert best_of(spec_of({}, framework=framework)) is not None


@pytest.mark.parametrize(
    ("framework", "weights"),
    [("torchtitan", "bf16"), ("internevo", "bf16"), ("megatron", "nf4")],
)
def test_frameworks_without_it_say_so(framework: str, weights: str) -> None:
    spec = spec_of({"weights": weights}, framework=framework)
    broken = mw.solve(spec, by_kind=False)
    assert broken.best is None
    conflict = mw.explain(spec).conflict
    assert conflict is not None
    assert "lora_supported" in {rule.rule for rule in conflict.rules}


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"lora": {"weights": "nf4"}, "precision": "fp8"}, "training.lora.weights"),
        ({"lora": {}, "precision": "fp32"}, "training.lora.weights"),
        ({"lora": {"targets": []}}, "training.lora.targets"),
        ({"lora": {"targets": ["router"]}}, "training.lora.targets"),
        ({"lora": {"rank": 0}}, "training.lora.rank"),
    ],
)
def test_what_means_nothing_is_refused(field: dict[str, Any], why: str) -> None:
    with pytest.raises(mw.SpecError, match=why):
        spec_of(None, training=field)


def test_adapters_on_matrices_that_no_layer_has_are_refused() -> None:
    with pytest.raises(mw.SpecError, match="names no matrix of the model"):
        spec_of({"targets": ["gate_proj"]}, model="gpt3-175b")


def priced(spec: Spec) -> tuple[Job, Prices]:
    job = make_job(spec)
    lattice = build_lattice(job)
    rows, _ = lattice.on_meshes(np.arange(len(lattice)), None)
    return job, price(job, rows)


@settings(max_examples=5, deadline=None)
@given(
    rank=st.sampled_from([4, 16, 64]),
    targets=st.sampled_from(["attention", "mlp", "o_proj"]),
    framework=st.sampled_from(["generic", "fsdp", "deepspeed", "megatron"]),
)
def test_laws_of_adapters(rank: int, targets: str, framework: str) -> None:
    """The backward loses matmuls; more rank and more targets cost more."""
    fields: dict[str, Any] = {"framework": framework, "pins": {"offload": "none"}}
    lora = {"rank": rank, "targets": [targets]}
    _, full = priced(spec_of(None, **fields))
    _, found = priced(spec_of(lora, **fields))
    _, wider = priced(spec_of({"rank": 2 * rank, "targets": [targets]}, **fields))
    _, more = priced(spec_of({"rank": rank}, **fields))
    for this, other in ((found, wider), (found, more)):
        # Where both wait for their host, sums of other parts round otherwise.
        for less, most in (
            (this.time.forward, other.time.forward),
            (this.time.backward, other.time.backward),
        ):
            assert (total(less) <= total(most) * (1 + 1e-12)).all()
        assert (total(this.memory.layer) <= total(other.memory.layer)).all()
        assert (this.memory.activations <= other.memory.activations).all()
    whole = full.rows.tp == 1
    backward_s = found.time.backward["compute"], full.time.backward["compute"]
    assert (backward_s[0][whole] < backward_s[1][whole]).all()
    assert (found.memory.layer["gradients"] < full.memory.layer["gradients"]).all()
    assert (found.memory.layer["optimizer"] < full.memory.layer["optimizer"]).all()


def test_fewer_bits_hold_less_and_take_longer() -> None:
    by_format = [
        priced(spec_of({"weights": weights}, framework="fsdp", pins={"tp": 1}))[1]
        for weights in ("bf16", "int8", "nf4")
    ]
    for more, less in pairwise(by_format):
        held = [one.memory.layer["weights"] for one in (less, more)]
        assert (held[0] <= held[1]).all()
    for quantised in by_format[1:]:
        compute = quantised.time.forward["compute"]
        assert (compute >= by_format[0].time.forward["compute"]).all()


def test_every_adapter_has_kernels_that_the_host_starts() -> None:
    """Of attention's four projections a layer has 1.2 times as many more."""
    started = [
        kernels(one, Efficiency(), ONE).layer.dispatch_s[0]
        for one in (
            spec_of(None, framework="megatron"),
            spec_of({"targets": ["attention"]}, framework="megatron"),
        )
    ]
    assert started[1] == pytest.approx(2.2 * started[0])


def test_frozen_weights_in_fp8_alone_have_a_byte() -> None:
    training = {"precision": "fp8", "fp8_weights": "primary"}
    found = spec_of({}, framework="megatron", training=training)
    assert layer_state(found).weights == 1


def test_code_may_keep_inputs_of_frozen_matrices_and_dropped_ones() -> None:
    """Of an adapter on o_proj: with dropout a mask and a copy; in old 4-bit matmuls of
    all else what queries, an MLP's two inner matrices and its last one read."""
    model = spec_of({}).model
    width, inner = model.d_model, model.d_ff
    twice = {"keeps_inputs": True, "keeps_graph": True}
    usual, dropped, kept, held = (
        saved_bytes(spec_of({"targets": ["o_proj"], **more}), ONE)[0]
        for more in ({}, {"dropout": True}, {"keeps_inputs": True}, twice)
    )
    read = model.n_heads * model.head_dim
    assert dropped - usual == 3 * read
    assert kept - usual == 2 * (2 * width + inner)
    assert held - kept == 2 * (2 * width + inner + read)


def test_frozen_matrices_may_have_gradients_but_no_update() -> None:
    """As large as they are, reduced with those of adapters; embedding and head none."""
    usual, flat = (
        priced(spec_of({"frozen_gradients": has_them}, framework="fsdp"))[1]
        for has_them in (False, True)
    )
    more = flat.memory.layer["gradients"] - usual.memory.layer["gradients"]
    alone = (usual.rows.zero == 0) & (usual.memory.layer["gradients"] > 0)
    share = more[alone] / usual.memory.layer["weights"][alone]
    assert ((share > 0.9) & (share < 1)).all()
    assert (flat.memory.first["gradients"] == 0).all()
    shared = alone & (usual.time.sync_layer["dp"] > 0)
    assert (flat.time.sync_layer["dp"] > usual.time.sync_layer["dp"])[shared].all()
    for part in ("weights", "optimizer"):
        assert (flat.memory.layer[part] == usual.memory.layer[part]).all()


def test_the_gradient_of_an_mlp_takes_a_place_only_if_there_is_one() -> None:
    """A frozen last matrix has saved no input that its gradient could follow."""
    held = []
    for targets in (["up_proj"], ["up_proj", "down_proj"]):
        job, prices = priced(spec_of({"rank": 1, "targets": targets}, framework="fsdp"))
        tokens = prices.rows.shards.tokens(job.spec.training.seq_len)
        held.append(prices.memory.fixed["workspace"] / tokens)
    plain = (prices.rows.recompute == NONE) & (prices.rows.tp == 1)
    more = (held[0] - held[1])[plain] / (2 * job.spec.model.d_ff)
    assert more.min() > 0.9
    assert more.max() < 1.1


def test_what_is_not_quantised_may_be_in_fp32() -> None:
    """Inputs of layers, embedding and head have four bytes a number in place of two."""
    for upcast, size in ((False, 2), (True, 4)):
        asked = spec_of({"weights": "nf4", "upcast": upcast})
        assert layer_input_bytes(asked, ONE)[0] == size * asked.model.d_model
        assert end_state(asked).weights == size


@pytest.mark.parametrize(
    ("model", "lora", "size"),
    [
        ("falcon-7b", {"weights": "nf4", "adapters": "autocast"}, 4),
        ("falcon-7b", {"weights": "int8", "adapters": "autocast"}, 4),
        # Other matrices make 16 bits of what they got, RMSNorm of Transformers, too.
        ("falcon-7b", {"adapters": "autocast"}, 2),
        ("falcon-7b", {"weights": "nf4"}, 2),
        ("llama3-8b", {"weights": "nf4", "adapters": "autocast"}, 2),
    ],
)
def test_autocast_hands_on_fp32_after_layer_norms(
    model: str, lora: dict[str, Any], size: int
) -> None:
    asked = spec_of(lora, model=model)
    assert layer_input_bytes(asked, ONE)[0] == size * asked.model.d_model
    assert end_state(asked).weights == 2


def test_a_loss_over_its_logits_moves_less() -> None:
    """It reads 16 bits twice and writes them once; others keep fp32."""
    heads = [
        kernels(spec_of(None, training={"fused": ["loss"], **more}), Efficiency(), ONE)
        for more in ({}, {"loss_bytes": 0})
    ]
    model = spec_of(None).model
    moved = (16 - 6) * 2_048 * model.vocab
    less_s = heads[0].head_s[0] - heads[1].head_s[0]
    assert less_s == pytest.approx(moved / (0.85 * 3_350e9))


def test_adapters_of_all_layers_share_the_latency_of_a_bucket() -> None:
    """Gradients of layers whole are larger than a bucket of Megatron Core."""
    for lora, is_shared in (({}, True), (None, False)):
        found = spec_of(lora, framework="megatron", pins={"tp": 1, "pp": 1, "zero": 1})
        job, prices = priced(found)
        far = make_job(found, Efficiency(latency=20.0))
        assert far.spec == job.spec
        more = price(far, prices.rows).time.sync_layer["dp"]
        latency_s = (more - prices.time.sync_layer["dp"]).max()
        whole_s = 2 * 7 * 19 * 1.5e-6
        assert (latency_s < whole_s / 10) == is_shared


def test_hooks_of_zero_3_take_the_host_time() -> None:
    """Under DeepSpeed, for every module with parameters; two for each adapter."""
    waits = {}
    for zero in (2, 3):
        for name, lora in (("none", None), ("seven", {})):
            pins = {"tp": 1, "pp": 1, "cp": 1, "zero": zero, "micro_batch": 1}
            short = {"seq_len": 64}
            found = spec_of(lora, framework="deepspeed", pins=pins, training=short)
            waits[zero, name] = priced(found)[1].time.forward["host"].max()
    assert waits[3, "none"] > waits[2, "none"]
    more = waits[3, "seven"] - waits[3, "none"]
    assert more > waits[2, "seven"] - waits[2, "none"]


def seconds_of(lora: dict[str, Any], **training: Any) -> float:
    """Return the seconds of a layer's forward and backward."""
    layer = kernels(spec_of(lora, training=training), Efficiency(), ONE).layer
    return float(layer.forward_s[0] + layer.backward_s[0])


def test_adapters_in_fp32_move_more_and_casts_for_matmuls_less() -> None:
    narrow, cast, wide = (
        seconds_of({"adapters": form}) for form in ("bf16", "autocast", "fp32")
    )
    assert narrow < cast < wide
    # bitsandbytes leaves casts to autocast, which has none to do.
    packed = [
        seconds_of({"adapters": form, "weights": "nf4"})
        for form in ("bf16", "autocast")
    ]
    assert packed[0] == packed[1]


def test_fused_adapters_read_what_they_add_to_once() -> None:
    """Of five passes over results, three over inputs and two backward, one is left of
    the first and of the second.
    """
    apart, fused = (seconds_of({"adapters": form}) for form in ("bf16", "fused"))
    assert fused < apart
    for extra in ({"dropout": True}, {"weights": "nf4"}):
        both = [seconds_of({"adapters": f, **extra}) for f in ("bf16", "fused")]
        assert both[0] - both[1] == pytest.approx(apart - fused, rel=0.02)


def test_dropout_of_adapters_takes_time() -> None:
    assert seconds_of({"dropout": True}) > seconds_of({})


def test_all_in_fp32_is_slowest_without_autocast() -> None:
    usual = {"weights": "nf4", "adapters": "autocast"}
    seconds = [
        seconds_of(usual),
        seconds_of({**usual, "upcast": True}),
        seconds_of({**usual, "upcast": True, "adapters": "fp32"}),
    ]
    assert seconds == sorted(seconds)
    # Attention and head have no tensor cores of 16 bits then.
    assert seconds[2] > 1.3 * seconds[1]


def test_gptq_takes_time_in_proportion_to_weights_not_to_tokens() -> None:
    """16.5 bytes a weight beside what is multiplied, in each of two passes."""
    for seq_len in (512, 4_096):
        more_s = seconds_of({"weights": "gptq"}, seq_len=seq_len) - seconds_of(
            {"weights": "nf4"}, seq_len=seq_len
        )
        matrices = 218_112_000
        moved = 2 * matrices * 14
        assert more_s == pytest.approx(moved / (0.85 * 3_350e9), rel=0.02)


def test_inputs_of_activations_may_be_kept_in_8_bits() -> None:
    """Gate and value have one byte a number less."""
    wide, narrow = (
        saved_bytes(
            spec_of({}, framework="megatron", training={"fp8_activation_inputs": on}),
            ONE,
        )[0]
        for on in (False, True)
    )
    assert wide - narrow == 2 * spec_of({}).model.d_ff


TABLES = 2 * 128_256 * 4096
"""Embedding and head of Llama 3 8B."""

STATE = ("weights", "gradients", "optimizer")

ALONE: dict[str, Any] = {
    "tp": 1, "cp": 1, "zero": 0, "dp_replicate": 8, "dp_shard": 1, "micro_batch": 1,
    "recompute": "full", "offload": "none",
}  # fmt: skip


def alone(ends: str, **fields: Any) -> mw.PricedPlan | None:
    """Return the plan of replicas of an 8B model with adapters, if there is one."""
    given = {"framework": "fsdp", "pins": ALONE, **fields}
    return best_of(spec_of({"rank": 16, "ends": ends}, **given))


@pytest.mark.parametrize(("ends", "each"), [("bf16", 2 + 2 + 4), ("mixed", 4 + 4 + 8)])
def test_ends_are_trained_as_copies_beside_the_frozen_ones(
    ends: str, each: int
) -> None:
    frozen, trained = alone("frozen"), alone(ends)
    assert frozen is not None
    assert trained is not None
    held = [
        sum(
            plan.stages[0].parts[name] for name in ("weights", "gradients", "optimizer")
        )
        for plan in (frozen, trained)
    ]
    # FSDP keeps a cast copy beside weights in fp32.
    cast = 2 if ends == "mixed" else 0
    assert (held[1] - held[0]) * 2**30 == pytest.approx((each + cast) * TABLES)
    assert trained.step_s > frozen.step_s


def test_trained_ends_count_as_trained() -> None:
    frozen, trained = spec_of({"rank": 16}), spec_of({"rank": 16, "ends": "bf16"})
    assert trained_params(trained) - trained_params(frozen) == TABLES
    tokens = 16 * 2048
    more = job_flops(trained) - job_flops(frozen)
    assert more == pytest.approx(2 * tokens * TABLES / 2)  # the gradient of the head
    saved = checkpoint_size(trained) - checkpoint_size(frozen)
    assert saved == pytest.approx((2 + 4) * TABLES)


@pytest.mark.parametrize(
    ("framework", "ends"), [("megatron", "mixed"), ("deepspeed", "bf16")]
)
def test_ends_are_trained_as_the_framework_can(framework: str, ends: str) -> None:
    told = mw.solve(spec_of({"rank": 16, "ends": ends}, framework=framework))
    assert told.status == "infeasible"
    assert told.conflict is not None
    assert "lora_supported" in {rule.rule for rule in told.conflict.rules}
