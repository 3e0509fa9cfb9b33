"""Shared by all spec models: bounded numbers, and errors of inconsistent fields.

The error of an unknown field names the field that an option of a framework stands for
(`option_names.yaml`); that of a number that does not divide, the next ones that do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from meshwright.reading.document import DISAGREEMENT, FieldPath, dotted
from meshwright.reading.yaml_and_csv import table_beside


def nearest(value: int, *wholes: int) -> str:
    """Return the numbers next to `value` that divide all of `wholes`, in words.

    As in '50 and 125 do', to follow 'does not divide 1000;'.
    """
    return nearest_of(value, divisors(math.gcd(*wholes)))


def nearest_of(value: int, accepted: Iterable[int]) -> str:
    """Return the accepted numbers next to `value`, in the words of `nearest`."""
    ascending = sorted(accepted)
    below = [divisor for divisor in ascending if divisor < value][-1:]
    above = [divisor for divisor in ascending if divisor > value][:1]
    verb = "do" if below and above else "does"
    return f"{' and '.join(map(str, (*below, *above)))} {verb}"


def divisors(whole: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [d for d in range(1, math.isqrt(whole) + 1) if whole % d == 0]
    return sorted({*small, *(whole // d for d in small)})


@cache
def _fields_of_options() -> dict[str, str]:
    """Return the field of a spec by the option of a framework that says the same."""
    table = table_beside(__file__, "option_names.yaml")
    return {option: field for field, options in table.items() for option in options}


class SpecModel(BaseModel):
    """A frozen part of a spec that refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    NOT_MODELLED: ClassVar[Mapping[str, str]] = {}
    """By a field that users may expect here, what it stands for, which nothing says."""

    REPLACED: ClassVar[Mapping[str, str]] = {}
    """By the name that a field had, the field that says it now, in words."""

    @staticmethod
    def meant_by(option: str) -> str:
        """Return the field that says what an option of a framework does, or nothing."""
        return _fields_of_options().get(option, "")

    def having(self, section: str, **fields: Any) -> Self:
        """Return a copy with other fields in one section, which are not validated."""
        changed = getattr(self, section).model_copy(update=fields)
        return self.model_copy(update={section: changed})


class Problem(NamedTuple):
    """A field whose value another field rules out; its path starts at the model."""

    path: FieldPath
    value: Any
    sentence: str
    """The fault, and the values that are accepted; follows the value in messages."""


def refuse(problems: Iterable[Problem]) -> None:
    """Raise one pydantic error that carries all problems, if there are any."""
    found = tuple(problems)
    if found:
        lines = [f"{dotted(p.path)}: {p.value!r} {p.sentence}" for p in found]
        context = {"text": "\n".join(lines), "problems": found}
        raise PydanticCustomError(DISAGREEMENT, "{text}", context)


def to_number(value: object) -> float | None:
    """Return a finite number, also from text that YAML did not read as one, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(low: int, high: int) -> BeforeValidator:
    def check(value: object) -> object:
        is_flag = isinstance(value, bool)
        if is_flag or not isinstance(value, int) or not low <= value <= high:
            accepted = f"expected a whole number from {low:,} to {high:,}"
            raise ValueError(accepted + _spelled_out(value))
        return value

    return BeforeValidator(check)


_THOUSANDS = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)[kK]")
_RANGE = re.compile(r"(\d{1,8})\s*\.\.\s*(\d{1,8})")


def _spelled_out(value: object) -> str:
    """Return a hint on how to write a whole number, such as for 1e3 or '1,000'."""
    if isinstance(value, str) and (found := _THOUSANDS.fullmatch(value.strip())):
        thousands = float(found[1])
        both = f"{thousands * 1024:.0f} or {thousands * 1000:.0f}"
        return f"; a unit is not read here, write {both}"
    if isinstance(value, str) and (found := _RANGE.fullmatch(value.strip())):
        return f"; a number left open is written {{min: {found[1]}, max: {found[2]}}}"
    number = to_number(value.replace(",", "") if isinstance(value, str) else value)
    is_hidden = number is not None and not isinstance(value, int)
    if not is_hidden or not float(number or 0).is_integer() or abs(number or 0) > 1e15:
        return ""
    why = "this is read as text, " if isinstance(value, str) else ""
    return f"; {why}write {number:.0f}"


def number(accepted: str, is_inside: Callable[[float], bool]) -> BeforeValidator:
    """Return the check of a field that takes finite numbers inside some bounds."""

    def check(value: object) -> float:
        number = to_number(value)
        if number is None or not is_inside(number):
            raise ValueError(f"expected a number {accepted}")
        return number

    return BeforeValidator(check)


LONGEST_NAME = 100


def _printable(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not (value.isprintable() and 0 < len(value) <= LONGEST_NAME):
        accepted = f"expected 1 to {LONGEST_NAME} characters that can be printed"
        raise ValueError(accepted)
    return value


def shortened(name: str) -> str:
    """Return a name, cut to the length that names may have."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."


