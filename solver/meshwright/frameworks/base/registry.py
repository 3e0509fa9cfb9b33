"""Frameworks by name, their limits, and the facts that specs and frameworks decide.

A limit is what a framework cannot launch: its rules of one name together, and fields
that say which plans it launches. To lift a limit is to accept also what a framework
without limits accepts, so that no plan is lost. Bytes, buffers, kernels and the loss
stay, and plans with and without the limit are compared at equal code.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from meshwright.frameworks.base.framework import (
    ALL_FUSED,
    ALL_LAYERS,
    IN_SEGMENTS,
    LIMITS,
    PER_STAGE,
    Framework,
    LimitingField,
    Partition,
    larger_first,
)
from meshwright.plans.columns import Bools, Ints
from meshwright.plans.plan import most_leading
from meshwright.plans.rule import Rule, holding
from meshwright.plans.skeletons import (
    CHEAP,
    CORE_ATTN,
    LAYERNORM,
    MLA_UP_PROJ,
    MLP,
    MOE,
    MOE_ACT,
    SHARED_EXPERTS,
    Skeletons,
    repeated_bits,
)
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import MAKES_V, NONE, RECOMPUTE_MODES, SETS, Pins
from meshwright.spec.spec import PACKAGE, Spec, added, bundled, framework_names
from meshwright.spec.training import (
    AttentionKernel,
    ContextExchange,
    Fused,
    Overlap,
    Overlaps,
)

KINDS_OF_RULES = ("degree_rules", "plan_rules")


@dataclass(frozen=True)
class Limit:
    """Something that a framework cannot launch, though the mathematics allow it."""

    name: str
    """The name that broken rules have in answers."""
    sentence: str


def limits(
    framework: Framework,
    ideal: Framework,
    concerns: Callable[[Rule], bool] = lambda _rule: True,
) -> tuple[Limit, ...]:
    """Return the limits of a framework that `ideal` does not have.

    `concerns` says which rules matter.
    """
    shared = {rule.holds for rule in (*ideal.degree_rules, *ideal.plan_rules)}
    sentences: dict[str, dict[str, None]] = {}
    for rule in (*framework.degree_rules, *framework.plan_rules):
        if rule.holds not in shared and concerns(rule):
            sentences.setdefault(rule.name, {})[rule.sentence] = None
    of_rules = set(sentences)
    for name, metadata, _ in _limiting_fields(framework, ideal):
        if metadata.name not in of_rules:
            told = metadata.sentence(getattr(framework, name))
            sentences.setdefault(metadata.name, {})[told] = None
    return tuple(Limit(name, "; ".join(told)) for name, told in sentences.items())


def without_limits(
    framework: Framework, names: Container[str], ideal: Framework
) -> Framework:
    """Return a framework that also accepts what `ideal` does, in place of some limits.

    `names` are those of the limits.
    """
    changed: dict[str, Any] = {
        field: lifted
        for field, metadata, lifted in _limiting_fields(framework, ideal)
        if metadata.name in names
    }
    for kind in KINDS_OF_RULES:
        rules: tuple[Rule, ...] = getattr(framework, kind)
        changed[kind] = tuple(
            _relaxed(rule, ideal) if rule.name in names else rule for rule in rules
        )
    return replace(framework, **changed)


def _limiting_fields(
    framework: Framework, ideal: Framework
) -> Iterator[tuple[str, LimitingField, Any]]:
    """Yield the fields that limit a framework, and their values without the limits."""
    for field in fields(Framework):
        metadata = field.metadata.get(LIMITS)
        if metadata is None:
            continue
        value = getattr(framework, field.name)
        lifted = metadata.lifted(value, getattr(ideal, field.name))
        if lifted != value:
            yield field.name, metadata, lifted


def _relaxed(rule: Rule, ideal: Framework) -> Rule:
    """Return a rule that also accepts what the rules of its name in `ideal` accept.

    Without such rules it accepts everything.
    """
    every = (*ideal.degree_rules, *ideal.plan_rules)
    instead = [other for other in every if other.name == rule.name]

    def holds(spec: Spec, rows: Skeletons) -> Bools:
        concerned = [other for other in instead if other.concerns(spec)]
        return rule.holds(spec, rows) | holding(concerned, spec, rows)

    is_inherited = all(other.is_inherited for other in (rule, *instead))
    return replace(rule, holds=holds, is_inherited=is_inherited)


def has_pattern(model: Model) -> bool:
    """Return whether layers of several kinds alternate, beyond those that lead."""
    return model.order.period > 1


def is_whole(model: Model, layers: Sequence[int]) -> bool:
    """Return whether stages hold whole patterns, and the first all leading layers."""
    order = model.order
    counts = [layers[0] - len(order.leading), *layers[1:]]
    return min(counts) > 0 and all(count % order.period == 0 for count in counts)


def whole_patterns(model: Model, stages: int) -> list[int]:
    """Return stages of as many patterns as each other; from the second on of one more.

    The first stage has leading layers, the embedding and most micro-batches in flight.
    """
    order = model.order
    if order.repeats < stages:
        # No stages hold whole patterns: the rule `whole_patterns` says so.
        return larger_first(model, stages)
    each, over = divmod(order.repeats, stages)
    counts = [(each + (0 < stage <= over)) * order.period for stage in range(stages)]
    counts[0] += len(order.leading)
    return counts


def pattern_partition(
    pinned: Sequence[int] | None, partition: Partition | None
) -> Partition:
    """Return how layers of several kinds are split: as pinned, or else evenly.

    A framework's partition may cut patterns: a rule then says so.
    """

    def layers(model: Model, stages: int) -> Sequence[int]:
        if partition is not None:
            return partition.layers(model, stages)
        is_pinned = pinned is not None and len(pinned) == stages
        if is_pinned and pinned is not None and is_whole(model, pinned):
            return pinned
        return whole_patterns(model, stages)

    sentence = "stages hold whole patterns of layers, as evenly as possible"
    if partition is not None:
        sentence = partition.sentence
    return Partition(layers, sentence, "Meshwright's prices")


GENERIC = "generic"
"""The framework of a code base about which nothing is known."""

IDEAL = "ideal"
"""The framework that has no limits."""

COMPILED: Fused = ALL_FUSED - {"loss"}
"""Operations that a compiler fuses to one kernel each."""


@cache
def framework(name: str, lifted: frozenset[str] = frozenset()) -> Framework:
    """Return a framework by the name that a spec gives, without its `lifted` limits."""
    if lifted:
        return without_limits(framework(name), lifted, framework(IDEAL))
    if name in bundled():
        found = import_module(f"{PACKAGE}.{name}").FRAMEWORK
    else:
        found = added()[name].load()
    assert isinstance(found, Framework)
    return found


def kernels_of(name: str) -> str:
    """Return the name of the framework whose kernels one runs, often its name."""
    return framework(name).kernels or name


def framework_published_as(text: str) -> str | None:
    """Return the name of the framework that a text names, None if it names none.

    The longest word decides, since the name of a fork contains that of its origin.
    """
    lower = text.lower()
    found = [
        (len(word), name)
        for name in framework_names()
        for word in framework(name).published_as
        if word in lower
    ]
    return max(found)[1] if found else None


def framework_of(spec: Spec) -> Framework:
    """Return the framework of a spec, without the limits that the spec lifts."""
    return framework(spec.framework, spec.lifted_limits)


def limits_of(spec: Spec) -> tuple[Limit, ...]:
    """Return the limits of a spec's framework that concern the spec."""
    known, ideal = framework(spec.framework), framework(IDEAL)
    return limits(known, ideal, lambda rule: rule.concerns(spec))


