"""The `training.lora` section: frozen weights, beside small ones that are trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from meshwright.spec.base import NOT_EMPTY, Count, SpecModel

Projection = Literal[
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
]
"""A matrix of a layer, by the name that it has in Llama and in PEFT."""

Target = Projection | Literal["attention", "mlp"]

FrozenWeights = Literal["bf16", "nf4", "int8"]

GROUPS: dict[str, tuple[Projection, ...]] = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _distinct(values: tuple[Target, ...]) -> tuple[Target, ...]:
    return tuple(dict.fromkeys(values))


class Lora(SpecModel):
    """Adapters of low rank beside frozen matrices (Hu et al. 2021, section 4)."""

    rank: Count = Field(16, description="Columns of A and rows of B, PEFT's `r`.")
    targets: Annotated[
        tuple[Target, ...],
        AfterValidator(_distinct),
        BeforeValidator(_as_list),
        NOT_EMPTY,
    ] = Field(
        ("attention", "mlp"),
        description="The matrices that have adapters, all or some of attention and of "
        "MLP or shared experts; routed experts have none.",
    )
    weights: FrozenWeights = Field(
        "bf16",
        description="In which frozen matrices of layers are kept: in 16 bits, or as "
        "bitsandbytes quantises them: nf4 with double quantisation, or int8.",
    )

    @property
    def projections(self) -> frozenset[str]:
        """Return the matrices that have adapters."""
        named = [GROUPS.get(target, (target,)) for target in self.targets]
        return frozenset(name for group in named for name in group)
