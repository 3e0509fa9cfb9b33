"""The values of plans that rules of users may compare, and the kind of each."""

from __future__ import annotations

import difflib
from enum import Enum

from meshwright.spec.plan_fields import FIELD, FIELDS


class Kind(Enum):
    """What a part of a rule is, in the words of messages."""

    NUMBER = "a number"
    FLAG = "true or false"
    WORD = "a word"
    MANY = "one number for each stage or link"
    LIST = "a list"


OF_SPEC = ("gpus", "seq_len", "global_batch")
"""Numbers of the spec."""

OF_STAGES = ("layers", "recompute_layers", "memory_gib", "host_gib")
"""Numbers that every stage has, first stage first."""

LINKS = "links"
"""Share of the step for which each link is busy."""

OF_STEP = (
    "step_s",
    "mfu",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "usd_per_mtoken",
    "kwh_per_mtoken",
    "train_days",
)
"""Numbers of the whole plan."""

PARTS = (
    "compute",
    "recompute",
    "tp",
    "cp",
    "ep",
    "zero",
    "offload",
    "host",
    "pp",
    "bubble",
    "dp",
    "optimizer",
)
"""Parts of the step, in seconds: `parts.dp`."""

_WORDS = {field.name: field.words for field in FIELDS if field.words}
_FLAGS = {field.name for field in FIELDS if isinstance(field.plain, bool)}

DECISIONS = (*FIELD, "dp", *OF_SPEC)
"""Values that are known before layers are split over stages."""

KINDS = {
    **dict.fromkeys((*DECISIONS, *OF_STEP), Kind.NUMBER),
    **dict.fromkeys(_WORDS, Kind.WORD),
    **dict.fromkeys(_FLAGS, Kind.FLAG),
    **dict.fromkeys((*OF_STAGES, LINKS), Kind.MANY),
    **{f"parts.{name}": Kind.NUMBER for name in PARTS},
}
"""The kind of each value by its name."""


def words_of(name: str) -> tuple[str, ...]:
    """Return the words that a value may be; none where it is no word."""
    return _WORDS.get(name, ())


def near_names(name: str) -> str:
    """Return which names are accepted, the one that was likely meant first."""
    close = difflib.get_close_matches(name[:40], KINDS, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    many = ", ".join((*OF_STAGES, LINKS))
    return (
        f"{hint}accepted: {', '.join(DECISIONS)}; max, min or sum of {many}; "
        f"{', '.join(OF_STEP)}; parts.NAME, of {', '.join(PARTS)}"
    )
