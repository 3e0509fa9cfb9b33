"""Out of memory: which tensor did not fit, and whether fragments are to blame.

PyTorch prints the size that it could not allocate. The model, the plan and the job have
few tensors of that size: logits of a micro-batch, a gradient buffer, the moments of an
optimizer. What the rank did at the time, by its traceback, tells the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshwright.cost.parameters_and_flops import (
    embedding_params,
    expert_params,
    head_params,
    kv_width,
    layer_params,
    mlp_inputs,
    query_width,
)
from meshwright.cost.state import state_bytes
from meshwright.frameworks.base.framework import StateBytes
from meshwright.frameworks.base.registry import framework_of
from meshwright.imports.logs.training_log import OutOfMemory, Phase
from meshwright.plans.plan import Plan
from meshwright.plans.schedules import schedule_named
from meshwright.results.priced_plan import PricedPlan, StageMemory
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB

Part = Literal[
    "weights", "gradients", "optimizer", "logits", "activations", "attention scores",
    "gathered weights", "what fills the GPU",
]  # fmt: skip
"""The part of training that a tensor belongs to."""

LOADING: frozenset[Phase] = frozenset({"loading", "checkpoint"})
PASSES: frozenset[Phase] = frozenset(
    {"forward", "backward", "evaluation", "log-probabilities", "generation"}
)
LOSS: frozenset[Phase] = frozenset(
    {"loss", "forward", "backward", "evaluation", "log-probabilities"}
)
BACKWARD: frozenset[Phase] = frozenset({"backward"})
STEP: frozenset[Phase] = frozenset({"optimizer step", "loading"})


@dataclass(frozen=True)
class Tensor:
    """A tensor that a run allocates at once."""

    name: str
    part: Part
    gib: float
    phases: frozenset[Phase]
    """When a rank allocates it."""
    varies: bool = False
    """Whether a shorter batch makes it smaller."""
    usual: float = 1.0
    """How likely it has this format."""


@dataclass(frozen=True)
class Suspect:
    """A tensor, and how likely it is what could not be allocated."""

    tensor: Tensor
    probability: float


@dataclass(frozen=True)
class Cause:
    """Why memory ran out."""

    suspects: tuple[Suspect, ...]
    """The likely ones first; none where the log has no size."""
    filled_by: str
    """The largest part of the modelled memory of the fullest stage."""
    is_fragmented: bool
    """Whether memory that PyTorch holds and does not use would have been enough."""
    modelled_gib: float
    """Memory of the fullest stage."""

    @property
    def part(self) -> str:
        """Return the part that did not fit."""
        if self.suspects and self.suspects[0].tensor.part != "what fills the GPU":
            return self.suspects[0].tensor.part
        return self.filled_by


def tensors(spec: Spec, plan: Plan) -> Iterator[Tensor]:
    """Yield the tensors that a rank of a plan allocates at once."""
    yield from _logits(spec, plan)
    yield from _scores(spec, plan)
    yield from _activations(spec, plan)
    yield from _state(spec, plan)


WIDTHS = {2: "bf16", 4: "fp32"}
"""Bytes of a number, and how it is named."""


def _logits(spec: Spec, plan: Plan) -> Iterator[Tensor]:
    tokens, vocab = _tokens(spec, plan), spec.model.vocab
    shares = {1: ""} | ({plan.tp: f", split over {plan.tp}"} if plan.tp > 1 else {})
    chunks = spec.training.loss_chunks or framework_of(spec).loss_chunks or 1
    # An evaluation, or a loss of one's own, need not be in chunks.
    for parts in sorted({1, chunks}):
        what = "one chunk" if parts > 1 else "one micro-batch"
        for share, where in shares.items():
            for width, name in WIDTHS.items():
                gib = tokens * vocab * width / share / parts / GIB
                told = f"{name} logits of {what}{where}"
                yield Tensor(told, "logits", gib, LOSS, varies=True)


def _scores(spec: Spec, plan: Plan) -> Iterator[Tensor]:
    length = spec.training.seq_len
    heads = spec.model.n_heads / plan.tp
    for width, name in WIDTHS.items():
        gib = plan.micro_batch * heads * length * length / plan.cp * width / GIB
        told = f"{name} attention scores of one layer: no fused kernel ran"
        yield Tensor(told, "attention scores", gib, PASSES, varies=True)
        told = f"{name} attention mask of {length:,} x {length:,}: no fused kernel ran"
        mask_gib = plan.micro_batch * length * length / plan.cp * width / GIB
        yield Tensor(told, "attention scores", mask_gib, PASSES, varies=True)


def _activations(spec: Spec, plan: Plan) -> Iterator[Tensor]:
    """Yield inputs and outputs of the matrices of a layer."""
    model, tokens = spec.model, _tokens(spec, plan)
    wide = model.d_ff / plan.tp
    queries = (query_width(model) + 2 * kv_width(model)) / plan.tp
    widths = {
        "hidden states": float(model.d_model),
        "inputs of the second matrix of an MLP": wide,
        "inputs of a gated MLP": wide * mlp_inputs(model),
        "queries, keys and values": queries,
    }
    if model.moe is not None:
        copies = model.moe.top_k
        widths["tokens sent to experts"] = float(copies * model.d_model)
        widths["inputs of the second matrix of experts"] = float(
            copies * model.moe.d_ff
        )
    for what, width in widths.items():
        for size, name in WIDTHS.items():
            gib = tokens * width * size / GIB
            told = f"{what} of a layer, {name}"
            yield Tensor(told, "activations", gib, PASSES, varies=True)


def _state(spec: Spec, plan: Plan) -> Iterator[Tensor]:
    """Yield buffers of parameters, gradients and the optimizer."""
    model, tp = spec.model, np.array([plan.tp])
    layer = float(layer_params(model, tp)[0])
    if model.moe is not None:
        layer += float(expert_params(model, np.array([plan.expert_gpus]))[0])
    ends = float(embedding_params(model, tp)[0])
    head = float(head_params(model, tp, np.array([plan.pp]))[0])
    last = 0 if schedule_named(plan.schedule).is_v else plan.pp - 1
    stages = {
        stage.layers * layer + ends * (i == 0) + head * (i == last)
        for i, stage in enumerate(plan.stages)
    }
    shards, state = plan.dp_shard * plan.cp, state_bytes(spec)
    for params in sorted(stages):
        yield from _of_block("the whole stage", params, state, plan)
        if shards > 1:
            told = f"one of {shards} shards"
            yield from _of_block(told, params / shards, state, plan)
    matrix = model.d_model * model.d_ff / plan.tp
    yield from _of_block("one layer", layer, state, plan)
    yield from _of_block("one matrix of an MLP", matrix, state, plan)
    table = ends or model.vocab * model.d_model / plan.tp
    yield from _of_block("the embedding", table, state, plan)


UNUSUAL = 0.3
"""How likely a framework keeps a number in another width than it usually does."""


def _of_block(
    what: str, params: float, state: StateBytes, plan: Plan
) -> Iterator[Tensor]:
    """Yield weights, gradients and a number of the optimizer of some parameters."""
    for size, name in WIDTHS.items():
        gib = params * size / GIB
        usual = 1.0 if size == state.weights else UNUSUAL
        yield Tensor(f"{name} weights of {what}", "weights", gib, LOADING, False, usual)
        if plan.zero == 3:
            usual = 1.0 if size == state.gathered else UNUSUAL
            told = f"gathered {name} weights of {what}"
            yield Tensor(told, "gathered weights", gib, PASSES, False, usual)
        is_usual = size in (state.gradients, state.reduced, state.main_gradients)
        usual = 1.0 if is_usual else UNUSUAL
        told = f"{name} gradients of {what}"
        yield Tensor(told, "gradients", gib, BACKWARD, False, usual)
        usual = 1.0 if size == 4 else UNUSUAL
        told = f"{name} state of the optimizer of {what}"
        yield Tensor(told, "optimizer", gib, STEP, False, usual)


def _tokens(spec: Spec, plan: Plan) -> float:
    """Return the tokens of a micro-batch on a rank."""
    return plan.micro_batch * spec.training.seq_len / plan.cp


PRINTED_SD = 0.006
"""Spread of the logarithm of a size: it is printed with two digits behind the point,
rounded up to 2 MiB, and vocabularies and buffers are padded."""

ELSEWHERE = 0.05
"""How likely a tensor is allocated in a phase that is not its usual one."""

SHORTER = 0.15
"""How likely a batch is shorter than the longest one."""

MUCH = 1.25
"""Factor by which what is held must differ from what a phase holds to be another."""

UNLISTED = 0.02
"""Prior odds of a tensor that is not listed, against any one that is."""


def cause(spec: Spec, plan: Plan, priced: PricedPlan, event: OutOfMemory) -> Cause:
    """Return why memory ran out."""
    fullest = max(priced.stages, key=lambda stage: stage.total_gib)
    return Cause(
        suspects=tuple(_suspects(spec, plan, fullest, event)),
        filled_by=_largest(fullest),
        is_fragmented=is_fragmented(event),
        modelled_gib=fullest.total_gib,
    )


def is_fragmented(event: OutOfMemory) -> bool:
    """Return whether memory that PyTorch holds unused would have been enough."""
    unused = event.unallocated_gib
    if unused is None or unused < LEAST_FRAGMENTS * event.tried_gib:
        return False
    return unused + (event.free_gib or 0.0) >= event.tried_gib


LEAST_FRAGMENTS = 0.5
"""Least share of an allocation that is unused where fragments are told as the cause:
with less, the GPU is full, and whole segments help for a step or two."""

CONTEXT_GIB = 4.0
"""Most that a process holds beside PyTorch's allocator: its context and libraries."""


