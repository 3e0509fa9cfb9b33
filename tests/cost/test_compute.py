"""Seconds of a layer's kernels, by arithmetic of their own.

The GPU here does 1e12 FLOP/s and moves 1e14 bytes/s, a matmul dimension of size s at
s / (s + 1) of the rate, and a kernel takes 0.1 us at least.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.cost.compute import Kernels, kernels
from meshwright.cost.job import Efficiency
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.skeletons import CHEAP, Shards
from meshwright.spec.spec import Spec
from tests.helpers.repeated import repeated_s

IDEAL = Efficiency(
    gemm=1.0,
    gemm_half_size=1.0,
    attention=1.0,
    memory=1.0,
    launch_s=1e-7,
    dispatch_s=1e-6,
)
SEQ = 4_096
FUSED = SEQ / (SEQ + 300) * (64 / (64 + 18)) / (128 / (128 + 18))
"""Rate of FlashAttention-2 with heads of 64 over that with heads of 128 and infinitely
long sequences."""
EXPERTS = {"n_experts": 16, "top_k": 2, "d_ff": 256}
LATENT = {"q_rank": 96, "kv_rank": 64, "rope_dim": 16, "nope_dim": 48, "v_dim": 32}


SHAPE: dict[str, object] = {
    "n_layers": 4,
    "d_model": 512,
    "n_heads": 8,
    "d_ff": 2_048,
    "vocab": 8_000,
    "bias": "none",
}


def spec(attention: str = "flash", **model: object) -> Spec:
    gpu = {"memory_gib": 80, "memory_gb_s": 1e5, "peak_tflops": {"bf16": 1, "fp8": 2}}
    gpu |= {"matmul_share": 1}
    levels = [{"name": "l", "size": 8, "gb_s": 450, "latency_us": 1}]
    return Spec.model_validate(
        {
            "model": SHAPE | model,
            "cluster": {"topology": {"gpu": gpu, "levels": levels}},
            # In a ring kernels would get shorter sequences, see test_attention_kernels.
            "training": {"seq_len": SEQ, "global_batch": 8, "attention": attention}
            | {"context_exchange": "gather"},
        }
    )


def trained(question: Spec, **training: object) -> Spec:
    """Return a spec of other training."""
    said = question.training.model_dump() | training
    return question.model_copy(
        update={"training": question.training.model_validate(said)}
    )


def priced(
    question: Spec,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    batch: int = 1,
    sequence_parallel: bool = True,
) -> Kernels:
    return kernels(question, IDEAL, shards(tp, cp, ep, batch, sequence_parallel))


def shards(tp: int, cp: int, ep: int, batch: int, sequence_parallel: bool) -> Shards:
    return Shards(
        np.array([tp]),
        np.array([cp]),
        np.array([ep]),
        np.array([1]),
        np.array([batch]),
        np.array([sequence_parallel]),
    )


def matmul_s(m: float, n: float, k: float) -> float:
    return 2 * (m + 1) * (n + 1) * (k + 1) / 1e12


def stream_s(elements: float) -> float:
    return max(2 * elements / 1e14, 1e-7)


def sums_s(params: float) -> float:
    """Sums in fp32, read and written as 4 numbers of two bytes; most of it hides."""
    return 0.45 * stream_s(4 * params)


def approx(seconds: float) -> Any:
    return pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("tp", [1, 4])
def test_matmuls_of_a_dense_layer(tp: int) -> None:
    """Queries 512 wide, keys and values 2 x 2 heads of 64, on two GPUs at most."""
    took = priced(spec(n_kv_heads=2, gated_mlp=True), tp=tp)
    qkv = 512 / tp + 256 / min(tp, 2)
    expected = matmul_s(SEQ, qkv, 512) + matmul_s(SEQ, 512, 512 / tp)
    expected += matmul_s(SEQ, 2 * 2_048 / tp, 512) + matmul_s(SEQ, 512, 2_048 / tp)
    assert took.layer.weight_s[0] == approx(expected)


def test_a_whole_dense_layer() -> None:
    """Forward: matmuls, the core, two norms (2 x 512 a token), two residual sums
    (3 x 512), rotary positions (2 x 2 x 512), activation (2 x 2,048). Backward: twice
    that, and the core's five matmuls for two, at 0.8 of the rate.
    """
    took = priced(spec())
    core = SEQ * SEQ * 2 * 512 / 1e12 / FUSED
    streams = 2 * stream_s(SEQ * 1_024) + 2 * stream_s(SEQ * 1_536)
    streams += stream_s(SEQ * 2_048) + stream_s(SEQ * 4_096)
    assert took.layer.attention_s[0] == approx(core)
    assert took.layer.attention_backward_s[0] == approx(2.5 * core / 0.8)
    assert took.layer.forward_s[0] == approx(took.layer.weight_s[0] + core + streams)
    twice = 2 * took.layer.weight_s[0] + 2 * streams
    assert took.layer.backward_s[0] == approx(twice + 2.5 * core / 0.8)
    norms_and_activation = 2 * stream_s(SEQ * 1_024) + stream_s(SEQ * 4_096)
    assert repeated_s(took, CHEAP)[0] == approx(norms_and_activation)


def test_dense_models_have_one_kind_of_layer() -> None:
    took = priced(spec(), tp=2)
    assert took.dense.forward_s[0] == took.layer.forward_s[0]
    assert took.dense.backward_s[0] == took.layer.backward_s[0]


def test_leading_layers_are_those_of_a_dense_model() -> None:
    dense = priced(spec(mla=LATENT), tp=2)
    mixed = priced(spec(mla=LATENT, moe=EXPERTS), tp=2)
    assert mixed.dense.forward_s[0] == dense.layer.forward_s[0]
    assert mixed.dense.backward_s[0] == dense.layer.backward_s[0]
    assert mixed.layer.forward_s[0] != dense.layer.forward_s[0]


def outside_mlp_s(tp: int) -> float:
    return matmul_s(SEQ, 3 * 512 / tp, 512) + matmul_s(SEQ, 512, 512 / tp)


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (1, 4), (4, 8), (2, 16)])
def test_matmuls_of_experts(tp: int, ep: int) -> None:
    """A GPU sends out 2 copies of its SEQ / tp tokens, and the fullest of several gets
    1.2 times as many for its 16 / ep experts, each 256 wide. Its own tokens meet the
    router; the shared expert is split.
    """
    took = priced(spec(moe=EXPERTS | {"shared_d_ff": 128}), tp=tp, ep=ep)
    found, local = SEQ / tp, 16 / ep
    rows = 2 * found / local * (1.2 if ep > 1 else 1)
    expected = outside_mlp_s(tp) + matmul_s(found, 16, 512)
    expected += local * (matmul_s(rows, 256, 512) + matmul_s(rows, 512, 256))
    expected += sums_s(local * 2 * 256 * 512)
    expected += matmul_s(SEQ, 128 / tp, 512) + matmul_s(SEQ, 512, 128 / tp)
    assert took.layer.weight_s[0] == approx(expected)


def test_experts_take_the_flops_of_the_tokens_copies() -> None:
    """Large matmuls waste nothing: 2 x 2 x 512 x 256 FLOPs for each of 2 copies."""
    took = priced(spec(moe=EXPERTS), batch=64)
    tokens = 64 * SEQ
    flops = 2 * tokens * (4 * 512**2 + 16 * 512 + 2 * 2 * 512 * 256)
    assert flops / 1e12 < took.layer.weight_s[0] < 1.02 * flops / 1e12


def test_few_rows_per_expert_cost_more() -> None:
    """The same copies over 512 experts leave 2 rows x 512 / 512 = 16 to each."""
    few = priced(spec(moe=EXPERTS | {"n_experts": 4}))
    many = priced(spec(moe=EXPERTS | {"n_experts": 512}))
    router = matmul_s(SEQ, 512, 512) - matmul_s(SEQ, 4, 512)
    rows = {4: 2 * SEQ / 4, 512: 2 * SEQ / 512}
    took = {n: n * 2 * matmul_s(rows[n], 256, 512) for n in rows}
    took = {n: s + sums_s(n * 2 * 256 * 512) for n, s in took.items()}
    assert many.layer.weight_s[0] - few.layer.weight_s[0] == approx(
        router + took[512] - took[4]
    )
    assert took[512] > 1.05 * took[4]


def test_capacity_pads_the_copies() -> None:
    """A factor of 1.5: three rows where there were two."""
    dropless = priced(spec(moe=EXPERTS))
    padded = priced(spec(moe=EXPERTS | {"capacity_factor": 1.5}))
    two, three = (16 * 2 * matmul_s(n * SEQ / 16, 256, 512) for n in (2, 3))
    assert padded.layer.weight_s[0] - dropless.layer.weight_s[0] == approx(three - two)


@pytest.mark.parametrize(("ep", "passes"), [(1, 2), (2, 4), (8, 4), (16, 2)])
def test_copies_are_gathered_sorted_and_scattered(ep: int, passes: int) -> None:
    """2 x 2 x SEQ x 512 elements a pass; sorted where one GPU has several experts, and
    copies from others, 1.2 times as many. Scores of 16 experts take 4 bytes each way.
    """
    batch = 8
    tokens = batch * SEQ
    took = priced(spec(moe=EXPERTS), ep=ep, batch=batch)
    streams = 2 * stream_s(tokens * 1_024) + 2 * stream_s(tokens * 1_536)
    copies = 2 * tokens * (1.2 if ep > 1 else 1)
    streams += stream_s(tokens * 2_048) + stream_s(2 * copies * 256)
    routing = stream_s(2 * tokens * 16 * 2) + passes * stream_s(2 * copies * 512)
    rest = took.layer.forward_s[0] - took.layer.matmuls_s[0] - took.layer.attention_s[0]
    assert rest == pytest.approx(streams + routing, rel=1e-6)


@pytest.mark.parametrize(
    ("framework", "training", "size"),
    [
        ("megatron", {}, 4),
        ("megatron", {"gradients": "bf16"}, 2),
        ("megatron", {"lora": {"rank": 8}}, 0),
        ("torchtitan", {}, 0),
    ],
)
def test_matmuls_of_gradients_of_experts_add_to_those_of_the_step(
    framework: str, training: dict[str, Any], size: int
) -> None:
    """2 x 512 x 256 weights of each of 4 experts, whose sums are read and written."""
    data = spec(moe=EXPERTS).model_dump()
    data["framework"] = framework
    data["training"] |= training
    took = priced(Spec.model_validate(data), ep=4)
    usual, dense = took.layer, took.dense
    frozen = "lora" in training
    sums = 0.45 * stream_s(size * 4 * 2 * 512 * 256) if size else 0
    if not frozen:
        assert usual.weight_s[0] - usual.matmuls_s[0] == pytest.approx(sums, abs=1e-15)
        assert dense.weight_s[0] == dense.matmuls_s[0]
    assert usual.matmuls_backward_s[0] == approx(
        (1 if frozen else 2) * usual.matmuls_s[0] + sums
    )


def test_matmuls_of_latent_attention() -> None:
    """Down to 96, and to 64 + 16, by each GPU for its own tokens; up to 8 heads of 64
    and of 48 + 32; out of 8 heads of 32.
    """
    took = priced(spec(mla=LATENT), tp=4)
    expected = matmul_s(SEQ / 4, 96, 512) + matmul_s(SEQ / 4, 80, 512)
    expected += matmul_s(SEQ, 512 / 4, 96) + matmul_s(SEQ, 640 / 4, 64)
    expected += matmul_s(SEQ, 512, 256 / 4)
    expected += 2 * matmul_s(SEQ, 2_048 / 4, 512)
    assert took.layer.weight_s[0] == approx(expected)


def test_latent_attention_without_a_latent_query() -> None:
    took = priced(spec(mla=LATENT | {"q_rank": 0}), tp=4)
    compressed = priced(spec(mla=LATENT), tp=4)
    added = matmul_s(SEQ, 512 / 4, 512) - matmul_s(SEQ, 512 / 4, 96)
    added -= matmul_s(SEQ / 4, 96, 512)
    assert took.layer.weight_s[0] - compressed.layer.weight_s[0] == approx(added)


def test_core_of_latent_attention() -> None:
    """Scores over heads of 64, values of 32; five matmuls backward, three over keys.

    A backward runs at 0.8 of the forward's rate.
    """
    took = priced(spec(mla=LATENT), tp=2)
    pairs = SEQ * SEQ
    assert took.layer.attention_s[0] == approx(pairs * (512 + 256) / 2e12 / FUSED)
    backward = pairs * (3 * 512 + 2 * 256) / 2 / 0.8e12 / FUSED
    assert took.layer.attention_backward_s[0] == approx(backward)


def test_streams_of_latent_attention() -> None:
    """Beside a plain layer's: norms over 96 + 64, and 8 rotary parts of 16, not 64."""
    batch = 8
    tokens = batch * SEQ
    took = priced(spec(mla=LATENT), batch=batch)
    streams = 2 * stream_s(tokens * 1_024) + 2 * stream_s(tokens * 1_536)
    streams += stream_s(tokens * 4_096) + stream_s(2 * tokens * 160)
    streams += stream_s(2 * tokens * (8 * 16 + 512))
    rest = took.layer.forward_s[0] - took.layer.weight_s[0] - took.layer.attention_s[0]
    assert rest == pytest.approx(streams, rel=1e-6)


