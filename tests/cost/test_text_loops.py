"""Loops of the host over packed texts: what they start, and how long that takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.cost.compute import Kernels, kernels
from meshwright.cost.job import Efficiency
from meshwright.cost.whole_model import job_flops
from meshwright.frameworks.megatron import TEXT_LOOPS
from meshwright.plans.skeletons import CORE_ATTN, MLA_UP_PROJ, Shards
from meshwright.spec.spec import Spec
from tests.cost.test_compute import LATENT, SHAPE
from tests.helpers.repeated import repeated_s

TORCH = "needs PyTorch: pip install -e '.[torch]'"

GPU = {"memory_gib": 80, "memory_gb_s": 3_000, "peak_tflops": {"bf16": 900}}
LEVEL = {"name": "l", "size": 8, "gb_s": 450, "latency_us": 1}
UNFUSED = ["norm", "loss"]
OPERATION_S = 1e-3 / 25


def spec(model: dict[str, Any] | None = None, **training: object) -> Spec:
    """Return a spec of 16 texts of 256 tokens, in loops."""
    usual: dict[str, Any] = {
        "seq_len": 4_096,
        "global_batch": 8,
        "document_tokens": 256,
    }
    usual |= {"text_loops": True, "fused": UNFUSED, "context_exchange": "ulysses"}
    return Spec.model_validate(
        {
            "model": SHAPE | (model or {}),
            "cluster": {"topology": {"gpu": GPU, "levels": [LEVEL]}},
            "framework": "megatron",
            "training": usual | training,
        }
    )


def priced(question: Spec, cp: int = 2, batch: int = 1) -> Kernels:
    one = np.array([1])
    shards = Shards(one, cp * one, one, one, batch * one, np.array([False]))
    return kernels(question, Efficiency(dispatch_s=1e-3), shards)


def seconds(took: Kernels) -> np.ndarray[Any, Any]:
    """Return the host's seconds of both passes, and what it waits for in them."""
    layer = took.layer
    host = layer.dispatch_s, layer.dispatch_backward_s
    return np.concatenate([*host, layer.awaited_s, layer.awaited_backward_s])


def beyond(question: Spec, cp: int = 2, batch: int = 1) -> list[float]:
    """Return the operations that loops add to each of these."""
    without = question.training.model_copy(update={"text_loops": False})
    plain = question.model_copy(update={"training": without})
    more = seconds(priced(question, cp, batch)) - seconds(priced(plain, cp, batch))
    return [round(value, 6) for value in more / OPERATION_S]


@pytest.mark.parametrize(
    ("question", "cp", "operations"),
    [
        # Queries and keys: 13 operations and one for two parts of a text; 11 back.
        (spec(context_exchange="ring"), 2, [28, 22, 28, 0]),
        (spec(context_exchange="ring"), 1, [26, 22, 26, 0]),
        (spec({"mla": LATENT}, context_exchange="ring"), 1, [28, 32, 28, 0]),
        # Three tensors to heads and one back: 2 (3 x 22 + 14); 2 (22 + 3 x 14) back.
        (spec(fused=["rope"]), 2, [160, 128, 160, 128]),
        (spec(fused=["rope"]), 4, [320, 256, 320, 256]),
        (spec(fused=["rope"]), 1, [0, 0, 0, 0]),
        (spec({"alibi": True}), 2, [160, 128, 160, 128]),
        (spec(), 2, [188, 150, 188, 128]),
        (spec(fused=None, context_exchange=None), 2, [0, 0, 0, 0]),
    ],
)
def test_every_text_has_its_operations(
    question: Spec, cp: int, operations: list[int]
) -> None:
    """A sequence of 4,096 tokens has 16 texts of 256."""
    assert beyond(question, cp) == [16 * count for count in operations]
    assert beyond(question, cp, batch=3) == [48 * count for count in operations]


def test_frameworks_without_loops_have_none() -> None:
    other = spec(context_exchange=None).model_copy(update={"framework": "fsdp"})
    assert beyond(other) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("model", "bits", "operations"),
    [
        ({}, CORE_ATTN, 160),
        ({}, MLA_UP_PROJ, 0),
        ({"mla": LATENT}, CORE_ATTN, 160),
        ({"mla": LATENT}, MLA_UP_PROJ, 30),
    ],
)
def test_modules_repeat_their_loops(
    model: dict[str, Any], bits: int, operations: int
) -> None:
    """Positions of latent attention are made again with its projections to heads."""
    question = spec(model)
    without = question.training.model_copy(update={"text_loops": False})
    plain = question.model_copy(update={"training": without})
    more = [repeated_s(priced(one), bits)[0] for one in (question, plain)]
    assert more[0] - more[1] == pytest.approx(16 * operations * OPERATION_S)


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("is_latent", [False, True])
def test_pytorch_starts_as_many_kernels_for_positions(cp: int, is_latent: bool) -> None:
    pytest.importorskip("torch", reason=TORCH)
    from tests.helpers import torch_loops as loops

    def both(texts: int) -> None:
        loops.positions(texts, cp, is_latent).sum().backward()

    counted = TEXT_LOOPS.latent_positions if is_latent else TEXT_LOOPS.positions
    more = TEXT_LOOPS.split_positions * (cp > 1)
    forward = loops.started(lambda texts: loops.positions(texts, cp, is_latent))
    assert 2 * forward == counted.forward + more
    assert 2 * (loops.started(both) - forward) == counted.backward


@pytest.mark.parametrize("cp", [2, 4])
def test_pytorch_starts_as_many_kernels_for_an_exchange(cp: int) -> None:
    pytest.importorskip("torch", reason=TORCH)
    from tests.helpers import torch_loops as loops

    there = loops.started(lambda texts: loops.towards_heads(texts, cp))
    back = loops.started(lambda texts: loops.towards_tokens(texts, cp))
    assert 3 * there + back == cp * TEXT_LOOPS.exchange.forward
    assert there + 3 * back == cp * TEXT_LOOPS.exchange.backward


def test_indices_are_those_of_an_exchange() -> None:
    """Each way undoes the other, for chunks as ranks have them: first and last."""
    pytest.importorskip("torch", reason=TORCH)
    from tests.helpers import torch_loops as loops

    back = loops.towards_tokens(2, 2).tolist()
    assert back == [0, 1, 6, 7, 8, 9, 14, 15, 2, 3, 4, 5, 10, 11, 12, 13]


def test_texts_attend_to_themselves_alone() -> None:
    """A token sees half of its text in the mean: of 16 texts, a sixteenth of keys."""
    packed, whole = spec(), spec(document_tokens=None, text_loops=False)
    one = job_flops(whole) - job_flops(packed)
    tokens = 4_096 * 8
    assert one == pytest.approx(6 * 4 * tokens * (4_096 - 256) / 2 * 2 * 512)
    longer = spec(document_tokens=9_999)
    assert longer.training.texts == 1
    assert job_flops(longer) == job_flops(whole)


def test_a_window_ends_with_its_text() -> None:
    """Of 256 tokens, a window of 128 has 128 - 128^2 / 512 = 96 keys in the mean."""
    narrow, wide = (spec({"attention_window": size}) for size in (128, 0))
    difference = (job_flops(wide) - job_flops(narrow)) / (6 * 4 * 4_096 * 8 * 2 * 512)
    assert difference == pytest.approx(128 - 96)


def test_loops_need_texts() -> None:
    fields = spec().model_dump(mode="json", by_alias=True)
    del fields["training"]["document_tokens"]
    with pytest.raises(mw.SpecError, match=r"without training\.document_tokens"):
        mw.load(fields)