def others_gib(event: OutOfMemory) -> float:
    """Return the memory of the GPU that other processes held, 0 where none is seen."""
    capacity, free, ours = event.capacity_gib, event.free_gib, event.in_use_gib
    if not ours and event.allocated_gib is not None:
        ours = event.allocated_gib + (event.unallocated_gib or 0.0) + CONTEXT_GIB
    if capacity is None or free is None or not ours:
        return 0.0
    others = capacity - free - ours
    return others if others > LEAST_OTHERS * capacity else 0.0


LEAST_OTHERS = 0.05
"""Least share of a GPU that others must hold to be told."""


def _largest(stage: StageMemory) -> str:
    parts = {name: gib for name, gib in stage.parts.items() if name != "overhead"}
    return max(parts, key=lambda name: parts[name])


def _suspects(
    spec: Spec, plan: Plan, stage: StageMemory, event: OutOfMemory
) -> list[Suspect]:
    """Return the tensors that the message may be about, the likely ones first."""
    weights: dict[tuple[str, Part], tuple[Tensor, float]] = {}
    for tensor in tensors(spec, plan):
        weight = _weight(tensor, event) * _in_order(tensor, stage, event)
        known = weights.get((tensor.name, tensor.part))
        if known is None or weight > known[1]:
            weights[tensor.name, tensor.part] = tensor, weight
    other = Tensor("one that is not listed", "what fills the GPU", 0.0, frozenset())
    found = [*weights.values(), (other, UNLISTED)]
    whole = math.fsum(weight for _, weight in found)
    told = [Suspect(tensor, weight / whole) for tensor, weight in found]
    return sorted(told, key=lambda one: -one.probability)