def test_query_and_key_norms_read_and_write_both() -> None:
    """2 x (512 + 2 x 64) / 2 elements a token on each of two GPUs."""
    plain = priced(spec(n_kv_heads=2), tp=2, batch=8)
    normed = priced(spec(n_kv_heads=2, qk_norm=True), tp=2, batch=8)
    added = stream_s(8 * SEQ * 640)
    assert normed.layer.forward_s[0] - plain.layer.forward_s[0] == pytest.approx(
        added, rel=1e-5
    )
    assert normed.layer.backward_s[0] - plain.layer.backward_s[0] == pytest.approx(
        2 * added, rel=1e-5
    )


@pytest.mark.parametrize("model", [{}, {"moe": EXPERTS}, {"mla": LATENT}])
@pytest.mark.parametrize("attention", ["flash", "plain"])
def test_context_shards_share_all_work(model: dict[str, Any], attention: str) -> None:
    """Four sequences over four GPUs: each does what it does with one of them.

    Its own quarter of the queries meets the whole sequence, causal halves even.
    """
    one = priced(spec(attention, **model), batch=1)
    four = priced(spec(attention, **model), cp=4, batch=4)
    found = {**vars(one), "cheap": repeated_s(one, CHEAP)}
    shared = {**vars(four), "cheap": repeated_s(four, CHEAP)}
    ends = {"cheap", "embedding_s", "head_s"}
    for name, whole in {**vars(one.layer), **{n: found[n] for n in ends}}.items():
        share = shared[name] if name in ends else vars(four.layer)[name]
        # Plain scores are cut in smaller matmuls: 1 / 1,024 more.
        assert share == pytest.approx(whole, rel=2e-3), name
    alone = priced(spec(attention, **model), cp=4, batch=1)
    assert alone.layer.attention_s[0] == pytest.approx(
        one.layer.attention_s[0] / 4, rel=2e-3
    )