def context_exchange_of(spec: Spec) -> ContextExchange:
    """Return how context parallelism communicates: as the spec says, else as usual."""
    return spec.training.context_exchange or context_exchange_as_usual(spec)


def context_exchange_as_usual(spec: Spec) -> ContextExchange:
    """Return how context parallelism communicates unless the spec says otherwise.

    Queries that pick tokens may pick any, so that these are gathered where that is
    possible (Megatron-LM d98e8a6, dsa.py: `cp_comm_type=allgather only`).
    """
    exchanges = framework_of(spec).context_exchanges
    picks = spec.model.picker is not None
    return "gather" if picks and "gather" in exchanges else exchanges[0]


A100_TFLOPS = 500
"""Peak in 16 bits above which a GPU has instructions newer than those of A100: Hopper,
data-centre Blackwell (756 and more) and CDNA 3, not Ada or workstation Blackwell."""


def attention_kernel_of(spec: Spec) -> AttentionKernel:
    """Return the fused kernel of attention: as the spec says, else as usual."""
    said = spec.training.attention
    if said != "flash" and said != "plain":
        return said
    peak = spec.cluster.topology.gpu.peak_tflops
    is_newer = max(peak.bf16 or 0, peak.fp16 or 0) > A100_TFLOPS
    return framework_of(spec).newer_attention if is_newer else "flash2"


def fused_of(spec: Spec) -> Fused:
    """Return the fused operations: as the spec says, else of framework and compiler."""
    said = spec.training.fused
    if said is not None:
        return frozenset(said)
    usual = framework_of(spec).fused
    return usual | COMPILED if spec.training.compile else usual


