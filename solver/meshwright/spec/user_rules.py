"""The `rules` section: conditions on plans that the user writes as expressions.

Names of values, their kinds and the check of kinds come first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema

from meshwright.reading.expression import (
    Arithmetic,
    BadExpression,
    Call,
    Compared,
    Comparison,
    Constant,
    Joined,
    Many,
    Negative,
    Node,
    Not,
    at_character,
    parse_expression,
)
from meshwright.reading.expression import (
    Field as NamedField,
)
from meshwright.spec.base import Problem, SpecModel
from meshwright.spec.plan_fields import FIELD, FIELDS


class Kind(Enum):
    """The kind of a part of a rule, in the words of messages."""

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
    """Return the accepted names, the one that was likely meant first."""
    close = difflib.get_close_matches(name[:40], KINDS, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    many = ", ".join((*OF_STAGES, LINKS))
    return (
        f"{hint}accepted: {', '.join(DECISIONS)}; max, min or sum of {many}; "
        f"{', '.join(OF_STEP)}; parts.NAME, of {', '.join(PARTS)}"
    )


@lru_cache(maxsize=1_000)
def read_rule(text: str) -> Node:
    """Return the tree of a rule whose names and kinds go together.

    Raises:
        BadExpression: says what is wrong, where, and what is accepted.
    """
    tree = parse_expression(text)
    kind = kind_of(tree)
    if kind is not Kind.FLAG:
        raise BadExpression(
            f"at character {tree.at}: is {kind.value}; expected a comparison"
        )
    return tree


def fields_of(node: Node) -> Iterator[NamedField]:
    """Yield the values that an expression compares, from left to right."""
    if isinstance(node, NamedField):
        yield node
    for part in parts_of(node):
        yield from fields_of(part)


def parts_of(node: Node) -> tuple[Node, ...]:
    """Return the parts of an expression, from left to right."""
    match node:
        case Joined(operands=parts) | Compared(operands=parts):
            return parts
        case Many(items=parts) | Call(arguments=parts):
            return parts
        case Not(operand=part) | Negative(operand=part):
            return (part,)
        case Arithmetic(left=left, right=right):
            return (left, right)
    return ()


def kind_of(node: Node) -> Kind:
    """Return the kind of a part of a rule.

    Raises:
        BadExpression: it compares what cannot be compared.
    """
    match node:
        case Constant(value=value):
            is_text = Kind.WORD if isinstance(value, str) else Kind.NUMBER
            return Kind.FLAG if isinstance(value, bool) else is_text
        case NamedField():
            return _kind_of_name(node)
        case Negative(operand=operand):
            return _number(operand)
        case Arithmetic(left=left, right=right):
            kinds = (_number(left), _number(right))
            return Kind.MANY if Kind.MANY in kinds else Kind.NUMBER
        case Call():
            return _kind_of_call(node)
        case Many(items=items):
            for item in items:
                if not isinstance(item, Constant | Negative):
                    raise _bad(item, "expected numbers or 'text' in a list")
            return Kind.LIST
        case Not(operand=operand):
            return _flag(operand)
        case Joined(operands=operands):
            for operand in operands:
                _flag(operand)
            return Kind.FLAG
        case Compared():
            sides = [_Side(operand, kind_of(operand)) for operand in node.operands]
            for operation, pair in zip(node.operations, pairwise(sides), strict=True):
                _refuse_unlike(operation, *pair)
            return Kind.FLAG
    raise _bad(node, "expected a comparison")


def _kind_of_name(node: NamedField) -> Kind:
    kind, index = KINDS.get(node.name), node.index
    if kind is None:
        raise _bad(node, f"no value {node.name[:40]!r}; {near_names(node.name)}")
    if index is None:
        return kind
    if node.name == LINKS and isinstance(index, str):
        return Kind.NUMBER
    if node.name in OF_STAGES and isinstance(index, int):
        return Kind.NUMBER
    accepted = f"{OF_STAGES[0]}[0] is the first stage, {LINKS}['name'] a link"
    raise _bad(node, f"{node.text[:40]!r} is no value; {accepted}")


def _kind_of_call(node: Call) -> Kind:
    kinds = [_number(argument) for argument in node.arguments]
    if kinds == [Kind.MANY] or (len(kinds) > 1 and Kind.MANY not in kinds):
        return Kind.NUMBER
    told = f"expected {node.function} of {', '.join(OF_STAGES)} or {LINKS}, or of "
    raise _bad(node, told + "several numbers")


def _number(node: Node) -> Kind:
    kind = kind_of(node)
    if kind not in (Kind.NUMBER, Kind.MANY):
        raise _bad(node, f"{node.text[:40]} is {kind.value}; expected a number")
    return kind


def _flag(node: Node) -> Kind:
    kind = kind_of(node)
    if kind is not Kind.FLAG:
        told = f"{node.text[:40]} is {kind.value}; expected a comparison"
        raise _bad(node, told)
    return kind


class _Side(NamedTuple):
    """One side of a comparison, and what it is."""

    node: Node
    kind: Kind

    @property
    def text(self) -> str:
        return self.node.text[:40]


def _refuse_unlike(operation: Comparison, left: _Side, right: _Side) -> None:
    """Refuse a comparison of two values that do not go together."""
    for side in (left, right):
        if side.kind is Kind.MANY:
            text, told = side.text, f"{side.text} is {side.kind.value}; "
            told += f"expected max({text}), min({text}) or sum({text})"
            raise _bad(side.node, told)
    if operation in ("in", "not in"):
        if not isinstance(right.node, Many):
            raise _bad(right.node, "expected a list behind `in`, such as (1, 2, 4)")
        for item in right.node.items:
            _refuse_unlike("==", left, _Side(item, kind_of(item)))
        return
    if left.kind is not right.kind or left.kind is Kind.LIST:
        told = f"{left.text} is {left.kind.value}, {right.text} {right.kind.value}; "
        raise _bad(right.node, told + "expected two of a kind")
    if left.kind in (Kind.WORD, Kind.FLAG) and operation not in ("==", "!="):
        raise _bad(left.node, f"{left.text} is {left.kind.value}; expected == or !=")
    if left.kind is Kind.WORD:
        _refuse_unknown_words(left.node, right.node)


def _refuse_unknown_words(left: Node, right: Node) -> None:
    field, text = (left, right) if isinstance(left, NamedField) else (right, left)
    if not (isinstance(field, NamedField) and isinstance(text, Constant)):
        raise _bad(right, "expected a field on one side, 'text' on the other")
    words, asked = words_of(field.name), str(text.value)
    if asked not in words:
        close = difflib.get_close_matches(asked[:40], words, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        accepted = ", ".join(map(repr, words[:12])) + (", ..." if words[12:] else "")
        raise _bad(text, f"{field.name} is one of {accepted}{hint}")


def _bad(node: Node, problem: str) -> BadExpression:
    return BadExpression(at_character(node, problem))


MOST_RULES = 100
"""Rules of one spec."""

LONGEST_REASON = 300
"""Characters of why there is a rule."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,59}", re.ASCII)


