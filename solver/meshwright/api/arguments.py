"""Checks the arguments of the public functions, before any work is done."""

from __future__ import annotations

import inspect
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from os import PathLike
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from meshwright.errors import SpecError

P = ParamSpec("P")
R = TypeVar("R")

LARGEST_SEED = 2**31 - 1
"""The largest seed that CP-SAT takes."""

RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, LARGEST_SEED),
    "workers": (1, 512),
    "top": (1, 10_000),
    "samples": (1, 100_000),
    "days": (0.01, 3_650),
    "time_limit_s": (0, math.inf),
    "memory_limit_gib": (0.1, math.inf),
}
"""By name of an argument, the least and the most that it may be; never NaN."""

WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "None",
    Callable: "a function",
    Mapping: "a mapping",
    PathLike: "a path",
    tuple: "a pair",
}
"""Kinds of values in the words of messages."""

_UNPACKED = re.compile(r"Unpack\[(\w+)\]")

LISTS = (Iterable, Sequence, list)
"""Kinds whose entries are looked at too."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that refuses arguments of other kinds, or out of range.

    The kinds are those of its annotations, the ranges those of `RANGES`. Keywords that
    are those of a `TypedDict` stand in its signature one by one.
    """
    signature, hinted = _spelled_out(function)

    @cache
    def kinds() -> dict[str, Any]:
        return {k: v for one in hinted for k, v in get_type_hints(one).items()}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if not _is_of(kinds()[name], value):
                _refuse(name, value, _words(kinds()[name]))
            if isinstance(value, str) and "\0" in value:
                _refuse(name, value, "text without zero bytes")
            low, high = RANGES.get(name, (-math.inf, math.inf))
            if name in RANGES and value is not None and not low <= value <= high:
                most = f" to {high:,}" if high < math.inf else ""
                _refuse(name, value, f"a number from {low:,}{most}")
        return function(*args, **kwargs)

    vars(call)["__signature__"] = signature
    return call


def _spelled_out(function: Callable[..., Any]) -> tuple[inspect.Signature, list[Any]]:
    """Return a signature without `**name: Unpack[Keywords]`, and what has its hints."""
    signature, hinted = inspect.signature(function), [function]
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        found = _UNPACKED.fullmatch(str(parameter.annotation))
        if found is None:
            parameters.append(parameter)
            continue
        keywords = function.__globals__[found[1]]
        hinted.append(keywords)
        parameters += [
            parameter.replace(
                name=name,
                kind=inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=getattr(hint, "__forward_arg__", hint),
            )
            for name, hint in keywords.__annotations__.items()
        ]
    return signature.replace(parameters=parameters), hinted


def _refuse(name: str, value: Any, expected: str) -> None:
    from meshwright.reading.document import shown

    plain = (str, bytes, numbers.Number, NoneType, list, tuple, dict)
    is_plain = isinstance(value, plain)
    told = shown(value) if is_plain else f"a {type(value).__name__}"
    raise SpecError(f"{name}: {told}: expected {expected}")


def _is_of(kind: Any, value: Any) -> bool:
    """Return whether a value is of the kind of an annotation; insides are not seen."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(_is_of(part, value) for part in inner)
    if origin is Annotated:
        return _is_of(inner[0], value)
    if origin is type:
        return isinstance(value, type) and issubclass(value, inner)
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    if origin in LISTS:
        is_seen = isinstance(value, list | tuple)  # Others may be read but once.
        return (
            isinstance(value, origin)
            and not isinstance(value, str | bytes)
            and (not is_seen or all(_is_of(inner[0], entry) for entry in value))
        )
    return isinstance(value, origin or kind)


def _words(kind: Any) -> str:
    """Return the words for values of an annotation."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_words, inner)))
    if origin is Annotated:
        return _words(inner[0])
    if origin is type:
        return f"the class {inner[0].__name__}"
    if origin in LISTS:
        return f"a list of {_words(inner[0])}"
    plain = origin or kind
    return WORDS.get(plain, getattr(plain, "__name__", str(plain)))
