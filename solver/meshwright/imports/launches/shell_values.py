"""Values in shell scripts: marks for what is not set, whole numbers, and tests."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence

from meshwright.imports.launches.shell_text import MARK

LONGEST_ARITHMETIC = 200
"""Most characters of `$((...))` and `$(expr ...)`."""

MOST = 10**15
"""Largest number that arithmetic makes."""

_MARKED = re.compile(f"{MARK[0]}([^{MARK[1]}]*){MARK[1]}")

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def mark(name: str) -> str:
    """Return the mark for a value that the script does not have."""
    return f"{MARK[0]}{name[:60]}{MARK[1]}"


def unmarked(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a text as the script has it, and the variables in it without a value."""
    names = tuple(_MARKED.findall(text))
    return _MARKED.sub(_written, text), names


def _written(found: re.Match[str]) -> str:
    name = found[1]
    return name if name.startswith(("$", "`")) else f"${{{name}}}"


def arithmetic(text: str, value: Callable[[str], str | None]) -> str | None:
    """Return the value of a sum or product of whole numbers, None where unknown.

    Args:
        text: The text between `$((` and `))`.
        value: Returns the value of a variable, None where it has none.
    """
    if len(text) > LONGEST_ARITHMETIC or MARK[0] in text:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        result = _evaluated(tree, value)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return str(result)


def _evaluated(node: ast.expr, value: Callable[[str], str | None]) -> int:
    """Return the value of a node.

    Raises:
        ValueError: it is no whole number, or a too large one.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        result = node.value
    elif isinstance(node, ast.Name):
        result = int((value(node.id) or "")[:20])
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluated(node.left, value), _evaluated(node.right, value)
        result = _OPERATORS[type(node.op)](left, right)
    else:
        raise ValueError(ast.dump(node)[:60])
    if abs(result) > MOST:
        raise ValueError("too large")
    return result


def holds(words: Sequence[str]) -> bool | None:
    """Return whether a test holds, None where only a run decides."""
    if len(words) < 2 or words[0] not in ("[", "[[", "test", "!"):
        return None
    inside = [*words[1:]]
    if words[0] == "!" or inside[0] == "!":
        inner = holds(inside if words[0] == "!" else ["test", *inside[1:]])
        return None if inner is None else not inner
    if inside[-1] in ("]", "]]"):
        inside.pop()
    return _test(inside)


def joined(tests: Sequence[bool | None], joins: Sequence[str]) -> bool | None:
    """Return the result of tests that `&&` alone or `||` alone joins."""
    signs = {*joins[: len(tests) - 1]}
    if len(tests) == 1:
        return tests[0]
    if signs == {"|"}:
        return True if True in tests else None if None in tests else False
    if signs == {"&"}:
        return False if False in tests else None if None in tests else True
    return None


def _test(words: list[str]) -> bool | None:
    if words in (["-z"], ["-n"]):
        return words == ["-z"]
    if len(words) == 2 and words[0] in ("-z", "-n"):
        is_empty = not words[1] or bool(_MARKED.fullmatch(words[1]))
        return is_empty == (words[0] == "-z")
    if len(words) == 3 and words[2] == "" and words[1] in ("=", "==", "!="):
        return _test(["-n" if words[1] == "!=" else "-z", words[0]])
    if len(words) != 3 or any(MARK[0] in word for word in words):
        return None
    left, sign, right = words
    if sign in ("=", "=="):
        return left == right
    if sign == "!=":
        return left != right
    if sign in _NUMBERS and _is_number(left) and _is_number(right):
        return _NUMBERS[sign](int(left), int(right))
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15
