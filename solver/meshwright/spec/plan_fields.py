"""The table of plan fields: what each may be, and how it is written and preferred.

`Plan`, `Skeletons` and `Pins` declare these fields with their types. Whatever walks
over fields (pins as rules, `--pin`, `--plan`, text, encoding) reads this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, WithJsonSchema

from meshwright.spec.gpu import PRECISIONS

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

RecomputeMode = Literal["none", "selective", "full"]
Schedule = Literal["1f1b", "gpipe", "zb-h1"]
Offload = Literal["none", "optimizer", "gradients", "parameters"]
"""State that lives in host memory; each value includes those before it."""

RECOMPUTE_MODES: tuple[RecomputeMode, ...] = get_args(RecomputeMode)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
OFFLOADS: tuple[Offload, ...] = get_args(Offload)

NONE, SELECTIVE, FULL = range(len(RECOMPUTE_MODES))
ONE_F_ONE_B, GPIPE, ZERO_BUBBLE_H1 = range(len(SCHEDULES))
KEEPS_ALL, OPTIMIZER, GRADIENTS, PARAMETERS = range(len(OFFLOADS))
"""The numbers that stand for these words in columns, in their order."""

Value = int | str
"""The value of a plan field; flags are numbers too."""


@dataclass(frozen=True)
class PlanField:
    """One field of a plan that is a whole number, a flag, or one of a few words."""

    name: str
    rank: int | None
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


FIELDS = (
    PlanField("tp", rank=6, plain=1, technique="tensor parallelism"),
    PlanField("pp", rank=5, plain=1, technique="pipeline"),
    PlanField("vpp", rank=11, plain=1, beside="pp", technique="interleaving"),
    PlanField("cp", rank=8, plain=1, beside="cp", technique="context parallelism"),
    PlanField("ep", rank=9, plain=1, technique="expert parallelism"),
    PlanField("dp_replicate", rank=7, plain=1),
    PlanField("dp_shard", rank=None, plain=1),
    PlanField("zero", rank=4, plain=0, technique="ZeRO-2 or 3", also_plain=(1,)),
    PlanField("micro_batch", rank=14, prefers_large=True),
    PlanField("microbatches", rank=None),
    PlanField("sequence_parallel", rank=12, plain=False, beside="tp"),
    PlanField(
        "recompute",
        rank=1,
        plain="none",
        words=RECOMPUTE_MODES,
        technique="recomputation",
        frees_memory=True,
    ),
    PlanField(
        "recompute_modules",
        rank=2,
        plain="",
        words=WRITTEN_SETS,
        beside="recompute",
        beside_word="selective",
        frees_memory=True,
    ),
    PlanField(
        "recompute_segment",
        rank=3,
        plain=1,
        beside="recompute",
        beside_word="full",
        frees_memory=True,
    ),
    PlanField(
        "schedule",
        rank=10,
        plain="1f1b",
        words=SCHEDULES,
        beside="pp",
        technique="zero-bubble or GPipe",
    ),
    PlanField(
        "offload",
        rank=0,
        plain="none",
        words=OFFLOADS,
        technique="offload",
        frees_memory=True,
    ),
    PlanField("precision", rank=13, plain="bf16", words=PRECISIONS),
)
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