def _count(low: int, high: int) -> Any:
    return Field(strict=True, ge=low, le=high)


MAX_COUNT = 10_000_000
"""Largest count; code that visits all divisors relies on this limit."""

Count = Annotated[int, _count(1, MAX_COUNT), _whole(1, MAX_COUNT)]
"""A whole number from 1 to ten million; text and fractions are refused."""

CountOrNone = Annotated[int, _count(0, MAX_COUNT), _whole(0, MAX_COUNT)]
"""A whole number from 0 to ten million."""

LayerCount = Annotated[int, _count(1, 1_000), _whole(1, 1_000)]
"""A number of transformer layers: the deepest published model has a few hundred."""

Peak = Annotated[float, number("from 0.001 to 1,000,000", lambda x: 1e-3 <= x <= 1e6)]
"""TFLOP/s, with wide bounds so that times stay numbers that can be compared."""

Positive = Annotated[float, number("above 0", lambda x: x > 0)]
"""A finite number above zero."""

THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def _text_like(pattern: re.Pattern[str]) -> WithJsonSchema:
    """Return the schema of text, all of which a pattern must match."""
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern.pattern}$"})


_AMOUNT = re.compile(
    r"\s*\$?\s*([0-9][0-9_,]*\.?[0-9]*(?:[eE]\+?[0-9]{1,2})?)\s*([kmbtKMBT]?)\s*"
)
_AmountText = Annotated[str, _text_like(_AMOUNT)]


def to_amount(text: str) -> float | None:
    """Return the number of text such as 100,000, 2.5M, 1T or $3k; None of others."""
    found = _AMOUNT.fullmatch(text) if len(text) < 40 else None
    if found is None:
        return None
    return float(re.sub("[,_]", "", found[1])) * THOUSANDS[found[2].lower()]


def _amount(value: Any) -> Any:
    known = to_amount(value) if isinstance(value, str) else None
    return value if known is None else known


TokenCount = Annotated[
    float,
    number("from 1 to 1e18, or text such as 300B", lambda x: 1 <= x <= 1e18),
    BeforeValidator(_amount, json_schema_input_type=float | _AmountText),
]
"""Tokens of a run; published ones have up to 4e13."""

_LENGTH = re.compile(r"\s*(\d{1,5})\s*([kKmM])\s*")
_LengthText = Annotated[str, _text_like(_LENGTH)]


def to_length(text: str) -> int | None:
    """Return the tokens of a length such as 128k or 1M; None of others."""
    found = _LENGTH.fullmatch(text[:20])
    return int(found[1]) * (1024 if found[2] in "kK" else 1024**2) if found else None


def _length(value: Any) -> Any:
    known = to_length(value) if isinstance(value, str) else None
    return value if known is None else known


Length = Annotated[
    Count, BeforeValidator(_length, json_schema_input_type=int | _LengthText)
]
"""Tokens of a sequence; in text `k` stands for 1,024, as in names of models."""

Flops = Annotated[float, number("from 1e12 to 1e32", lambda x: 1e12 <= x <= 1e32)]
"""FLOPs of a run; published ones have up to 5e26."""

Hours = Annotated[float, number("from 1 to 1e12", lambda x: 1 <= x <= 1e12)]
"""GPU hours between failures."""

Margin = Annotated[float, number("from 0 to below 1", lambda x: 0 <= x < 1)]
"""A share below 1."""

MOST_RISK = 0.5
"""Above it a plan is expected to fail."""

Risk = Annotated[
    float, number(f"from 0.0001 to {MOST_RISK:g}", lambda x: 1e-4 <= x <= MOST_RISK)
]
"""A probability of failure."""

Share = Annotated[float, number("from 0.0001 to 1", lambda x: 1e-4 <= x <= 1)]
"""A share above 0; CP-SAT compares shares in hundredths of a percent."""


def _filled(value: Any) -> Any:
    if isinstance(value, list | tuple) and not value:
        raise ValueError("expected at least one value")
    return value


NOT_EMPTY = BeforeValidator(_filled)
"""Refuses an empty list."""

Name = Annotated[str, BeforeValidator(_printable)]
"""Text that is safe to show on a terminal."""

Flag = Annotated[bool, Field(strict=True)]
"""true or false, as YAML writes them."""


def in_every_part(
    schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> Any:
    """Return a JSON Schema with each of its mappings changed, inner ones first."""
    if isinstance(schema, list):
        return [in_every_part(item, change) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return change({k: in_every_part(v, change) for k, v in schema.items()})
