"""Saved activations: the equations of Korthikanti et al. 2022 are special cases.

arXiv 2205.05198: s sequence length, b micro-batch, h width, a heads, t tensor-parallel
degree; bytes of one layer on one GPU, in 16 bits, with plain attention and dropout.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost.activations import layer_input_bytes, saved_bytes
from meshwright.cost.compute import Kernels, kernels
from meshwright.cost.job import Efficiency, make_job
from meshwright.cost.memory import memory_costs
from meshwright.planner.rows import build_lattice
from meshwright.plans.skeletons import CHEAP, Shards
from meshwright.spec.plan_fields import FIELD, FULL
from meshwright.spec.spec import Spec
from tests.helpers.repeated import repeated_s


def gpt(heads: int, head_dim: int, seq_len: int, **training: object) -> Spec:
    return Spec.model_validate(
        {
            "model": {
                "n_layers": 4,
                "d_model": heads * head_dim,
                "n_heads": heads,
                "d_ff": 4 * heads * head_dim,
                "vocab": 1024,
                "learned_positions": 0,
                "dropout": True,
            },
            "cluster": {
                "topology": {
                    "gpu": {
                        "memory_gib": 80,
                        "memory_gb_s": 2000,
                        "peak_tflops": {"bf16": 300, "fp32": 20},
                    },
                    "levels": [{"name": "l", "size": 4, "gb_s": 300, "latency_us": 1}],
                }
            },
            "training": {
                "seq_len": seq_len,
                "global_batch": 8,
                "attention": "plain",
                **training,
            },
        }
    )


def changed(spec: Spec, **fields: object) -> Spec:
    """Return a spec with other fields of its model."""
    return spec.model_copy(update={"model": spec.model.model_copy(update=fields)})


def shards(t: int, sp: bool, micro_batch: int = 1) -> Shards:
    one = np.array([1])
    return Shards(t * one, one, one, one, micro_batch * one, np.array([sp]))


def per_token(spec: Spec, t: int, sp: bool, selective: bool = False) -> float:
    return float(saved_bytes(spec, shards(t, sp), CHEAP * selective)[0])


heads = st.sampled_from([8, 16, 32, 96])
head_dims = st.sampled_from([64, 96, 128])
lengths = st.sampled_from([128, 1024, 2048, 8192])
degrees = st.sampled_from([1, 2, 4, 8])
run = settings(deadline=None, max_examples=60)


@run
@given(heads, head_dims, lengths)
def test_equation_1_without_parallelism(a: int, head_dim: int, s: int) -> None:
    """sbh (34 + 5 a s / h)."""
    h = a * head_dim
    got = per_token(gpt(a, head_dim, s), 1, False)
    assert got == pytest.approx(h * (34 + 5 * a * s / h), rel=1e-12)


@run
@given(heads, head_dims, lengths, degrees)
def test_equation_2_with_tensor_parallelism(
    a: int, head_dim: int, s: int, t: int
) -> None:
    """sbh (10 + 24 / t + 5 a s / (h t))."""
    h = a * head_dim
    got = per_token(gpt(a, head_dim, s), t, False)
    assert got == pytest.approx(h * (10 + 24 / t + 5 * a * s / (h * t)), rel=1e-12)


@run
@given(heads, head_dims, lengths, degrees)
def test_equation_4_with_sequence_parallelism(
    a: int, head_dim: int, s: int, t: int
) -> None:
    """(sbh / t) (34 + 5 a s / h)."""
    h = a * head_dim
    got = per_token(gpt(a, head_dim, s), t, True)
    assert got == pytest.approx(h / t * (34 + 5 * a * s / h), rel=1e-12)


@run
@given(heads, head_dims, lengths, degrees)
def test_selective_recomputation_drops_the_scores(
    a: int, head_dim: int, s: int, t: int
) -> None:
    """Equation 6, per layer: 34 sbh / t; table 2 without sp: sbh (10 + 24 / t)."""
    h, spec = a * head_dim, gpt(a, head_dim, s)
    with_sp = per_token(spec, t, True, selective=True)
    without = per_token(spec, t, False, selective=True)
    assert with_sp == pytest.approx(34 * h / t, rel=1e-12)
    assert without == pytest.approx(h * (10 + 24 / t), rel=1e-12)


@run
@given(heads, head_dims, lengths, degrees)
def test_full_recomputation_keeps_the_input(
    a: int, head_dim: int, s: int, t: int
) -> None:
    """Table 2: 2 sbh; under sequence parallelism the input is split as well."""
    h, spec = a * head_dim, gpt(a, head_dim, s)
    assert layer_input_bytes(spec, shards(t, False))[0] == 2 * h
    split = layer_input_bytes(spec, shards(t, True))[0]
    assert split == pytest.approx(2 * h / t, rel=1e-12)


def test_gpt3_scores_are_80() -> None:
    """Section 5: 5 a s / h is 80 for GPT-3 and 64 for the 530B model."""
    gpt3, mtnlg = gpt(96, 128, 2048), gpt(128, 160, 2048)
    assert per_token(gpt3, 1, False) / 12288 - 34 == pytest.approx(80, rel=1e-12)
    assert per_token(mtnlg, 1, False) / 20480 - 34 == pytest.approx(64, rel=1e-12)


def test_fp32_doubles_all_but_the_masks() -> None:
    """Of 34 bytes 32 are numbers of 2 bytes and 2 are masks; of 5 as / h, 4 and 1."""
    spec = gpt(16, 128, 1024, precision="fp32")
    h, scores = 2048, 16 * 1024
    expected = (2 * 32 + 2) * h + (2 * 4 + 1) * scores
    assert per_token(spec, 1, False) == pytest.approx(expected, rel=1e-12)


def test_fused_attention_saves_no_scores() -> None:
    """FlashAttention-2 (Dao 2023, section 3.1.1) saves one fp32 logsumexp per row."""
    plain = gpt(16, 128, 1024)
    fused = gpt(16, 128, 1024, attention="flash")
    saved = per_token(plain, 1, False) - per_token(fused, 1, False)
    assert saved == pytest.approx(5 * 16 * 1024 - 4 * 16, rel=1e-12)


def test_memory_of_a_lattice_uses_the_equations() -> None:
    """Equations 2 and 4 per layer and micro-batch, and what recompute gives back."""
    a, head_dim, s = 8, 64, 512
    h = a * head_dim
    job = make_job(gpt(a, head_dim, s))
    rows = build_lattice(job).rows
    costs = memory_costs(job, rows)
    t, sp = rows.tp, rows.sequence_parallel
    sbh = s * rows.micro_batch * h / rows.cp
    linear = np.where(sp, 34 / t, 10 + 24 / t)
    scores = 5 * a * s / h / t
    np.testing.assert_allclose(costs.activations, sbh * (linear + scores), rtol=1e-12)
    core_attn = FIELD["recompute_modules"].encoded("core_attn")
    selective, full = rows.recompute_modules == core_attn, rows.recompute == FULL
    assert selective.any()
    assert full.any()
    np.testing.assert_allclose(
        costs.freed[selective], (sbh * scores)[selective], rtol=1e-12
    )
    kept = np.where(sp, 2 / t, 2) / rows.recompute_segment
    np.testing.assert_allclose(
        (costs.activations - costs.freed)[full], (sbh * kept)[full], rtol=1e-12
    )


flash = {"attention": "flash"}


def test_output_norms_save_what_they_read() -> None:
    """Two norms after attention and MLP keep their inputs, 2 x 2 h bytes, no outputs.

    What they put out is added to the residual stream, and an addition saves nothing.
    Recomputing norms frees none of it, sequence parallelism splits all of it.
    """
    two, h = gpt(16, 128, 1024, **flash), 2048
    four = changed(two, norms_per_layer=4)
    assert per_token(four, 4, False) - per_token(two, 4, False) == 4 * h
    assert per_token(four, 4, True) - per_token(two, 4, True) == 4 * h / 4
    assert per_token(four, 4, True, True) - per_token(two, 4, True, True) == 4 * h / 4


def test_parallel_norms_share_their_input() -> None:
    """Attention and MLP beside each other read one tensor of 2 h bytes, not two."""
    h, serial = 2048, gpt(16, 128, 1024, **flash)
    parallel = changed(serial, parallel_residual=True)
    assert per_token(serial, 2, False) - per_token(parallel, 2, False) == 2 * h
    assert per_token(serial, 2, True) - per_token(parallel, 2, True) == 2 * h / 2


def test_shared_norm_saves_one_output() -> None:
    """One norm instead of two beside each other: 2 h bytes less, unless recomputed."""
    h, two = 2048, changed(gpt(16, 128, 1024, **flash), parallel_residual=True)
    one = changed(two, norms_per_layer=1)
    assert per_token(two, 2, False) - per_token(one, 2, False) == 2 * h
    assert per_token(two, 2, False, True) == per_token(one, 2, False, True)


def timed(spec: Spec) -> Kernels:
    """Return the kernel times of 32,768 tokens on one GPU."""
    batch = 32_768 // spec.training.seq_len
    return kernels(spec, Efficiency(), shards(1, False, batch))


NORM_S = 2 * 32_768 * 2_048 * 2 / (2_000e9 * 0.85)
"""A norm reads and writes 32,768 tokens of 2,048 numbers of 2 bytes, at 85 % of 2,000
GB/s: 158 us, far above the 4 us of a launch."""


def test_each_norm_takes_its_time() -> None:
    """Forward once, backward twice that; selective recompute repeats input norms."""
    two = timed(gpt(16, 128, 1024, **flash))
    four = timed(changed(gpt(16, 128, 1024, **flash), norms_per_layer=4))
    one = timed(
        changed(gpt(16, 128, 1024, **flash), norms_per_layer=1, parallel_residual=True)
    )
    for other, more in ((four, 2), (one, -1)):
        forward = (other.layer.forward_s - two.layer.forward_s)[0]
        backward = (other.layer.backward_s - two.layer.backward_s)[0]
        assert forward == pytest.approx(more * NORM_S, rel=1e-9)
        assert backward == pytest.approx(2 * more * NORM_S, rel=1e-9)
    assert repeated_s(four, CHEAP) == repeated_s(two, CHEAP)
    more = (repeated_s(two, CHEAP) - repeated_s(one, CHEAP))[0]
    assert more == pytest.approx(NORM_S, rel=1e-9)


def test_embedding_norm_takes_its_time() -> None:
    """Once forward and twice that backward, on the first stage alone."""
    bare = timed(gpt(16, 128, 1024, **flash))
    normed = timed(changed(gpt(16, 128, 1024, **flash), embedding_norm=True))
    more = (normed.embedding_s - bare.embedding_s)[0]
    assert more == pytest.approx(3 * NORM_S, rel=1e-9)
    assert normed.layer.forward_s == bare.layer.forward_s


def test_alibi_rotates_nothing() -> None:
    """Rotary positions read and write queries and keys, as much as two norms here."""
    rotary = timed(gpt(16, 128, 1024, **flash))
    alibi = timed(changed(gpt(16, 128, 1024, **flash), alibi=True))
    forward = (rotary.layer.forward_s - alibi.layer.forward_s)[0]
    assert forward == pytest.approx(2 * NORM_S, rel=1e-9)
    learned = timed(changed(gpt(16, 128, 1024, **flash), learned_positions=1024))
    assert alibi.layer.forward_s == learned.layer.forward_s
