"""Out of memory: which tensor did not fit, and whether fragments are to blame.

PyTorch prints the size that it could not allocate. The model, the plan and the job have
few tensors of that size: logits of a micro-batch, a gradient buffer, the moments of an
optimizer. What the rank did at the time, by its traceback, tells the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
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
    table_params,
)
from meshwright.cost.state import end_state, layer_state
from meshwright.frameworks.base.framework import StateBytes
from meshwright.frameworks.base.registry import framework_of
from meshwright.imports.logs.training_log import OutOfMemory, Phase
from meshwright.plans.plan import Plan
from meshwright.plans.schedules import schedule_named
from meshwright.results.priced_plan import PricedPlan, StageMemory
from meshwright.spec.base import divisors
from meshwright.spec.model import Model
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
    memory: StageMemory
    """As modelled, of the stage of the rank."""
    stage: int | None
    """The stage of the rank; the fullest one counts where the log does not tell it."""
    is_fragmented: bool
    """Whether memory that PyTorch holds and does not use would have been enough."""

    @property
    def part(self) -> str:
        """Return the part that did not fit: that of the likely tensors together."""
        odds: dict[str, float] = {}
        for one in self.suspects:
            part = one.tensor.part
            odds[part] = odds.get(part, 0.0) + one.probability
        likely = max(odds, key=lambda part: odds[part], default="what fills the GPU")
        return self.filled_by if likely == "what fills the GPU" else likely

    @property
    def filled_by(self) -> str:
        """Return the largest part of the modelled memory."""
        parts = {
            name: gib for name, gib in self.memory.parts.items() if name != "overhead"
        }
        return max(parts, key=lambda name: parts[name])


def tensors(spec: Spec, plan: Plan, each: int = 1) -> Iterator[Tensor]:
    """Yield the tensors that a rank of a plan allocates at once.

    An example has `each` sequences: 2 where answers are compared.
    """
    yield from _logits(spec, plan, each)
    yield from _scores(spec, plan)
    yield from _activations(spec, plan)
    yield from _state(spec, plan)


WIDTHS = {2: "bf16", 4: "fp32"}
"""Bytes of a number, and how it is named."""

PACKED_WIDTHS = {0.5: "4-bit", 1: "8-bit"}
"""The same of frozen weights, whose scales are tensors beside."""


def _logits(spec: Spec, plan: Plan, each: int) -> Iterator[Tensor]:
    # Micro-batches beside a reference count both sequences of a pair.
    counts_both = spec.training.has_reference
    tokens = (1 if counts_both else each) * _tokens(spec, plan)
    vocab, of_pairs = spec.model.vocab, " of pairs" if each > 1 or counts_both else ""
    shares = {1: ""} | ({plan.tp: f", split over {plan.tp}"} if plan.tp > 1 else {})
    chunks = spec.training.loss_chunks or framework_of(spec).loss_chunks or 1
    # An evaluation, or a loss of one's own, need not be in chunks.
    for parts in sorted({1, chunks}):
        what = "one chunk" if parts > 1 else "one micro-batch"
        for share, where in shares.items():
            for width, name in WIDTHS.items():
                gib = tokens * vocab * width / share / parts / GIB
                told = f"{name} logits of {what}{of_pairs}{where}"
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
    experts = float(expert_params(model, np.array([plan.expert_gpus]))[0])
    layer = float(layer_params(model, tp)[0]) + experts
    ends = float(embedding_params(model, tp)[0])
    head = float(head_params(model, tp, np.array([plan.pp]))[0])
    last = 0 if schedule_named(plan.schedule).is_v else plan.pp - 1
    stages = {
        stage.layers * layer + ends * (i == 0) + head * (i == last)
        for i, stage in enumerate(plan.stages)
    }
    shards, state = plan.dp_shard * plan.cp, layer_state(spec)
    for params in sorted(stages):
        yield from _of_block("the whole stage", params, state, plan)
        if shards > 1:
            told = f"one of {shards} shards"
            yield from _of_block(told, params / shards, state, plan)
    yield from _of_block("one layer", layer, state, plan)
    for what, width in _matrices(model).items():
        matrix = model.d_model * width / plan.tp
        yield from _of_block(what, matrix, state, plan)
    table = float(table_params(model, tp)[0])
    yield from _of_block("the embedding", table, end_state(spec), plan)


def _matrices(model: Model) -> dict[str, int]:
    """Return the width of matrices of a layer, whose other side is d_model.

    Megatron Core and GLM's code join the two first matrices of a gated MLP.
    """
    widths = {"one matrix of an MLP": model.d_ff}
    if model.moe is not None:
        widths["one matrix of an expert"] = model.moe.d_ff
    if model.gated_mlp:
        widths |= {
            what.replace("one matrix", "two joined matrices"): 2 * width
            for what, width in widths.items()
        }
    return widths | {"one matrix of queries": query_width(model)}


UNUSUAL = 0.3
"""How likely a framework keeps a number in another width than it usually does."""


def _of_block(
    what: str, params: float, state: StateBytes, plan: Plan
) -> Iterator[Tensor]:
    """Yield weights, gradients and a number of the optimizer of some parameters."""
    packed = {
        w: name for w, name in PACKED_WIDTHS.items() if w <= state.weights < 2 * w
    }
    for size, name in (WIDTHS | packed).items():
        gib = params * size / GIB
        usual = 1.0 if size in (state.weights, *packed) else UNUSUAL
        yield Tensor(f"{name} weights of {what}", "weights", gib, LOADING, False, usual)
        if plan.zero == 3:
            usual = 1.0 if size in (state.gathered, *packed) else UNUSUAL
            told = f"gathered {name} weights of {what}"
            yield Tensor(told, "gathered weights", gib, PASSES, False, usual)
    for size, name in WIDTHS.items():
        gib = params * size / GIB
        is_usual = size in (state.gradients, state.reduced, state.main_gradients)
        usual = 1.0 if is_usual else UNUSUAL
        told = f"{name} gradients of {what}"
        if state.gradients:
            yield Tensor(told, "gradients", gib, BACKWARD, False, usual)
        usual = 1.0 if size == 4 else UNUSUAL
        told = f"{name} state of the optimizer of {what}"
        if not state.is_frozen:
            yield Tensor(told, "optimizer", gib, STEP, False, usual)


def _tokens(spec: Spec, plan: Plan) -> float:
    """Return the tokens of a micro-batch on a rank."""
    return plan.micro_batch * spec.training.seq_len / plan.cp


PRINTED_SD = 0.006
"""Spread of the logarithm of a size: it is printed with two digits behind the point,
rounded up to 2 MiB, and vocabularies and buffers are padded."""

ELSEWHERE = 0.01
"""How likely a tensor is allocated in a phase, or by a line, that is not its usual one.
Some tensor has about any size: of two that match, the traceback decides."""

SHORTER = 0.15
"""How likely a batch is shorter than the longest one."""

MUCH = 1.25
"""Factor by which what is held must differ from what a phase holds to be another."""

UNLISTED = 0.02
"""Prior odds of a tensor that is not listed, against any one that is."""


NAMED: Sequence[tuple[Part, re.Pattern[str]]] = (
    (
        "optimizer",
        re.compile(
            r"exp_avg|initialize_optimizer_states|partition_of_fp32|fp32_groups"
            r"|_init_group|shard_fp32|main_params?\b|foreach_sqrt"
        ),
    ),
    (
        "attention scores",
        re.compile(r"attn_weights|attention_(?:scores|probs)|attn_mask|mask_softmax"),
    ),
    (
        "logits",
        re.compile(
            r"logits|log_?softmax|cross_entropy|logsumexp|lm_head|convert_to_fp32"
            r"|log_?probs?\b|per_token_logps",
            re.IGNORECASE,
        ),
    ),
    (
        "gathered weights",
        re.compile(r"all_gather|_alloc_storage|\bunshard|fetch_sub_module"),
    ),
    (
        "gradients",
        re.compile(r"\bReducer\(|tensors\(grads\)|reduce_bucket|grad_(?:buffer|data)"),
    ),
    (
        "weights",
        re.compile(
            r"from_pretrained|load_model|load_(?:meta_)?state_dict|_state_dict_in"
        ),
    ),
    ("activations", re.compile(r"act_fn\(|gate_proj|down_proj|q_proj|\bmlp\(")),
)
"""Words of lines of source that name the part whose tensor they allocate. accelerate's
`convert_to_fp32` makes a copy of the outputs of the model."""

INNERMOST = 4
"""Lines of a traceback, from the innermost outwards, that are searched for words."""

_SHAPE = re.compile(r"empty_strided\w*\(\(([\w, ]{1,80})\)")
"""The shape of a buffer of a compiled function."""

OF_PHASE: dict[Phase, Part] = {
    "loading": "weights",
    "loss": "logits",
    "log-probabilities": "logits",
    "optimizer step": "optimizer",
}
"""The part that is allocated in a phase which allocates little else."""


def named_part(spec: Spec, plan: Plan, frames: Sequence[str]) -> Part | None:
    """Return the part whose tensor the lines of a traceback allocate, if they tell."""
    for frame in reversed(frames[-INNERMOST:]):
        shaped = _SHAPE.search(frame)
        if shaped and (part := _part_of_shape(spec, plan, shaped[1])):
            return part
        for part, words in NAMED:
            if words.search(frame):
                return part
    return None


def _part_of_shape(spec: Spec, plan: Plan, shape: str) -> Part | None:
    """Return the part that has tensors of a shape, by its last number."""
    last = shape.rstrip(", ").rpartition(",")[2].strip()
    if not last.isdigit():
        return None
    model, width = spec.model, int(last)
    if width * plan.tp >= model.vocab:
        return "logits"
    widths = {model.d_model, model.d_ff // plan.tp, 2 * model.d_ff // plan.tp}
    widths |= {model.moe.d_ff, 2 * model.moe.d_ff} if model.moe else set()
    return "activations" if width in widths else None


def cause(spec: Spec, plan: Plan, priced: PricedPlan, event: OutOfMemory) -> Cause:
    """Return why memory ran out."""
    stage = stage_of(plan, event)
    fullest = max(priced.stages, key=lambda one: one.total_gib)
    memory = fullest if stage is None else priced.stages[stage]
    empty = {name for name, gib in memory.parts.items() if gib == 0}
    lacks = set[str]() if stage is None else empty
    return Cause(
        suspects=tuple(_suspects(spec, plan, memory, event, lacks)),
        memory=memory,
        stage=stage,
        is_fragmented=is_fragmented(event),
    )


def stage_of(plan: Plan, event: OutOfMemory) -> int | None:
    """Return the stage of the rank that ran out; None where the log does not tell it.

    Stages are the outermost dimension of ranks in Megatron-LM
    (core/parallel_state.py: order tp-cp-ep-dp-pp), torchtitan
    (distributed/parallel_dims.py) and DeepSpeed (runtime/pipe/topology.py).
    """
    if event.rank is None or plan.pp == 1 or event.rank >= plan.world_size:
        return None
    return event.rank // (plan.world_size // plan.pp)


MATCHES = 0.5
"""Least weight of a tensor that has the size of a message as it is printed."""


def micro_batch_of(spec: Spec, plan: Plan, event: OutOfMemory) -> int | None:
    """Return the micro-batch whose logits have the size that could not be allocated.

    There is none where a tensor of the plan has it, or no other micro-batch makes one.
    Logits in fp32 are looked for first, and the smallest micro-batch.
    """
    known = tensors(spec, plan, event.each or 1)
    if any(_weight(one, event) > MATCHES for one in known):
        return None
    sequences = plan.micro_batch * plan.microbatches
    for width in sorted(WIDTHS.values(), reverse=True):
        for size in divisors(sequences):
            split = {"micro_batch": size, "microbatches": sequences // size}
            logits = _logits(spec, plan.model_copy(update=split), event.each or 1)
            of_width = (one for one in logits if one.name.startswith(width))
            if any(_weight(one, event) > MATCHES for one in of_width):
                return size
    return None


def is_fragmented(event: OutOfMemory) -> bool:
    """Return whether memory that PyTorch holds unused would have been enough."""
    unused = event.unallocated_gib
    if unused is None or unused < LEAST_FRAGMENTS * event.tried_gib:
        return False
    if unused < LEAST_UNUSED * (event.capacity_gib or 0.0):
        return False
    return unused + (event.free_gib or 0.0) >= event.tried_gib


LEAST_FRAGMENTS = 0.5
"""Least share of an allocation that is unused where fragments are told as the cause:
with less, the GPU is full, and whole segments help for a step or two."""

LEAST_UNUSED = 0.02
"""Least share of the GPU that is unused where fragments are told as the cause: the ends
of segments always are."""

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


def _suspects(
    spec: Spec, plan: Plan, stage: StageMemory, event: OutOfMemory, lacks: set[str]
) -> list[Suspect]:
    """Return the tensors that the message may be about, the likely ones first."""
    named = named_part(spec, plan, event.frames)
    weights: dict[tuple[str, Part], tuple[Tensor, float]] = {}
    for tensor in tensors(spec, plan, event.each or 1):
        weight = _weight(tensor, event) * _in_order(tensor, stage, event)
        weight *= 1.0 if named in (None, tensor.part) else ELSEWHERE
        weight *= ELSEWHERE if tensor.part in lacks else 1.0
        known = weights.get((tensor.name, tensor.part))
        if known is None or weight > known[1]:
            weights[tensor.name, tensor.part] = tensor, weight
    part = named or OF_PHASE.get(event.phase, "what fills the GPU")
    other = Tensor("one that is not listed", part, 0.0, frozenset())
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