def _named(value: Any) -> Any:
    if isinstance(value, str) and value and not _NAME.fullmatch(value):
        raise ValueError("expected up to 60 letters, digits, - and _, a letter first")
    return value


def _reason(value: Any) -> Any:
    if isinstance(value, str) and not (
        len(value) <= LONGEST_REASON and (value.isprintable())
    ):
        accepted = f"expected up to {LONGEST_REASON} characters that can be printed"
        raise ValueError(accepted)
    return value


def _expression(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    read_rule(value)
    line = " ".join(value.split())
    if not line.isprintable():
        raise ValueError("expected characters that can be printed")
    return line


Condition = Annotated[
    str,
    BeforeValidator(_expression),
    WithJsonSchema({"type": "string", "pattern": "[a-z]"}),
]
"""A condition that plans must keep, as an expression."""


class UserRule(SpecModel):
    """A rule of the user: plans that break it are left out.

    Example:
        >>> import meshwright as mw
        >>> rules = [{"that": "tp <= 2 and max(memory_gib) <= 60"}]
        >>> spec = mw.load("llama3-8b-2xh100-nvlink", mw.Spec, rules=rules)
        >>> spec.rules[0].name
        'rule_1'
    """

    NOT_MODELLED: ClassVar[Mapping[str, str]] = {
        "if": "write `not (this) or that`",
        "then": "write `not (this) or that`",
    }

    name: Annotated[str, BeforeValidator(_named)] = Field(
        "",
        description="What answers call it; default: rule_1, rule_2, ...",
        json_schema_extra={"pattern": f"^({_NAME.pattern})?$"},
    )
    that: Condition = Field(
        description="What must hold: comparisons of decisions, stages, links, parts of "
        "the step and money, joined by and, or, not.",
    )
    because: Annotated[str, BeforeValidator(_reason)] = Field(
        "", description="Why; answers repeat it."
    )

    @property
    def tree(self) -> Node:
        """Return the parsed expression."""
        return read_rule(self.that)

    @property
    def sentence(self) -> str:
        """Return the rule and why it is there, in one line."""
        return f"{self.that}; {self.because}" if self.because else self.that

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all values that the rule compares."""
        return frozenset(field.name for field in fields_of(self.tree))

    @property
    def is_of_decisions(self) -> bool:
        """Return whether the rule holds or not whatever the stages hold."""
        return self.names <= {*DECISIONS}


def rule_problems(
    rules: tuple[UserRule, ...], has_price: bool, has_tokens: bool
) -> Iterator[Problem]:
    """Yield names that two rules have, and prices and runs that are not known."""
    if len(rules) > MOST_RULES:
        sentence = f"rules; expected at most {MOST_RULES}"
        yield Problem(("rules",), len(rules), sentence)
    seen: set[str] = set()
    for index, rule in enumerate(rules):
        if rule.name in seen:
            sentence = "is the name of another rule; expected a name of its own"
            yield Problem(("rules", index, "name"), rule.name, sentence)
        seen.add(rule.name)
        if "usd_per_mtoken" in rule.names and not has_price:
            sentence = "compares usd_per_mtoken, and no price is known; expected "
            sentence += "run.gpu_hour_price beside it"
            yield Problem(("rules", index, "that"), rule.that, sentence)
        if "train_days" in rule.names and not has_tokens:
            sentence = "compares train_days, and the run has no length; expected "
            sentence += "run.tokens beside it"
            yield Problem(("rules", index, "that"), rule.that, sentence)
