"""The builtin `sum` as versions of Python have it, which add floats differently.

Up to Python 3.11 it adds from left to right; since 3.12 it makes up for what rounding
loses (Neumaier), so that the last digits differ. `math.fsum` is the same in all.
"""

from __future__ import annotations

import builtins
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

ADD = builtins.sum


def left_to_right(items: Iterable[Any], /, start: Any = 0) -> Any:
    """Return what `sum` returns up to Python 3.11."""
    result = start
    for item in items:
        result = result + item
    return result


def compensated(items: Iterable[Any], /, start: Any = 0) -> Any:
    """Return what `sum` returns since Python 3.12 (`builtin_sum_impl`)."""
    result, lost = start, 0.0
    for item in items:
        is_float = type(result) is float
        if is_float and type(item) is float:
            more = result + item
            big, small = (result, item) if abs(result) >= abs(item) else (item, result)
            lost += (big - more) + small
            result = more
        elif is_float and isinstance(item, int):
            result += float(item)
        else:
            result, lost = _with(result, lost) + item, 0.0
    return _with(result, lost)


def _with(result: Any, lost: float) -> Any:
    return result + lost if lost and math.isfinite(lost) else result


def refusing(iterable: Iterable[Any], /, start: Any = 0) -> Any:
    """Return the sum, unless code of Meshwright adds floats by it.

    PyTorch compares the names of its arguments with those of the builtin.
    """
    items = iterable if type(iterable) is list else list(iterable)
    result = ADD(items, start)
    # No float adds up to a whole number with others. Whose code adds is asked last, as
    # it takes longest: every hook for audits hears of it.
    if type(result) is int:
        return result
    if type(start) is float or float in map(type, items):
        adds = sys._getframe(1).f_globals.get("__name__", "")
        assert not adds.startswith("meshwright."), "add floats by math.fsum"
    return result


@contextmanager
def floats_refused() -> Iterator[None]:
    """Let no code of Meshwright add floats by the builtin `sum`."""
    with mock.patch("builtins.sum", refusing):
        yield