def test_ring_hops_take_a_launch_each() -> None:
    """A sequence of 4,096 over 4,096 GPUs: one query each, 4,096 kernels of 0.1 us."""
    took = priced(spec(), cp=4_096)
    assert took.layer.attention_s[0] == approx(4_096e-7)


def test_sequence_parallelism_shares_what_is_between_matmuls() -> None:
    """Two norms and two residual sums of a quarter of the tokens, 2.5 times d."""
    together = priced(spec(), tp=4, batch=32)
    apart = priced(spec(), tp=4, batch=32, sequence_parallel=False)
    tokens = 32 * SEQ
    saved = 2 * stream_s(tokens * 1_024) + 2 * stream_s(tokens * 1_536)
    saved *= 3 / 4
    assert apart.layer.forward_s[0] - together.layer.forward_s[0] == pytest.approx(
        saved, rel=1e-6
    )
    assert apart.layer.weight_s[0] == together.layer.weight_s[0]


def test_dispatch_takes_longer_for_experts_and_modules() -> None:
    """Router and permutation make 25 kernels 60, and each of two experts adds two.

    Modules of Transformer Engine take 4.5 times what plain operations do.
    """
    slow = IDEAL.model_copy(update={"dispatch_s": 1e-3})
    question, rows = spec(moe=EXPERTS), shards(8, 1, 8, 1, True)
    took = kernels(question, slow, rows)
    factor = framework_of(question).layer_dispatch
    assert took.dense.dispatch_s[0] == pytest.approx(factor * 1e-3)
    assert took.layer.dispatch_s[0] == pytest.approx(64 / 25 * factor * 1e-3)


