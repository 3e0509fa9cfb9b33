"""The `pins` section: plan fields that the user has already decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from meshwright.spec.base import (
    NOT_EMPTY,
    Count,
    CountOrNone,
    Flag,
    LayerCount,
    Problem,
    SpecModel,
    refuse,
)
from meshwright.spec.gpu import Precision
from meshwright.spec.plan_fields import (
    Offload,
    RecomputeMode,
    RecomputeModules,
    Schedule,
)

T = TypeVar("T")


class Range(SpecModel):
    """The whole numbers that a pin accepts: `4`, `[2, 4]`, or `{min: 2, max: 8}`."""

    values: Annotated[tuple[CountOrNone, ...], NOT_EMPTY] | None = None
    min: CountOrNone = 0
    max: CountOrNone = 10_000_000

    @model_validator(mode="after")
    def _check_order(self) -> Range:
        if self.min > self.max:
            refuse([Problem(("min",), self.min, f"is above max {self.max}")])
        return self

    @property
    def single(self) -> int | None:
        """Return the value where only one is accepted."""
        if self.values is not None:
            return self.values[0] if len(set(self.values)) == 1 else None
        return self.min if self.min == self.max else None

    def accepts(self, value: int) -> bool:
        """Return whether the pin accepts a number."""
        if self.values is not None:
            return value in self.values
        return self.min <= value <= self.max

    def __str__(self) -> str:
        """Return the pin as a user would write it."""
        if self.values is not None:
            return written(self.values)
        low = f"min: {self.min}" if self.min else ""
        high = f"max: {self.max}" if self.max < 10_000_000 else ""
        return "{" + ", ".join(filter(None, (low, high))) + "}"


def written(pin: object) -> str:
    """Return the value of a pin as a user would write it."""
    if isinstance(pin, MeshPin):
        return written_mesh({axis: by for axis, by in pin if by is not None})
    if not isinstance(pin, tuple):
        return str(pin).lower() if isinstance(pin, bool) else str(pin)
    shown = [str(value) for value in pin]
    return shown[0] if len(shown) == 1 else "[" + ", ".join(shown) + "]"


def written_mesh(mesh: Mapping[str, Sequence[int]]) -> str:
    """Return the factors of axes as a user would write them."""
    return "{" + ", ".join(f"{axis}: {list(by)}" for axis, by in mesh.items()) + "}"


def _as_range(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | list | dict | Range):
        raise ValueError("expected a whole number, a list, or {min: .., max: ..}")
    if isinstance(value, int):
        return {"values": [value]}
    return {"values": value} if isinstance(value, list) else value


def _as_stage_counts(value: Any) -> Any:
    if isinstance(value, list | tuple) or value in ("all", "any"):
        return value
    raise ValueError("expected all, any, or a list of whole numbers, one per stage")


def _stage_counts_form(value: Any) -> str:
    return "list" if isinstance(value, list | tuple) else "word"


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


RangePin = Annotated[Range, BeforeValidator(_as_range)]
OneOf = Annotated[tuple[T, ...], BeforeValidator(_as_list), NOT_EMPTY]
"""The words that a pin accepts: `full`, or `[selective, full]`."""

StageCounts = Annotated[
    Annotated[Literal["all", "any"], Tag("word")]
    | Annotated[tuple[CountOrNone, ...], NOT_EMPTY, Tag("list")],
    Discriminator(_stage_counts_form),
    BeforeValidator(_as_stage_counts),
]
LayerCounts = Annotated[tuple[LayerCount, ...], NOT_EMPTY]
LevelFactors = Annotated[tuple[Count, ...], NOT_EMPTY]


class MeshPin(SpecModel):
    """For each axis, its factor at each level, innermost level first."""

    tp: LevelFactors | None = None
    cp: LevelFactors | None = None
    dp_shard: LevelFactors | None = None
    dp_replicate: LevelFactors | None = None
    pp: LevelFactors | None = None


class Pins(SpecModel):
    """Decided plan fields; whatever is left out, the solver decides."""

    NOT_MODELLED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("etp", "expert_tensor_parallel"),
        "experts split over the GPUs of tensor parallelism; each GPU has whole ones",
    )

    tp: RangePin | None = None
    pp: RangePin | None = None
    dp: RangePin | None = Field(None, description="dp_replicate x dp_shard.")
    dp_replicate: RangePin | None = None
    dp_shard: RangePin | None = None
    vpp: RangePin | None = None
    cp: RangePin | None = None
    ep: RangePin | None = None
    micro_batch: RangePin | None = Field(None, description="Sequences per GPU group.")
    microbatches: RangePin | None = None
    zero: RangePin | None = None
    sequence_parallel: Flag | None = None
    schedule: OneOf[Schedule] | None = None
    offload: OneOf[Offload] | None = None
    precision: OneOf[Precision] | None = Field(
        None, description="Of those in training.precision."
    )
    recompute: OneOf[RecomputeMode] | None = Field(
        None, description="One mode alone means every layer; see recompute_layers."
    )
    recompute_modules: OneOf[RecomputeModules] | None = Field(
        None,
        description="Parts of a layer that selective repeats: moe_act+layernorm.",
    )
    recompute_segment: RangePin | None = Field(
        None, description="Layers of a segment, of which full keeps one input."
    )
    recompute_layers: StageCounts | None = Field(
        None,
        description="Recomputed layers: all, any (the solver counts), or per stage. "
        "Default: all where recompute is pinned to one mode, else any.",
    )
    layers: LayerCounts | None = Field(
        None, description="Layers of each stage, first stage first."
    )
    mesh: MeshPin | None = None

    @property
    def recomputes_all_layers(self) -> bool:
        """Return whether a recomputing plan must recompute every layer."""
        if self.recompute_layers is not None:
            return self.recompute_layers == "all"
        return self.recompute is not None and len(self.recompute) == 1

    @property
    def stage_recompute(self) -> tuple[int, ...] | None:
        """Return the pinned recomputed layers of each stage, if they are pinned."""
        pinned = self.recompute_layers
        return pinned if isinstance(pinned, tuple) else None
