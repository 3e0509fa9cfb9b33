"""Bytes in which PyTorch weights the results of experts, against those predicted."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from meshwright.cost.activations import WEIGHTING_BYTES, weighting_bytes
from meshwright.plans.skeletons import Shards
from meshwright.spec.spec import Spec
from tests.cost.test_torch_activations import CLUSTER, LLAMA, MIXTRAL

if TYPE_CHECKING:
    import torch

COPIES, TOKENS, WIDTH = 1024, 128, 256


def test_weighting_takes_what_is_predicted() -> None:
    """Operations in fp32, as of torchtitan's dispatchers, and a sum by token."""
    torch = pytest.importorskip("torch")
    results = torch.randn(COPIES, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.rand(COPIES, 1, requires_grad=True)
    token = torch.randint(TOKENS, (COPIES, 1)).expand(-1, WIDTH)
    with _live(torch) as live:
        weighted = (results.float() * weights).to(torch.bfloat16)
        out = torch.zeros(TOKENS, WIDTH, dtype=torch.bfloat16)
        out = out.scatter_add(0, token, weighted)
        del weighted
        gradient, saved = torch.ones_like(out), live.now
        live.peak = 0
        out.backward(gradient)
    assert (live.peak - saved) / (COPIES * WIDTH) == pytest.approx(
        WEIGHTING_BYTES, rel=0.05
    )


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


def _live(torch: Any) -> Any:
    """Return a mode that counts the bytes of tensors that are there."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class Live(TorchDispatchMode):  # type: ignore[misc]
        now = peak = 0

        def __init__(self) -> None:
            super().__init__()
            self.sizes: dict[int, int] = {}

        def __torch_dispatch__(
            self,
            func: Any,
            types: Any,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            for tensor in tree_iter(made):
                if isinstance(tensor, torch.Tensor):
                    self._count(tensor.untyped_storage())
            return made

        def _count(self, storage: torch.UntypedStorage) -> None:
            key = storage._cdata
            if key not in self.sizes:
                self.sizes[key] = storage.nbytes()
                self.now += self.sizes[key]
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._free, key)

        def _free(self, key: int) -> None:
            self.now -= self.sizes.pop(key)

    return Live()
