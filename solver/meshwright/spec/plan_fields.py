"""The fields of a plan, each with all about it, and the pins that decide them.

A field's type, default, codes, technique, rank and text stand in `PlanFields`; what a
pin of it accepts in `Pins`. All other code that goes over fields (columns, `--pin`,
`--plan`, text, encoding) reads these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

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
from meshwright.spec.gpu import PRECISIONS, Precision

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

Module = Literal[
    "core_attn",
    "layernorm",
    "mla_up_proj",
    "moe_act",
    "moe",
    "shared_experts",
    "mlp",
]
"""The core of attention; norms that run as separate kernels; the projections of latent
attention to its heads; the activation function of routed experts; router, routed and
shared experts; the shared experts; the MLP of layers without experts."""

MODULES: tuple[Module, ...] = get_args(Module)

UNLESS_NAMED: Module = "core_attn"
"""The module recomputed where a launch names no modules (megatron-core 0.19.2,
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

RecomputeMode = Literal["none", "selective", "full", "full-cpu"]
"""`full` keeps the inputs of layers on the GPU, `full-cpu` in host memory."""

Schedule = Literal["1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe-v"]
Offload = Literal["none", "optimizer", "gradients", "parameters"]
"""State that lives in host memory; each value includes those before it."""

RECOMPUTE_MODES: tuple[RecomputeMode, ...] = get_args(RecomputeMode)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
OFFLOADS: tuple[Offload, ...] = get_args(Offload)

NONE, SELECTIVE, FULL, FULL_CPU = range(len(RECOMPUTE_MODES))
REPEATS_LAYERS: frozenset[RecomputeMode] = frozenset({"full", "full-cpu"})
"""The modes that repeat layers whole, and keep their inputs alone."""

ONE_F_ONE_B, GPIPE, ZERO_BUBBLE_H1, ZERO_BUBBLE_V, DUALPIPE_V = range(len(SCHEDULES))
MAKES_V: frozenset[str] = frozenset({"zb-v", "dualpipe-v"})
"""The schedules of which each stage has two chunks, the second of which comes back up
the stages."""

KEEPS_ALL, OPTIMIZER, GRADIENTS, PARAMETERS = range(len(OFFLOADS))
"""The numbers that stand for these words in columns, in their order."""

Value = int | str
"""The value of a plan field; flags are numbers too."""


@dataclass(frozen=True)
class PlanField:
    """One field of a plan that is a whole number, a flag, or one of a few words."""

    rank: int | None = None
    """Its rank among the fields by which plans of equal time are ordered.

    Rank 0 is compared first; None for a field that follows from others.
    """
    plain: Value | None = None
    """Its value in the plainest plan; None where no value is plainer than others."""
    technique: str = ""
    """The technique beyond data parallelism that other values make; empty for none."""
    also_plain: tuple[Value, ...] = ()
    """Further values that are no technique."""
    words: tuple[str, ...] = ()
    """The words that it accepts, in the order of their codes; empty for numbers."""
    beside: str = ""
    """This field may differ from its default only where the field `beside` is above 1,
    or has the value `beside_word`."""
    beside_word: str = ""
    """The word that the field `beside` must have; empty for a degree."""
    prefers_large: bool = False
    """Whether large values are preferred to small ones."""
    frees_memory: bool = False
    """Whether it trades time for memory, and changes neither degrees nor groups."""
    after: str = ""
    """The field after which plans name it; empty where the order of fields does."""
    name: str = ""

    @property
    def dtype(self) -> type:
        """Return the type of a column of this field."""
        return bool if isinstance(self.plain, bool) else int

    @property
    def plain_values(self) -> tuple[Value, ...]:
        """Return the values that are no technique; none where no value is plain."""
        return () if self.plain is None else (self.plain, *self.also_plain)

    def is_open(self, other: Value) -> bool:
        """Return whether this field may be anything, given the field `beside` it."""
        if self.beside_word:
            return other == self.beside_word
        return isinstance(other, int) and other > 1

    def encoded(self, value: Value) -> int:
        """Return the number that stands for a value in a column."""
        return self.words.index(str(value)) if self.words else int(value)

    def decoded(self, code: int) -> Value:
        """Return the value that a number of a column stands for."""
        return self.words[code] if self.words else self.dtype(code)


class PlanFields(SpecModel):
    """Every field of a plan that is a number, a flag or a word, with all about it.

    A new field needs a line here, one in `FieldColumns` and one in `FieldPins`.
    """

    tp: Annotated[Count, PlanField(rank=6, plain=1, technique="tensor parallelism")]
    pp: Annotated[Count, PlanField(rank=5, plain=1, technique="pipeline")]
    vpp: Annotated[
        Count, PlanField(rank=11, plain=1, beside="pp", technique="interleaving")
    ] = 1
    cp: Annotated[
        Count, PlanField(rank=8, plain=1, beside="cp", technique="context parallelism")
    ] = 1
    ep: Annotated[Count, PlanField(rank=9, plain=1, technique="expert parallelism")] = 1
    etp: Annotated[
        Count,
        PlanField(
            rank=15, plain=1, beside="etp", technique="expert tensor parallelism"
        ),
    ] = Field(1, description="GPUs that split each expert: 1 unless pinned, or tp.")
    dp_replicate: Annotated[Count, PlanField(rank=7, plain=1)]
    dp_shard: Annotated[Count, PlanField(plain=1)]
    micro_batch: Annotated[Count, PlanField(rank=14, prefers_large=True)] = Field(
        description="Sequences per micro-batch."
    )
    microbatches: Annotated[Count, PlanField()] = Field(
        description="Micro-batches per step."
    )
    zero: Annotated[
        CountOrNone,
        PlanField(
            rank=4, plain=0, technique="ZeRO-2 or 3", also_plain=(1,), after="dp_shard"
        ),
    ] = Field(le=3)
    sequence_parallel: Annotated[Flag, PlanField(rank=12, plain=False, beside="tp")]
    recompute: Annotated[
        RecomputeMode,
        PlanField(
            rank=1,
            plain="none",
            words=RECOMPUTE_MODES,
            technique="recomputation",
            frees_memory=True,
        ),
    ]
    recompute_modules: Annotated[
        RecomputeModules,
        PlanField(
            rank=2,
            plain="",
            words=WRITTEN_SETS,
            beside="recompute",
            beside_word="selective",
            frees_memory=True,
        ),
    ] = Field("", description="Parts of a layer that selective recomputation repeats.")
    recompute_segment: Annotated[
        Count,
        PlanField(
            rank=3, plain=1, beside="recompute", beside_word="full", frees_memory=True
        ),
    ] = Field(1, description="Layers of a segment, of which full keeps one input.")
    schedule: Annotated[
        Schedule,
        PlanField(
            rank=10,
            plain="1f1b",
            words=SCHEDULES,
            beside="pp",
            technique="zero-bubble or GPipe",
        ),
    ]
    offload: Annotated[
        Offload,
        PlanField(
            rank=0,
            plain="none",
            words=OFFLOADS,
            technique="offload",
            frees_memory=True,
        ),
    ] = "none"
    precision: Annotated[
        Precision, PlanField(rank=13, plain="bf16", words=PRECISIONS)
    ] = "bf16"

    @property
    def expert_gpus(self) -> int:
        """Return the number of GPUs that share one copy of the experts."""
        return self.ep * self.etp

    @property
    def expert_key(self) -> int:
        """Return ep, negative where tensor parallelism splits each expert."""
        return self.ep if self.etp == 1 else -self.ep

    @property
    def repeats_layers(self) -> bool:
        """Return whether recomputed layers are repeated whole, from their inputs."""
        return self.recompute in REPEATS_LAYERS

    @property
    def pays_for_memory(self) -> bool:
        """Return whether steps take longer so that GPUs hold less."""
        return self.offload != "none" or self.repeats_layers


def _as_written() -> Iterator[PlanField]:
    """Yield the fields in the order in which plans are written."""
    declared = {
        name: replace(about, name=name)
        for name, field in PlanFields.model_fields.items()
        for about in field.metadata
        if isinstance(about, PlanField)
    }
    for field in declared.values():
        if not field.after:
            yield field
        yield from (late for late in declared.values() if late.after == field.name)


FIELDS = tuple(_as_written())
"""All fields, in the order in which plans are written."""

FIELD = {field.name: field for field in FIELDS}

TECHNIQUES = tuple(field for field in FIELDS if field.technique)
"""The fields that make techniques beyond data parallelism.

Sharded optimizer state (ZeRO-1) comes with data parallelism, and sequence parallelism
with tensor parallelism: they are not counted.
"""

FREEING = tuple(field.name for field in FIELDS if field.frees_memory)
"""The fields in which plans of one family differ."""

AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
"""The axes of the mesh, innermost first where a level holds several."""

BY_PREFERENCE = tuple(
    sorted(
        (field for field in FIELDS if field.rank is not None),
        key=lambda field: field.rank or 0,
    )
)
"""The fields by which plans of equal time are ordered, by rank."""


@dataclass(frozen=True)
class FieldColumns:
    """Every field as a column, with an entry for each of many plans."""

    tp: Ints
    cp: Ints
    dp_shard: Ints
    dp_replicate: Ints
    pp: Ints
    ep: Ints
    etp: Ints
    vpp: Ints
    micro_batch: Ints
    microbatches: Ints
    zero: Ints
    recompute: Ints
    recompute_modules: Ints
    recompute_segment: Ints
    sequence_parallel: Bools
    schedule: Ints
    offload: Ints
    precision: Ints


def way(stages: int, vpp: int, is_v: bool) -> list[tuple[int, int]]:
    """Return the stage and the chunk of every part of the model, in its order.

    The parts go round the stages once for each chunk. In a V every second chunk comes
    back up, so that the first stage has both ends of the model.
    """
    down = range(stages)
    return [
        (stage, chunk)
        for chunk in range(vpp)
        for stage in (reversed(down) if is_v and chunk % 2 else down)
    ]


@cache
def group_size(microbatches: int, stages: int) -> int:
    """Return the least size of groups that leaves no bubble between chunks.

    A group of at least p micro-batches keeps p stages busy until its first one comes
    back for the next chunk. So groups have p or more, and so has the group of what is
    left over (Megatron-LM schedules.py: forward_backward_pipelining_with_interleaving
    refuses any other). Larger groups hold more and are no faster. Fewer than p
    micro-batches are one group.

    PyTorch's m // (m // p) is the same where it divides m: with fewer groups than
    m // p they are larger, with more one has less than p.
    """
    sizes = range(stages, microbatches)
    whole = (n for n in sizes if not 0 < microbatches % n < stages)
    return next(whole, microbatches)


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


def _accepts_some(pin: Range) -> Range:
    if max(pin.values or (pin.max,)) < 1:
        raise ValueError("expected 1 or more")
    return pin


RangePin = Annotated[Range, BeforeValidator(_as_range)]
CountPin = Annotated[RangePin, AfterValidator(_accepts_some)]
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

    tp: CountPin | None = None
    pp: CountPin | None = None
    dp: CountPin | None = Field(None, description="dp_replicate x dp_shard.")
    dp_replicate: CountPin | None = None
    dp_shard: CountPin | None = None
    vpp: CountPin | None = None
    cp: CountPin | None = None
    ep: CountPin | None = None
    etp: CountPin | None = Field(
        None, description="GPUs that split each expert, 1 or tp. Default 1."
    )
    micro_batch: CountPin | None = Field(None, description="Sequences per GPU group.")
    microbatches: CountPin | None = None
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
    recompute_segment: CountPin | None = Field(
        None, description="Layers of a segment, of which full keeps one input."
    )
    attention_dp: CountPin | None = Field(
        None,
        description="Of serving: groups of the tensor group whose attention is of "
        "requests of their own, and whose experts are of all.",
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

    ONLY_SERVING: ClassVar[tuple[str, ...]] = ("attention_dp",)
    """Fields that plans of training do not have."""

    @property
    def recomputes_all_layers(self) -> bool:
        """Return whether a recomputing plan must recompute every layer."""
        if self.recompute_layers is not None:
            return self.recompute_layers == "all"
        return self.recompute is not None and len(self.recompute) == 1

    @property
    def tp_mesh(self) -> tuple[int, ...] | None:
        """Return the pinned factors of tensor parallelism at each level, if any."""
        return None if self.mesh is None else self.mesh.tp

    @property
    def stage_recompute(self) -> tuple[int, ...] | None:
        """Return the pinned recomputed layers of each stage, if they are pinned."""
        pinned = self.recompute_layers
        return pinned if isinstance(pinned, tuple) else None
