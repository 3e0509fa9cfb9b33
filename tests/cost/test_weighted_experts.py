"""Bytes in which PyTorch weights the results of experts, against those predicted."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from meshwright.cost.activations import WEIGHTING_BYTES, weighting_bytes
from meshwright.plans.skeletons import Shards
from meshwright.spec.spec import Spec
from tests.cost.test_torch_activations import CLUSTER, LLAMA, MIXTRAL

COPIES, TOKENS, WIDTH = 1024, 128, 256


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
    data = {
        "model": {**LLAMA, **MIXTRAL},
        "cluster": CLUSTER,
        "framework": framework,
        "training": {"seq_len": 8192, "global_batch": 1, **training},
    }
    ones = np.ones(1, dtype=np.int64)
    shards = Shards(ones, ones, ones, ones, ones, np.zeros(1, dtype=bool))
    assert weighting_bytes(Spec.model_validate(data), shards) == expected
