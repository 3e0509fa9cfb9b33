"""Selective recomputation that the framework of a spec has for the spec's model."""

from __future__ import annotations

from meshwright.frameworks.base.registry import framework_of, joins_norms
from meshwright.plans.columns import Ints
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
from meshwright.spec.plan_fields import SETS, Pins
from meshwright.spec.spec import Spec


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