def _in_order(tensor: Tensor, stage: StageMemory, event: OutOfMemory) -> float:
    """Return how likely a tensor is allocated where so much is held already.

    Weights come first, then gradients, then the state of the optimizer. Who holds much
    more than all weights is past them, and who holds less than them is not.
    """
    held, weights = event.allocated_gib, stage.parts["weights"]
    if held is None or event.phase:
        return 1.0
    both = weights + stage.parts["gradients"]
    least, most = {
        "weights": (0.0, weights),
        "gradients": (weights, both),
        "optimizer": (weights, math.inf),
    }.get(tensor.part, (weights, math.inf))
    return 1.0 if least / MUCH < held < most * MUCH else ELSEWHERE


def _weight(tensor: Tensor, event: OutOfMemory) -> float:
    """Return how likely a message has the size and the phase that it has."""
    if tensor.gib <= 0 or event.tried_gib <= 0:
        return 0.0
    at_time = 1.0 if not event.phase or event.phase in tensor.phases else ELSEWHERE
    off = math.log(event.tried_gib / tensor.gib)
    exact = math.exp(-((off / PRINTED_SD) ** 2) / 2)
    shorter = SHORTER * UNLISTED if tensor.varies and -2 < off < 0 else 0.0
    return at_time * tensor.usual * (exact + shorter)