def stops_recompute(spec: Spec) -> bool:
    """Return whether a recomputed layer leaves out what its backward does not need."""
    training, when = spec.training, framework_of(spec).stops_recompute
    is_able = when == "always" or (when == "compiled" and training.compile)
    return is_able and not training.reentrant


def overlap_of(spec: Spec) -> Overlaps:
    """Return the traffic that hides: as the spec says, else as in its framework."""
    return _overlap(framework_of(spec).overlap, spec.training.overlap)


@lru_cache(maxsize=1024)
def _overlap(usual: Overlaps, asked: Overlap) -> Overlaps:
    """Return the usual traffic that hides, changed as asked."""
    on = {kind for kind, said in asked if (kind in usual if said is None else said)}
    return frozenset(on)


def expert_passes(spec: Spec) -> tuple[float, float]:
    """Return the passes to add the biases of experts and to limit what they activate.

    A compiler adds and limits PyTorch's in one kernel with their activation.
    """
    framework = framework_of(spec)
    if framework.has_torch_experts and "activation" in fused_of(spec):
        return 1.0, 0.0
    return framework.expert_bias_passes, framework.expert_limit_passes


def expert_limit_saved(spec: Spec) -> int:
    """Return the numbers that limiting what experts activate saves, for each of them.

    A compiler limits and activates in one kernel.
    """
    moe = spec.model.moe
    if moe is None or moe.activation_limit is None or "activation" in fused_of(spec):
        return 0
    return framework_of(spec).expert_limit_saved


def holds_heads(spec: Spec) -> bool:
    """Return whether recomputation by operations holds queries, keys and values.

    A compiler that has the whole layer holds the results of attention alone.
    """
    training = spec.training
    is_usual = training.attention == "flash" and not training.compile
    return is_usual and framework_of(spec).has_compiled_attention


def sums_by_index(spec: Spec) -> bool:
    """Return whether PyTorch adds up by index what experts return to a token."""
    is_sent = spec.training.expert_dispatch == "deepep"
    return framework_of(spec).has_torch_experts and not is_sent


def weights_experts_apart(spec: Spec) -> bool:
    """Return whether operations of their own weight the results of experts, in fp32.

    A kernel that does more may weight them: their activation, or DeepEP's that sends
    them back.
    """
    return sums_by_index(spec) and "activation" not in fused_of(spec)


def joins_norms(spec: Spec) -> bool:
    """Return whether norms run with the matmul after them, where one alone does."""
    return framework_of(spec).joins_norms and "norm" in fused_of(spec)


def recompute_scopes(spec: Spec, rows: Skeletons) -> Ints:
    """Return the codes of the recompute scopes of skeletons, (rows,).

    They are those of the framework, or all layers where pins ask for it.
    """
    pinned = spec.pins.recomputes_all_layers
    found = framework_of(spec)
    codes = [
        ALL_LAYERS if pinned else found.recompute_scope(mode).code
        for mode in RECOMPUTE_MODES
    ]
    codes[NONE] = PER_STAGE
    scopes = np.array(codes)[rows.recompute]
    return np.where(rows.recompute_segment > 1, IN_SEGMENTS.code, scopes)


def tries_v(spec: Spec) -> bool:
    """Return whether plans may have stages that make a V: where a pin names it.

    Nobody is known to have published a run with one.
    """
    is_named = not MAKES_V.isdisjoint(spec.pins.schedule or ())
    return framework_of(spec).makes_v and is_named


def pinned_chunks(spec: Spec) -> tuple[int, ...] | None:
    """Return the pinned layers of stages if a framework then takes any chunks of them.

    None where layers are not pinned, or all chunks of the framework are equal.
    """
    return spec.pins.layers if framework_of(spec).has_uneven_chunks else None