def test_norms_of_queries_and_keys_are_two_more_modules() -> None:
    """Latent attention norms its latents, as it always does."""
    slow = IDEAL.model_copy(update={"dispatch_s": 1e-3})
    questions = spec(), spec(qk_norm=True), spec(mla=LATENT)
    usual, normed, latent = (
        kernels(question, slow, shards(8, 1, 8, 1, True)).layer.dispatch_s[0]
        for question in questions
    )
    assert normed == pytest.approx(1.3 * usual)
    assert latent == pytest.approx(usual)


def test_an_mlp_in_parts_runs_forward_once_more() -> None:
    """Two matmuls of 4 x 512^2 parameters and an activation of 2 x 2,048 numbers.

    Matmuls 512 wide are 1 in 512 slower.
    """
    whole, cut = (
        priced(trained(spec(), mlp_chunks=chunks), batch=16).layer for chunks in (1, 4)
    )
    tokens = 16 * SEQ
    matmuls_s = 2 * 2 * tokens * 512 * 2_048 / 1e12
    more_s = cut.backward_s[0] - whole.backward_s[0]
    assert more_s == pytest.approx(matmuls_s + stream_s(tokens * 2 * 2_048), rel=3e-3)
    assert cut.forward_s[0] == whole.forward_s[0]


