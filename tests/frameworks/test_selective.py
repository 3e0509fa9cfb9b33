"""Which selective recomputation frameworks have, and what it frees and repeats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.cost.activations import saved_bytes
from meshwright.cost.compute import kernels
from meshwright.cost.job import Efficiency
from meshwright.frameworks.base.registry import offered_sets
from meshwright.plans.skeletons import ALL_MODULES, MLP, PER_OP, Shards
from meshwright.spec.plan_fields import BIT, SETS, WRITTEN_SETS
from meshwright.spec.spec import Spec
from tests.helpers.repeated import repeated_s

DENSE: dict[str, Any] = {
    "n_layers": 8, "d_model": 1024, "n_heads": 8, "n_kv_heads": 8, "d_ff": 4096,
    "vocab": 512, "gated_mlp": True, "bias": "none", "norm": "rmsnorm",
}  # fmt: skip
MLA = {
    "mla": {"q_rank": 96, "kv_rank": 64, "rope_dim": 32, "nope_dim": 64, "v_dim": 64}
}
MOE = {"moe": {"n_experts": 8, "top_k": 2, "d_ff": 512}}
SHARED = {"moe": MOE["moe"] | {"shared_d_ff": 1024, "first_dense_layers": 2}}

MODELS: dict[str, dict[str, Any]] = {
    "dense": {}, "latent": MLA, "experts": MOE, "shared": SHARED,
    "deepseek": SHARED | MLA,
}  # fmt: skip


def spec(
    framework: str, model: str, memory_gb_s: float = 2_000, **training: object
) -> Spec:
    levels = [{"name": "node", "size": 8, "gb_s": 300, "latency_us": 5}]
    gpu = {
        "memory_gib": 80,
        "memory_gb_s": memory_gb_s,
        "peak_tflops": {"bf16": 300},
    }
    return Spec.model_validate(
        {
            "model": DENSE | MODELS[model],
            "cluster": {"topology": {"gpu": gpu, "levels": levels}},
            "framework": framework,
            "training": {"seq_len": 1024, "global_batch": 16, **training},
        }
    )


def words(given: Spec) -> set[str]:
    return {WRITTEN_SETS[code] for code in offered_sets(given)}


def one() -> Shards:
    ones = np.array([1])
    return Shards(ones, ones, ones, ones, ones, np.array([False]))


def freed(given: Spec, bits: int) -> tuple[float, float]:
    """Return what bits free per token of a repeated layer, and of a leading one."""
    repeated = saved_bytes(given, one()) - saved_bytes(given, one(), bits)
    if not given.model.first_dense_layers:
        return float(repeated[0]), 0.0
    whole = saved_bytes(given, one(), is_dense=True)
    leading = whole - saved_bytes(given, one(), bits, is_dense=True)
    return float(repeated[0]), float(leading[0])


def test_fused_norms_leave_dense_layers_the_mlp_alone() -> None:
    assert words(spec("megatron", "dense")) == {"mlp"}
    unfused = spec("megatron", "dense", fused=[])
    assert words(unfused) == {"layernorm", "mlp", "layernorm+mlp"}


def test_plain_attention_has_a_core_to_recompute() -> None:
    plain = spec("megatron", "dense", attention="plain")
    assert words(plain) == {"core_attn", "mlp", "core_attn+mlp"}


def test_experts_have_parts() -> None:
    assert words(spec("megatron", "experts")) == {
        "layernorm", "moe_act", "moe", "layernorm+moe_act", "layernorm+moe",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["deepspeed", "fsdp", "internevo", "nanotron"])
def test_others_recompute_whole_layers(name: str) -> None:
    assert offered_sets(spec(name, "deepseek")) == []


@pytest.mark.parametrize("name", ["torchtitan", "generic"])
def test_some_have_one_way_without_names(name: str) -> None:
    assert offered_sets(spec(name, "deepseek")) == [0]


def test_ideal_has_the_ways_of_megatron_and_of_generic() -> None:
    sets = words(spec("ideal", "deepseek"))
    assert sets == {"", *words(spec("megatron", "deepseek"))}


@pytest.mark.parametrize("attention", ["flash", "plain"])
@pytest.mark.parametrize("model", MODELS)
def test_every_module_of_a_set_frees_what_the_others_keep(
    model: str, attention: str
) -> None:
    found = spec("megatron", model, attention=attention)
    for code in offered_sets(found):
        bits = SETS[code]
        for bit in BIT.values():
            if bits & bit:
                less = zip(freed(found, bits), freed(found, bits ^ bit), strict=True)
                assert any(whole > part for whole, part in less), WRITTEN_SETS[code]


@pytest.mark.parametrize("attention", ["flash", "plain"])
@pytest.mark.parametrize("model", MODELS)
def test_sets_that_are_not_offered_free_no_more_than_one_that_is(
    model: str, attention: str
) -> None:
    """But for `mlp` alone beside experts, which only leading layers have."""
    found = spec("megatron", model, attention=attention)
    took = kernels(found, Efficiency(), one())
    offered = {SETS[code] for code in offered_sets(found)} | {0}
    offered |= {MLP} if found.model.first_dense_layers else set()
    for bits in range(ALL_MODULES + 1):
        assert any(
            freed(found, other) == freed(found, bits)
            and repeated_s(took, other)[0] <= repeated_s(took, bits)[0] + 1e-15
            for other in offered
            if other & bits == other
        ), bits


def test_moe_keeps_its_input() -> None:
    """What the norm before experts returns, 2 bytes of 1,024 numbers, stays."""
    found = spec("megatron", "experts")
    inside = 4 * 8 + 2 * 2 * (1024 + 3 * 512)
    assert freed(found, BIT["moe"])[0] == inside
    assert freed(found, BIT["moe"] | BIT["layernorm"])[0] == inside + 2 * 1024


def test_mlp_frees_the_norm_that_is_fused_into_it() -> None:
    """Gate, value and their product of 4,096 numbers each, and 1,024 of the norm."""
    assert freed(spec("megatron", "dense"), MLP)[0] == 2 * (3 * 4096 + 1024)
    eager = spec("megatron", "dense", fused=["norm"])
    assert freed(eager, MLP)[0] == 2 * (4 * 4096 + 1024)
    unfused = spec("ideal", "dense", fused=[])
    assert freed(unfused, MLP)[0] == 2 * 4 * 4096


def test_latents_are_what_is_kept_before_heads() -> None:
    """Queries and keys of 96, values of 64 for 8 heads, and 160 normed latents."""
    found = spec("megatron", "latent")
    assert freed(found, BIT["mla_up_proj"])[0] == 2 * (8 * (2 * 96 + 64) + 160)


def kept(given: Spec, **degrees: int) -> float:
    """Return the bytes that stay where operations are repeated."""
    shards = replace(one(), **{name: np.array([n]) for name, n in degrees.items()})
    return float(saved_bytes(given, shards, PER_OP)[0])


def test_every_other_matmul_of_a_llama_layer() -> None:
    """Kept: input, qkv, attention's result and statistics, the gate, the MLP's result.

    Repeated: the projection after attention and the value of the MLP, 5 of 16 units of
    1,024 x 1,024; beside memory a hundred times as fast streams take next to nothing.
    """
    found = spec("torchtitan", "dense", memory_gb_s=200_000, attention="flash2")
    assert kept(found) == 2 * (1024 + 3 * 1024 + 1024 + 4096 + 1024) + 4 * 8
    took = kernels(found, Efficiency(launch_s=1e-7), one())
    matmul_s = took.layer.weight_s[0]
    assert repeated_s(took, PER_OP)[0] == pytest.approx(5 / 16 * matmul_s, rel=0.03)


@pytest.mark.parametrize(
    ("bias", "numbers", "units"),
    [
        ("none", 3 * 1024 + 4096 + 1024, 1 + 4),
        ("attention", 3 * 1024 + 1024 + 4096 + 1024, 4),
        ("qkv", 3 * 1024 + 1024 + 4096, 4 + 4),
        ("mlp", 3 * 1024 + 2 * 4096 + 1024, 1),
        ("all", 3 * 1024 + 1024 + 2 * 4096 + 1024, 0),
    ],
)
def test_a_matmul_with_a_bias_is_kept_and_does_not_count(
    bias: str, numbers: int, units: int
) -> None:
    """Of qkv, its result, gate, value and result every second one without is repeated.

    Beside them input and result of attention stay; units are of 1,024 x 1,024.
    """
    changed = spec("torchtitan", "dense", memory_gb_s=200_000, attention="flash2")
    model = changed.model.model_copy(update={"bias": bias})
    changed = changed.model_copy(update={"model": model})
    assert kept(changed) == 2 * (2 * 1024 + numbers) + 4 * 8
    took = kernels(changed, Efficiency(launch_s=1e-7), one())
    one_s = took.layer.weight_s[0] / 16
    assert repeated_s(took, PER_OP)[0] == pytest.approx(units * one_s, abs=0.2 * one_s)


@pytest.mark.parametrize(("has_bias", "operation"), [(False, "mm"), (True, "addmm")])
def test_to_recomputation_a_bias_makes_another_operation(
    has_bias: bool, operation: str
) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import CheckpointPolicy as Policy
    from torch.utils.checkpoint import create_selective_checkpoint_contexts as contexts

    seen = []

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(str(func).split(".")[1])
        return Policy.PREFER_RECOMPUTE

    linear, x = torch.nn.Linear(4, 4, bias=has_bias), torch.ones(2, 4)
    x.requires_grad_()
    torch.utils.checkpoint.checkpoint(
        linear, x, use_reentrant=False, context_fn=lambda: contexts(policy)
    )
    assert [name for name in seen if "mm" in name] == [operation]


def test_flex_attention_holds_what_it_reads() -> None:
    """Its queries and keys, and values where context parallelism has gathered them.

    Compiled by itself, it returns them for its backward. Other kernels, and a compiler
    that has the whole layer, keep its result alone.
    """
    flex = spec("torchtitan", "dense")
    other = spec("torchtitan", "dense", attention="flash2")
    assert kept(flex) == kept(other) + 2 * 2 * 1024
    assert kept(flex, cp=2) == kept(other, cp=2) + 2 * (1024 + 2 * 2 * 1024)
    whole = spec("torchtitan", "dense", compile=True)
    other = spec("torchtitan", "dense", compile=True, attention="flash2")
    assert kept(whole) == kept(other)


@pytest.mark.parametrize(
    ("dispatch", "arrived", "returned"),
    [
        ("alltoall", 2, 2),
        # to those of 4 GPUs that have one or both of its experts, 2 of 8 on each
        ("deepep", 4 * (1 - (6 * 5) / (8 * 7)), 1 / 1.25),
    ],
)
def test_tokens_that_were_sent_to_experts_stay(
    dispatch: str, arrived: float, returned: float
) -> None:
    """DeepEP sends a token once to a GPU, and adds up what experts return for it."""
    found = spec(
        "torchtitan", "experts", expert_dispatch=dispatch, expert_imbalance=1.25
    )
    more = kept(found, ep=4) - kept(found)
    assert more == pytest.approx(2 * 1024 * 1.25 * (arrived + returned))
