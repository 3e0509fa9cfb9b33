"""What experts that are operations of PyTorch take, against what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from meshwright.cost.activations import WEIGHTING_BYTES, layer_of, weighting_bytes
from meshwright.cost.compute import INDEXED_PASSES
from meshwright.cost.job import Efficiency
from meshwright.cost.roofline import GpuRates, gpu_rates
from meshwright.frameworks.torchtitan import FRAMEWORK
from meshwright.loading.load import load_gpu
from meshwright.plans.skeletons import Shards
from meshwright.spec.spec import Spec
from tests.cost.test_torch_activations import CLUSTER, LLAMA, MIXTRAL

COPIES, TOKENS, WIDTH = 1024, 128, 256


def spec_of(
    moe: object, training: dict[str, Any], framework: str = "torchtitan"
) -> Spec:
    fields = {"seq_len": 8192, "global_batch": 1, **training}
    data = {"model": {**LLAMA, "moe": moe}, "cluster": CLUSTER, "training": fields}
    return Spec.model_validate({**data, "framework": framework})


def test_weighting_takes_what_is_predicted() -> None:
    """Operations in fp32, as of torchtitan's dispatchers, and a sum by token."""
    torch = pytest.importorskip("torch")
    results = torch.randn(COPIES, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.rand(COPIES, 1, requires_grad=True)
    token = torch.randint(TOKENS, (COPIES, 1)).expand(-1, WIDTH)
    weighted = (results.float() * weights).to(torch.bfloat16)
    out = torch.zeros(TOKENS, WIDTH, dtype=torch.bfloat16)
    out = out.scatter_add(0, token, weighted)
    del weighted
    gradient = torch.ones_like(out)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        out.backward(gradient)
    events = profile.profiler.kineto_results.events()
    there = accumulate(one.nbytes() for one in events if one.name() == "[memory]")
    assert max(there) / (COPIES * WIDTH) == pytest.approx(WEIGHTING_BYTES, rel=0.05)


@pytest.mark.parametrize(
    ("framework", "training", "expected"),
    [
        ("torchtitan", {}, 2 * 4096 * WEIGHTING_BYTES),
        ("torchtitan", {"expert_dispatch": "deepep"}, 0),
        ("torchtitan", {"fused": ["activation"]}, 0),
        ("megatron", {}, 0),
    ],
)
def test_one_kernel_takes_nothing(
    framework: str, training: dict[str, Any], expected: float
) -> None:
    """Megatron-LM weights in the activation, DeepEP where it sends results back."""
    ones = np.ones(1, dtype=np.int64)
    shards = Shards(ones, ones, ones, ones, ones, np.zeros(1, dtype=bool))
    spec = spec_of(MIXTRAL["moe"], training, framework)
    assert weighting_bytes(spec, shards) == expected


B200 = gpu_rates(load_gpu("--gpu", "b200-sxm-180gb"), "bf16", Efficiency(memory=0.75))


@pytest.mark.parametrize(
    ("shape", "experts", "measured_us"),
    [
        ((128_000, 8192, 5120), 1, 43_140),
        ((128_000, 8192, 5120), 2, 39_488),
        ((128_000, 8192, 5120), 4, 39_189),
        ((128_000, 8192, 5120), 8, 37_701),
        ((128_000, 2048, 7168), 1, 13_065),
        ((128_000, 2048, 7168), 2, 14_900),
        ((128_000, 2048, 7168), 4, 15_824),
        ((128_000, 2048, 7168), 8, 14_967),
    ],
)
def test_grouped_matmuls_take_what_was_measured(
    shape: tuple[int, int, int], experts: int, measured_us: float
) -> None:
    """Forward and backward in bf16 (torchao, prototype/moe_training/README.md)."""
    m, n, k = shape
    one_s = B200.grouped_s(m / experts, n, k)
    assert 3 * experts * one_s * 1e6 == pytest.approx(measured_us, rel=0.2)


def test_sums_by_index_take_what_was_measured() -> None:
    """The backward of a gather (torchao, pull request 4623)."""
    once_s = B200.stream_s(2 * 196_608 * 2048)
    assert INDEXED_PASSES * once_s == pytest.approx(1.848e-3, rel=0.05)


def test_experts_of_the_best_gpus_of_before_multiply_like_others() -> None:
    """No slower kernel of PyTorch is known on H100."""
    h100: GpuRates = gpu_rates(load_gpu("--gpu", "h100-sxm-80gb"), "bf16", Efficiency())
    assert h100.grouped_s(4096, 8192, 5120) == h100.linear_s(4096, 8192, 5120)


RESULTS, INNER, EXPERTS = 512, 288, 8


def limited(inner: Any) -> Any:
    """Return what torchtitan's `swiglu` does for GPT-OSS (models/gpt_oss/moe.py)."""
    import torch

    gate = inner[..., ::2].clamp(max=7.0)
    value = inner[..., 1::2].clamp(min=-7.0, max=7.0)
    active = gate * torch.sigmoid(1.702 * gate)
    return torch.addcmul(active, active, value)


def test_limits_save_what_their_operations_do() -> None:
    """Beside gate and value, an activation without limits saves the activated gate."""
    torch = pytest.importorskip("torch")
    inner = torch.randn(RESULTS, 2 * INNER, dtype=torch.bfloat16, requires_grad=True)
    sizes: dict[int, int] = {}

    def kept(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        result = limited(inner)
    assert result.numel() == RESULTS * INNER
    saved = sum(sizes.values()) / (2 * RESULTS * INNER)
    assert saved == 2 + 1 + FRAMEWORK.expert_limit_saved


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.parametrize(("is_compiled", "size"), [(False, 4), (True, 2)])
def test_weighting_saves_results_before_their_cast_if_compiled(
    is_compiled: bool, size: int
) -> None:
    """For the gradients of the router's weights, as torchtitan weights (`combine`)."""
    torch = pytest.importorskip("torch")
    results = torch.randn(COPIES, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.rand(COPIES, 1, requires_grad=True)
    saved = []

    def weighted(results: Any, weights: Any) -> Any:
        return (results.float() * weights).to(torch.bfloat16)

    if is_compiled:
        weighted = torch.compile(weighted, backend="aot_eager_decomp_partition")

    def kept(tensor: Any) -> Any:
        saved.append(tensor.untyped_storage().nbytes() / (COPIES * WIDTH))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        weighted(results, weights)
    assert max(saved) == size
    training = {"compile": is_compiled}
    assert layer_of(spec_of(MIXTRAL["moe"], training)).weighted_results == size


@pytest.mark.parametrize(
    ("framework", "training", "size"),
    [
        ("torchtitan", {"expert_dispatch": "deepep"}, 2),
        ("megatron", {}, 0),
        ("megatron", {"fused": []}, 4),
    ],
)
def test_results_are_saved_as_they_are_weighted(
    framework: str, training: dict[str, Any], size: int
) -> None:
    """DeepEP's are weighted in 16 bits, Megatron-LM's in the activation of experts."""
    spec = spec_of(MIXTRAL["moe"], training, framework)
    assert layer_of(spec).weighted_results == size


@pytest.mark.parametrize(
    ("limit", "training", "numbers"),
    [(7.0, {}, 3), (None, {}, 0), (7.0, {"fused": ["activation"]}, 0)],
)
def test_what_limits_save_is_there_uncompiled(
    limit: float | None, training: dict[str, Any], numbers: int
) -> None:
    moe = {"n_experts": 8, "top_k": 2, "d_ff": 14336, "activation_limit": limit}
    assert layer_of(spec_of(moe, training)).limited == numbers


def test_passes_of_experts_are_those_of_their_operations() -> None:
    """What `GptOssGroupedExperts` does to biases, and its `swiglu` to inner results.

    Biases are three times as wide as a result: those of gate, value and result.
    """
    torch = pytest.importorskip("torch")
    inner = torch.randn(RESULTS, 2 * INNER, dtype=torch.bfloat16, requires_grad=True)
    biases = torch.randn(EXPERTS, 2 * INNER, dtype=torch.bfloat16, requires_grad=True)
    tokens = torch.full((EXPERTS,), RESULTS // EXPERTS)

    def added() -> Any:
        rows = biases.repeat_interleave(tokens, dim=0, output_size=RESULTS)
        return inner + rows

    plain = 30 / 2 / 3  # read and written by an activation without limits
    bias_passes = (
        3 * _bytes_moved(added, (inner, biases)) / (RESULTS * 2 * INNER) / 2 / 3
    )
    moved = _bytes_moved(lambda: limited(inner), (inner,))
    limit_passes = moved / (RESULTS * INNER) / 2 / 3 - plain
    assert FRAMEWORK.expert_bias_passes == pytest.approx(bias_passes, rel=0.15)
    assert FRAMEWORK.expert_limit_passes == pytest.approx(limit_passes, rel=0.05)


def _bytes_moved(function: Callable[[], Any], inputs: Sequence[Any]) -> float:
    """Return the bytes that operations on large tensors read and write, both passes."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    views = {"slice", "t", "transpose", "expand", "view", "select", "detach"}
    views |= {"new_zeros"}  # which takes no more than a shape from its input
    moved = 0

    def counted(
        mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        nonlocal moved
        out = func(*args, **(kwargs or {}))
        if str(func).split(".")[1] not in views:
            tensors = [one for one in (*args, out) if hasattr(one, "element_size")]
            moved += sum(one.numel() * one.element_size() for one in tensors)
        return out

    counting = type("Counting", (TorchDispatchMode,), {"__torch_dispatch__": counted})
    with counting():
        out = function()
    # The gradient as the matmul of the next layer leaves it.
    gradient = out.detach().clone()
    with counting():
        torch.autograd.grad(out, inputs, gradient)
    return moved