def most_leading_parts(
    model: Model, rows: Skeletons, pinned: Sequence[int] | None
) -> Ints:
    """Return the most leading parts of a model that a stage holds, (rows,).

    Interleaved stages hold as many dense layers as their first chunk, one stage after
    another. `pinned` is `pinned_chunks`.
    """
    parts = model.leading_parts
    # Where no plan is legal, all of them are somewhere too.
    most = np.maximum(rows.first_chunk(model.n_layers), -(-parts // rows.pp))
    for vpp in np.unique(rows.vpp).tolist() if pinned is not None and parts else ():
        here = (rows.vpp == vpp) & (rows.pp == len(pinned or ()))
        most[here] = most_leading(pinned or (), vpp, parts) or parts
    return np.where(rows.vpp > 1, np.minimum(most, parts), parts)


def leading_columns(spec: Spec, rows: Skeletons) -> dict[str, Any]:
    """Return the leading parts of the model, and the most of them on a stage."""
    leading = np.full(len(rows), spec.model.leading_parts)
    most = most_leading_parts(spec.model, rows, pinned_chunks(spec))
    return {"leading": leading, "most_leading": most}


def partition_of(spec: Spec) -> Partition | None:
    """Return how layers are split over stages; None where the solver chooses."""
    partition = framework_of(spec).partition
    if not has_pattern(spec.model):
        return partition
    return pattern_partition(spec.pins.layers, partition)


def partitioned_layers(spec: Spec, stages: int) -> Ints | None:
    """Return the layers of each stage where the framework decides them, (stages,)."""
    partition = partition_of(spec)
    if partition is None or stages > spec.model.n_layers:
        return None
    return np.array(partition.layers(spec.model, stages), dtype=np.int64)


def has_norm_apart(spec: Spec, *, before_mlp: bool, is_dense: bool) -> bool:
    """Return whether the norm before attention, or before the MLP, is a kernel apart.

    Transformer Engine fuses a norm into the matmul after it. Megatron-LM has a norm
    apart before latent attention and before experts, whose matmuls read its result
    several times (megatron-core 0.19.2, models/gpt/gpt_layer_specs.py).
    """
    if not joins_norms(spec):
        return True
    return not is_dense if before_mlp else spec.model.mla is not None


def modules_of(spec: Spec) -> int:
    """Return the modules that some layer of the model has, as bits."""
    model, moe = spec.model, spec.model.moe
    has = {
        CORE_ATTN: True,
        LAYERNORM: True,
        MLA_UP_PROJ: model.mla is not None,
        MOE_ACT: moe is not None,
        MOE: moe is not None,
        SHARED_EXPERTS: moe is not None and moe.shared_d_ff > 0,
        MLP: moe is None or model.first_dense_layers > 0,
    }
    return sum(bit for bit, is_there in has.items() if is_there)


def freeing_modules(spec: Spec) -> int:
    """Return the modules that free memory where they are recomputed, as bits.

    The core of fused attention saves no scores, and a norm that is fused into a matmul
    is repeated with the matmul alone.
    """
    is_dense = spec.model.moe is None
    norms = [
        has_norm_apart(spec, before_mlp=at, is_dense=is_dense) for at in (False, True)
    ]
    frees_nothing = 0 if spec.training.stores_scores else CORE_ATTN
    frees_nothing |= 0 if any(norms) else LAYERNORM
    return modules_of(spec) & ~frees_nothing


def recomputed_bits(spec: Spec, rows: Skeletons) -> Ints:
    """Return the parts that a recomputed layer of each row repeats, as bits.

    A row without modules under a framework that has none repeats what `generic` does.
    """
    selective = framework_of(spec).selective
    return repeated_bits(rows, (selective and selective.unnamed) or CHEAP)


def offered_sets(spec: Spec) -> list[int]:
    """Return the codes of `recompute_modules` to try where layers are recomputed.

    In a set every module frees memory that the others keep: router, routed and shared
    experts are all in `moe`. A set also frees memory in the repeated layers; `mlp`
    beside experts, which only the leading layers have, comes with another module.
    """
    selective = framework_of(spec).selective
    if selective is None:
        return []
    kept = ~(freeing_modules(spec) & selective.modules)
    beside_experts = MLP if spec.model.moe is not None else 0

    def is_offered(bits: int) -> bool:
        is_twice = bits & MOE and bits & (MOE_ACT | SHARED_EXPERTS)
        return bool(bits & ~beside_experts) and not (bits & kept or is_twice)

    unnamed = [0] if selective.unnamed else []
    return unnamed + [n for n, bits in enumerate(SETS) if is_offered(bits)]


def as_launched(pins: Pins, spec: Spec, notes: list[str] | None = None) -> Pins:
    """Return a plan with the modules that its framework repeats unless told.

    `notes` gets what is added.
    """
    selective = framework_of(spec).selective
    usual = selective and selective.unless_named
    is_named = pins.recompute_modules or spec.pins.recompute_modules
    if usual is None or pins.recompute != ("selective",) or is_named:
        return pins
    if notes is not None:
        told = f"what {spec.framework} recomputes unless told"
        notes.append(f"--plan: recompute_modules: {usual}, {told}")
    return pins.model_copy(update={"recompute_modules": (usual,)})


def named_sets(spec: Spec) -> list[int]:
    """Return the codes of all sets whose modules the layers of the model have."""
    there = modules_of(spec)
    return [n for n, bits in enumerate(SETS) if bits and bits & ~there == 0]
