"""Numbers that papers and back-of-envelope arithmetic give, met by the formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import catalog
from meshwright.check.check import broken_rules, check
from meshwright.cost.job import make_job
from meshwright.cost.state import sharded_bytes, state_bytes
from meshwright.cost.traffic import all_gather_s, all_reduce_s
from meshwright.cost.whole_model import layer_matmul_params, step_flops, total_params
from meshwright.frameworks.base.framework import StateBytes
from meshwright.loading.load import load_spec
from meshwright.planner.solve import solve
from meshwright.plans.plan import Plan, Stage
from meshwright.plans.skeletons import Sharding
from meshwright.spec.cluster import Cluster
from meshwright.spec.plan_fields import AXES
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import LevelFabric, Meshes
from meshwright.topology.groups import (
    DP_REPLICATE,
    DP_SHARD,
    TP,
    group_loads,
    price_groups,
)
from tests.helpers.margin import with_margin

ONE_NODE = "llama2-13b-8xa100"
GB = 1e9


def bundled(kind: str, name: str) -> dict[str, Any]:
    data: dict[str, Any] = catalog.read(catalog.locate(kind, name, Path())).data
    return data


def with_framework(name: str, framework: str, **training: object) -> Spec:
    data: dict[str, Any] = load_spec(name).model_dump()
    data["framework"] = framework
    data["training"] |= training
    return Spec.model_validate(data)


@pytest.mark.parametrize(
    ("framework", "training", "expected"),
    [
        # Rajbhandari et al. 2019, section 3.1: 2 + 2 + 12 (weight copy, two moments).
        ("deepspeed", {}, (2, 2, 12)),
        # Megatron-LM docs, distributed optimizer: bf16 weights, fp32 gradients, 12.
        ("megatron", {}, (2, 4, 12)),
        # PyTorch FSDP2 MixedPrecisionPolicy: fp32 weights and gradients, two moments.
        ("torchtitan", {}, (4, 4, 8)),
        ("fsdp", {}, (4, 4, 8)),
        # All in fp32: 4 + 4 + 8; one momentum is 4.
        ("deepspeed", {"precision": "fp32"}, (4, 4, 8)),
        ("deepspeed", {"optimizer": "sgd"}, (2, 2, 8)),
        ("megatron", {"precision": "fp32", "optimizer": "sgd"}, (4, 4, 4)),
    ],
)
def test_state_bytes_per_parameter(
    framework: str, training: dict[str, object], expected: tuple[int, int, int]
) -> None:
    state = state_bytes(with_framework(ONE_NODE, framework, **training))
    assert (state.weights, state.gradients, state.optimizer) == expected


def test_state_of_7b_and_70b() -> None:
    """16 B a parameter: 7e9 x 16 = 112 GB, 70e9 x 16 = 1,120 GB.

    The presets have 6.738 and 68.977 billion: 107.8 and 1,103.6 GB.
    """
    state = state_bytes(load_spec(ONE_NODE))
    assert state.total * 7e9 == 112 * GB
    assert state.total * 70e9 == 1120 * GB
    for preset, billions, gb in (("7b", 6.738416, 107.815), ("70b", 68.976648, 1103.6)):
        data: dict[str, Any] = load_spec(ONE_NODE).model_dump()
        model = bundled("specs/models", f"llama2-{preset}")
        found = Spec.model_validate(data | {"model": model})
        assert total_params(found.model) == pytest.approx(billions * 1e9, rel=1e-6)
        held = state_bytes(found).total * total_params(found.model)
        assert held == pytest.approx(gb * GB, rel=1e-4)


def held_gb(params: float, zero: int, shard: int) -> float:
    state = StateBytes(2, 2, 12, 2, 2)
    parts = sharded_bytes(state, Sharding(np.array([zero]), np.array([shard])))
    return float(params * sum(part[0] for part in parts) / GB)


@pytest.mark.parametrize(
    ("zero", "gb"),
    [
        (0, 208.0),  # 13 x 16
        (1, 71.5),  # 13 x (2 + 2 + 12 / 8)
        (2, 48.75),  # 13 x (2 + (2 + 12) / 8)
        (3, 26.0),  # 13 x 16 / 8
    ],
)
def test_13b_on_eight_gpus(zero: int, gb: float) -> None:
    assert held_gb(13e9, zero, 8) == pytest.approx(gb, rel=1e-12)


@pytest.mark.parametrize(
    ("zero", "gb"),
    [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)],
)
def test_figure_1_of_zero(zero: int, gb: float) -> None:
    """Rajbhandari et al. 2019, figure 1: 7.5B parameters, 64 GPUs, K = 12.

    It prints 120, 31.4, 16.6 and 1.9 GB.
    """
    assert held_gb(7.5e9, zero, 64) == pytest.approx(gb, abs=0.05)


def test_13b_needs_sharding_on_one_node() -> None:
    """Data parallelism alone: 260 GB a GPU under ZeRO-0, of 77.6 GiB = 83.3 GB usable.

    DeepSpeed adds fp32 sums of gradients to the 16 B of a parameter. ZeRO-3 has copies
    in their place, which the update makes when activations are gone: it holds 26 GB.
    """
    alone = ["tp=1", "pp=1"]
    unsharded = solve(with_margin(load_spec(ONE_NODE, [*alone, "zero=0"])))
    assert unsharded.status == "infeasible"
    assert unsharded.near_miss is not None
    (rule,) = unsharded.near_miss.broken_rules
    assert rule.rule == "memory"
    assert rule.have == pytest.approx(77.6)
    # 13.016e9 x 20 B = 242.44 GiB of state, and some activations on top.
    assert rule.need is not None
    assert 242.44 < rule.need < 242.44 + 15
    assert unsharded.near_miss.memory is not None
    parts = unsharded.near_miss.memory.parts
    held = parts["weights"] + parts["gradients"] + parts["optimizer"]
    assert held == pytest.approx(13_015_864_320 * 20 / 2**30, rel=1e-9)

    sharded = solve(with_margin(load_spec(ONE_NODE, [*alone, "zero=3"])))
    assert sharded.status == "optimal"
    assert sharded.best is not None
    (stage,) = sharded.best.stages
    held = sum(stage.parts[n] for n in ("weights", "gradients", "optimizer"))
    assert held == pytest.approx(13_015_864_320 * 16 / 8 / 2**30, rel=1e-9)
    assert sharded.best.plan.dp_shard == 8


def reduce_s(n: int, s_per_byte: float, whole: float = 14 * GB) -> float:
    columns = np.array([whole]), np.array([n]), np.array([s_per_byte]), np.array([0.0])
    return float(all_reduce_s(*columns)[0])


@pytest.mark.parametrize("n", [64, 256, 1024, 4096])
def test_ring_all_reduce_of_7b_gradients_takes_two_seconds(n: int) -> None:
    """2 (n - 1) / n x 14 GB / 12.5 GB/s, towards 2.24 s (Thakur et al. 2005)."""
    took = reduce_s(n, 1 / 12.5e9)
    assert took == pytest.approx(2.24 * (n - 1) / n, rel=1e-12)
    assert took == pytest.approx(2.2, rel=0.025)


def mesh(**axes: tuple[int, ...]) -> Meshes:
    return np.array([[axes.get(axis, (1, 1)) for axis in AXES]])


def a100_pod(nodes: int, memory_gib: float = 80) -> dict[str, Any]:
    """Return nodes of eight A100 behind one 100 Gbit/s port, 12.5 GB/s, each."""
    gpu = bundled("topologies/gpus", "a100-sxm-80gb") | {"memory_gib": memory_gib}
    topology = bundled("topologies", "a100-pod-100g") | {"gpu": gpu}
    return {"topology": topology, "count": nodes}


def shared_adapter(nodes: int) -> LevelFabric:
    return LevelFabric(Cluster.model_validate(a100_pod(nodes)).levels)


def test_one_ring_through_a_shared_adapter_takes_two_seconds() -> None:
    """tp 1: one ring over all 8 x 32 GPUs crosses each port once, 2.24 s at most.

    Its bytes pass the port once whatever the number of GPUs behind it, so 14 GB of
    gradients on each GPU cost what they cost one GPU with that port to itself.
    """
    fabric = shared_adapter(32)
    paths = price_groups(fabric, mesh(dp_replicate=(8, 32)))
    rate = float(paths.s_per_byte[0, DP_REPLICATE])
    assert rate == pytest.approx(1 / 12.5e9, rel=1e-12)
    loads = group_loads(fabric, mesh(dp_replicate=(8, 32))[0], 1)
    assert fabric.link_names[loads[DP_REPLICATE].argmax()] == "nvlink0 -> nic0"
    assert reduce_s(256, rate) == pytest.approx(2.24 * 255 / 256, rel=1e-12)


def test_eight_rings_through_a_shared_adapter_take_eight_times_that() -> None:
    """ZeRO inside the node, replicas across: 8 rings of 32, one port, 8 / 12.5e9.

    Each reduces its eighth of 14 GB: 2 x 31 / 32 x 1.75 GB x 8 / 12.5 GB/s = 2.17 s.
    Unsharded they would carry 14 GB each: 17.4 s. Under tp 8 it is the same.
    """
    fabric = shared_adapter(32)
    hybrid = price_groups(fabric, mesh(dp_shard=(8, 1), dp_replicate=(1, 32)))
    rate = float(hybrid.s_per_byte[0, DP_REPLICATE])
    assert rate == pytest.approx(8 / 12.5e9, rel=1e-12)
    assert reduce_s(32, rate, 14 * GB / 8) == pytest.approx(2.17, rel=1e-3)
    assert reduce_s(32, rate) == pytest.approx(17.36, rel=1e-3)
    tensor = price_groups(fabric, mesh(tp=(8, 1), dp_shard=(1, 32)))
    assert tensor.s_per_byte[0, DP_SHARD] == pytest.approx(8 / 12.5e9, rel=1e-12)
    assert tensor.s_per_byte[0, TP] == pytest.approx(1 / 300e9, rel=1e-12)


def test_step_end_of_7b_over_a_shared_adapter() -> None:
    """A whole plan: DDP of Llama 2 7B over 8 x 8 GPUs, all-reduce of 13.48 GB.

    Rated, 2 x 63 / 64 x 13.48 GB / 12.5 GB/s = 2.12 s on the port; the step end is
    what 70 % overlap with the backward leaves, at 80 % of the rate: 0.3 x 2.65 s or
    more, and no more than all of it.
    """
    data: dict[str, Any] = load_spec(ONE_NODE).model_dump() | {
        "model": bundled("specs/models", "llama2-7b"),
        "cluster": a100_pod(8, memory_gib=200),
        "pins": {"tp": 1, "pp": 1, "cp": 1, "zero": 0},
    }
    outcome = solve(Spec.model_validate(data))
    assert outcome.best is not None
    (load,) = outcome.best.links
    assert load.link == "nvlink0 -> nic0"
    gb = 2 * 63 / 64 * 6_738_415_616 * 2 / GB
    assert load.gb == pytest.approx(gb, rel=1e-9)
    assert load.seconds == pytest.approx(gb / 12.5, rel=1e-9)
    assert 0.3 * gb / 10 * 0.999 <= outcome.best.time_parts["dp"] <= gb / 10


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 64), (8, 8), (8, 16)])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_bubble_of_even_stages(p: int, m: int, schedule: str) -> None:
    """(p - 1) / (m + p - 1) of the pipeline's time (Narayanan et al. 2021, 2.2).

    The paper has (p - 1) / m of the ideal time m (f + b). Stages are even up to the
    ends: a table of two rows and links without latency leave 0.2 % at most.
    """
    spec = Spec.model_validate(
        {
            "model": {
                "n_layers": 64,
                "d_model": 8192,
                "n_heads": 64,
                "d_ff": 32768,
                "vocab": 2,
                "bias": "none",
                "tied_embeddings": False,
            },
            "cluster": {
                "topology": {
                    "gpu": {
                        "memory_gib": 1e5,
                        "memory_gb_s": 2000,
                        "peak_tflops": {"bf16": 300},
                    },
                    "levels": [{"name": "l", "size": p, "gb_s": 1e5, "latency_us": 0}],
                }
            },
            "framework": "torchtitan",
            "training": {"seq_len": 4096, "global_batch": m},
        }
    )
    plan = Plan(
        tp=1,
        pp=p,
        dp_replicate=1,
        dp_shard=1,
        micro_batch=1,
        microbatches=m,
        zero=0,
        sequence_parallel=False,
        recompute="none",
        schedule="gpipe" if schedule == "gpipe" else "1f1b",
        stages=tuple(Stage(layers=64 // p, recompute_layers=0) for _ in range(p)),
        mesh={axis: (p if axis == "pp" else 1,) for axis in AXES},
    )
    job = make_job(spec)
    assert broken_rules(job, plan) == []
    priced = check(job, plan)
    ends = priced.time_parts["dp"] + priced.time_parts["optimizer"]
    # The host needs 10 ms between steps, in which the pipeline stands still.
    assert priced.time_parts["host"] == pytest.approx(0.01)
    pipeline_s = priced.step_s - ends - priced.time_parts["host"]
    bubble = priced.time_parts["bubble"]
    assert bubble / pipeline_s == pytest.approx((p - 1) / (m + p - 1), rel=2e-3)
    assert bubble / (pipeline_s - bubble) == pytest.approx((p - 1) / m, rel=2e-3)
    assert priced.schedule_s == pytest.approx(priced.step_s, rel=2e-3)


GPTS = ["gpt3-175b-1024xa100", "gpt-1.3b-2xa100-pcie", "mpt-30b-512xh100"]


@pytest.mark.parametrize("name", GPTS)
def test_flops_are_those_of_narayanan(name: str) -> None:
    """Narayanan et al. 2021, appendix: 72 B s l h^2 (1 + s / 12 h + V / 12 l h).

    That is eq. 3 without recomputation, its s / 6 h halved for the causal mask.
    """
    spec = load_spec(name)
    model, s = spec.model, spec.training.seq_len
    batch, h, layers = spec.training.global_batch, model.d_model, model.n_layers
    whole = 72.0 * batch * s * layers * h**2
    whole *= 1 + s / (12 * h) + model.vocab / (12 * layers * h)
    assert step_flops(model, s, batch) == pytest.approx(whole, rel=1e-12)


def test_flops_of_gpt3_training() -> None:
    """Brown et al. 2020, table D.1: 3.14e23 FLOPs over 300e9 tokens, 6 N a token.

    Attention, which 6 N leaves out, adds s / 12 h = 1.4 %.
    """
    model = load_spec("gpt3-175b-1024xa100").model
    per_token = step_flops(model, 2048, 1) / 2048
    assert per_token * 300e9 == pytest.approx(3.14e23, rel=0.02)
    assert 6 * total_params(model) * 300e9 == pytest.approx(3.14e23, rel=0.005)


@pytest.mark.parametrize(
    "name",
    ["llama2-13b-8xa100", "llama3-70b-128xa100", "llama3-405b-16384xh100", *GPTS],
)
def test_flops_are_six_per_parameter_and_token(name: str) -> None:
    """6 N D (Kaplan et al. 2020, section 2.1), N being the weights of matmuls.

    Without attention the FLOPs per token are 6 N exactly; at these lengths attention
    adds 6 s l q, under 15 % of it.
    """
    spec = load_spec(name)
    model, s = spec.model, spec.training.seq_len
    matmul = model.n_layers * layer_matmul_params(model) + model.vocab * model.d_model
    # What takes no part: positions and an untied input table (look-ups), and norms
    # and biases, about 1 / h of the rest.
    lookups = model.learned_positions * model.d_model
    lookups += 0 if model.tied_embeddings else model.vocab * model.d_model
    assert matmul + lookups == pytest.approx(total_params(model), rel=6e-4)
    per_token = step_flops(model, s, 7) / (7 * s)
    attention = 6 * s * model.n_layers * model.n_heads * model.head_dim
    assert per_token == pytest.approx(6 * matmul + attention, rel=1e-12)
    assert 6 * matmul < per_token < 1.15 * 6 * matmul


def test_flops_of_llama_3_405b_pretraining() -> None:
    """Grattafiori et al. 2024 (arXiv 2407.21783), section 1: 3.8e25 FLOPs.

    15.6e12 tokens of sequences of 8,192: 6 N D = 3.80e25.
    """
    model = load_spec("llama3-405b-16384xh100").model
    flops = step_flops(model, 8192, 1) / 8192 * 15.6e12
    assert 6 * total_params(model) * 15.6e12 == pytest.approx(3.8e25, rel=0.005)
    assert flops == pytest.approx(3.8e25, rel=0.05)


def test_all_gather_of_zero3_weights() -> None:
    """26 GB of 13B bf16 weights inside one A100 node: 7 / 8 x 26 GB / 300 GB/s."""
    columns = np.array([26 * GB]), np.array([8]), np.array([1 / 300e9]), np.array([0.0])
    assert all_gather_s(*columns)[0] == pytest.approx(75.83e-3, rel=1e-3)


def test_inputs_on_the_host_free_what_accelerate_measured() -> None:
    """A million tokens of Qwen3-0.6B on 8 H100: 27.9 GB without it, 20.8 GB with it.

    The step was 0.6 % longer (huggingface/accelerate pull request 4175). 28 inputs of
    131,072 tokens x 1,024 x 2 bytes are 7.5 GB.
    """
    spec: dict[str, Any] = {
        "model": "qwen3-0.6b",
        "cluster": {"topology": "dgx-h100"},
        "framework": "fsdp",
        "training": {
            "seq_len": 2**20, "global_batch": 1, "attention": "cudnn",
            "loss_chunks": 16, "master_weights": "none",
        },
    }  # fmt: skip
    pins = {"cp": 8, "zero": 3, "offload": "none"}
    kept, left = (
        solve(mw.load(spec | {"pins": pins | {"recompute": mode}}, Spec)).best
        for mode in ("full", "full-cpu")
    )
    assert kept is not None
    assert left is not None
    here, there = (sum(one.stages[0].parts.values()) * 2**30 for one in (kept, left))
    assert here - there == pytest.approx((27.9 - 20.8) * GB, rel=0.06)
    assert 1 <= left.step_s / kept.step_s < 1.006