@pytest.mark.parametrize(
    ("precision", "kernels_of_25"), [("bf16", 60 - 15), ("fp8", 60)]
)
def test_deepep_exchanges_in_fewer_kernels_in_16_bits(
    precision: str, kernels_of_25: int
) -> None:
    """8 in place of 23; in fp8 padding, casts and scales come in their place."""
    slow = IDEAL.model_copy(update={"dispatch_s": 1e-3})
    question = trained(spec(moe=EXPERTS), expert_dispatch="deepep", precision=precision)
    took = kernels(question, slow, shards(8, 1, 8, 1, True))
    expected = (kernels_of_25 + 2 * 2) / 25 * framework_of(question).layer_dispatch
    assert took.layer.dispatch_s[0] == pytest.approx(expected * 1e-3)


def test_a_fused_residual_sum_is_part_of_the_norm_after_it() -> None:
    """Of 3 x 512 numbers a token 2 x 512 are left forward, and none backward."""
    apart, fused = (
        priced(trained(spec(), fused=["norm", *sums]), batch=16).layer
        for sums in ([], ["residual"])
    )
    alone_s, left_s = stream_s(16 * SEQ * 1_536), stream_s(16 * SEQ * 1_024)
    saved_s = apart.forward_s[0] - fused.forward_s[0]
    assert saved_s == pytest.approx(2 * (alone_s - left_s))
    saved_s = apart.backward_s[0] - fused.backward_s[0]
    assert saved_s == pytest.approx(2 * 2 * alone_s)


@pytest.mark.parametrize(("weights", "kernels_of_25"), [("bf16", 40), ("nf4", 70)])
def test_dispatch_takes_longer_for_adapters_and_quantised_matrices(
    weights: str, kernels_of_25: int
) -> None:
    """Each of 2 adapters adds 7.5 kernels, each of 6 quantised matrices 5."""
    slow = IDEAL.model_copy(update={"dispatch_s": 1e-3})
    lora = {"rank": 8, "targets": ["q_proj", "v_proj"], "weights": weights}
    question = trained(spec(), lora=lora)
    took = kernels(question, slow, shards(8, 1, 8, 1, True))
    expected = kernels_of_25 / 25 * framework_of(question).layer_dispatch * 1e-3
    assert took.layer.dispatch_s[0] == pytest.approx(expected)


@pytest.mark.parametrize("capacity", [None, 1.0])
def test_the_host_waits_for_the_tokens_of_experts_that_drop_none(
    capacity: float | None,
) -> None:
    """What experts have beyond other layers is started when the GPU has stopped."""
    slow = IDEAL.model_copy(update={"dispatch_s": 1e-3})
    question = spec(moe=EXPERTS | {"capacity_factor": capacity})
    took = kernels(question, slow, shards(8, 1, 8, 1, True))
    factor = framework_of(question).layer_dispatch
    waits = capacity is None
    assert took.layer.awaited_s[0] == pytest.approx(waits * 39 / 25 * factor * 1e-3)
    assert took.dense.awaited_s[0] == 0
