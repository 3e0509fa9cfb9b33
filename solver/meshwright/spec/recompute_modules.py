"""The parts of a layer that selective recomputation can repeat by name.

The names are those of Megatron-LM (core/transformer/transformer_config.py,
`recompute_modules`, megatron-core 0.19.2).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, WithJsonSchema

Module = Literal[
    "core_attn",
    "layernorm",
    "mla_up_proj",
    "moe_act",
    "moe",
    "shared_experts",
    "mlp",
]
"""The core of attention; norms that are kernels of their own; the projections of latent
attention to its heads; the activation function of routed experts; router, routed and
shared experts; the shared experts; the MLP of layers without experts."""

MODULES: tuple[Module, ...] = get_args(Module)

UNLESS_NAMED: Module = "core_attn"
"""What is recomputed selectively where a launch names no modules (megatron-core 0.19.2,
transformer_config.py, `__post_init__`)."""

BIT: dict[Module, int] = {name: 1 << place for place, name in enumerate(MODULES)}
"""The bit that stands for a module in a set of modules."""


def _written(bits: int) -> str:
    return "+".join(name for name in MODULES if bits & BIT[name])


SETS: tuple[int, ...] = tuple(
    sorted(range(1 << len(MODULES)), key=lambda bits: (bits.bit_count(), bits))
)
"""All sets of modules as bits, small ones first: the empty set is the plainest."""

WRITTEN_SETS: tuple[str, ...] = tuple(map(_written, SETS))
"""All sets of modules as users write them, `layernorm+moe_act`, in the same order."""


def _in_order(value: Any) -> str:
    """Return a set of modules as it is written, its names in the order of `MODULES`."""
    names = value.replace(" ", "").split("+") if isinstance(value, str) else [""]
    known = [name for name in MODULES if name in names]
    if len(known) != len(names) and value != "":
        told = f"expected names joined by +, of {', '.join(MODULES)}"
        raise ValueError(told)
    return "+".join(known)


RecomputeModules = Annotated[
    str,
    BeforeValidator(_in_order),
    WithJsonSchema({"type": "string", "pattern": r"^([a-z_]+(\+[a-z_]+)*)?$"}),
]
"""A set of modules as text; an empty text is the empty set."""
