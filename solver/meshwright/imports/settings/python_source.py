"""Reads configurations that are written in Python, without running them.

Two forms are understood: `cfg.train.global_batch_size = 128`, and calls with named
values, `Trainer.Config(training=TrainingConfig(seq_len=8192))`. A value that only a
run knows stays open.
"""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from meshwright.errors import SpecError
from meshwright.imports.settings.setting import Setting, canonical
from meshwright.reading.document import Where
from meshwright.reading.guard import MAX_DEPTH, SPECS, check_size

MOST_CHARACTERS = 200_000
"""Most characters of a file of Python."""

LONGEST_RANGE = 10_000
"""Most values of `range` in a list."""


_DEGREES = ("parallel_size", "parallel_degree")
"""Ends of the names of degrees."""


class _Unknown(Exception):
    """Raised for an expression that only a run knows."""


BY_NAME = ("get_mixed_precision_config",)
"""Functions of Megatron Bridge that make a recipe by its name."""


def python_settings(text: str, name: str) -> list[Setting]:
    """Return the settings of a file of Python that has one configuration.

    Raises:
        SpecError: the text is no Python, is too long, nests too deep, or has functions
            that set a degree differently.
    """
    if len(text) > MOST_CHARACTERS:
        raise SpecError(f"{name}: expected at most {MOST_CHARACTERS:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        here = Where(name, error.lineno or 0)
        raise SpecError(f"{here}: not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise SpecError(f"{name}: not valid Python") from None
    reader, found = _Reader(name, text), list[Setting]()
    for function in _parts(tree):
        own = [*reader.settings(function)]
        _check_same(found, own)
        found += own
    return found


def _parts(tree: ast.Module) -> Iterator[ast.Module]:
    """Yield the functions of a module, each alone, and what is outside of them."""
    kinds = ast.FunctionDef | ast.ClassDef
    yield ast.Module([own for own in tree.body if not isinstance(own, kinds)], [])
    for own in tree.body:
        if isinstance(own, kinds):
            yield ast.Module([own], [])


def _check_same(before: list[Setting], settings: list[Setting]) -> None:
    """Refuse a second function that sets a degree to another value.

    Raises:
        SpecError: names the setting and the one before it.
    """
    degrees = {own.name: own for own in before if own.name.endswith(_DEGREES)}
    for own in settings:
        other = degrees.get(own.name, own)
        if other.value != own.value:
            told = f"contradicts {other} ({other.where}) of another function"
            own.refuse(f"{told}; expected a file with one configuration")


class _Reader:
    def __init__(self, name: str, text: str) -> None:
        self._name, self._values = name, 0
        self._lines = text.splitlines()
        self._constants: dict[str, Any] = {}
        """Values of names that the module sets outside of functions."""

    def settings(self, tree: ast.Module) -> Iterator[Setting]:
        for node in tree.body:
            self._keep_constant(node)
        todo: list[ast.stmt] = [*reversed(tree.body)]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                yield from self._assigned(node)
            elif isinstance(node, ast.Return | ast.Expr) and node.value is not None:
                yield from self._called(node.value, "", 0)
            if not isinstance(node, ast.If):
                todo += reversed(getattr(node, "body", []))

    def _keep_constant(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(_Unknown):
                self._constants[node.targets[0].id] = self._value(node.value, 0)

    def _assigned(self, node: ast.Assign) -> Iterator[Setting]:
        target, names = node.targets[0], list[str]()
        while isinstance(target, ast.Attribute):
            names.append(target.attr)
            target = target.value
        if isinstance(target, ast.Name) and (names or isinstance(node.value, ast.Call)):
            yield from self._named(".".join(reversed(names)), node.value, 0)

    def _named(self, path: str, value: ast.expr, depth: int) -> Iterator[Setting]:
        """Yield what a value that has a name says."""
        if isinstance(value, ast.Call) and value.keywords:
            yield from self._called(value, path, depth)
        elif path:
            yield self._setting(path, value)

    def _called(self, node: ast.expr, path: str, depth: int) -> Iterator[Setting]:
        self._check(node, depth)
        if not isinstance(node, ast.Call):
            return
        for own in node.keywords:
            if own.arg is not None:
                inner = f"{path}.{own.arg}" if path else own.arg
                yield from self._named(inner, own.value, depth + 1)

    def _setting(self, path: str, node: ast.expr) -> Setting:
        where = Where(self._name, node.lineno)
        try:
            value, unset = self._value(node, 0), ()
        except _Unknown:
            value = self._lines[node.lineno - 1][node.col_offset :][:60].strip()
            return Setting(canonical(path), value, where, path, (value,))
        return Setting(canonical(path), value, where, path, unset)

    def _check(self, node: ast.expr, depth: int) -> None:
        self._values += 1
        check_size(self._values, depth, Where(self._name, node.lineno), SPECS)
        if depth > MAX_DEPTH:
            raise _Unknown

    def _value(self, node: ast.expr, depth: int) -> Any:
        """Return the value of an expression.

        Raises:
            _Unknown: only a run knows it.
        """
        self._check(node, depth)
        if isinstance(node, ast.Constant):
            plain = str | int | float | bool | None
            return node.value if isinstance(node.value, plain) else str(node.value)
        if isinstance(node, ast.List | ast.Tuple):
            return [own for item in node.elts for own in self._items(item, depth + 1)]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._value(node.operand, depth + 1)
            if isinstance(inner, int | float):
                return -inner
        if isinstance(node, ast.Name) and node.id in self._constants:
            return self._constants[node.id]
        if isinstance(node, ast.Attribute):
            dotted = self._dotted(node, depth)
            if dotted.startswith("torch."):
                return dotted
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            return self._dotted(node.func, depth)
        if isinstance(node, ast.Call) and self._dotted(node.func, depth) in BY_NAME:
            return self._value(node.args[0], depth + 1) if node.args else None
        raise _Unknown

    def _dotted(self, node: ast.expr, depth: int) -> str:
        """Return a name such as `torch.bfloat16`."""
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            raise _Unknown
        return ".".join([node.id, *reversed(names)])

    def _items(self, node: ast.expr, depth: int) -> list[Any]:
        """Return the items of a list that one entry stands for."""
        if not isinstance(node, ast.Starred):
            return [self._value(node, depth)]
        if isinstance(node.value, ast.GeneratorExp | ast.ListComp):
            return self._generated(node.value, depth)
        inner: Any = self._value(node.value, depth)
        return list(inner) if isinstance(inner, list) else [inner]

    def _generated(
        self, node: ast.GeneratorExp | ast.ListComp, depth: int
    ) -> list[str]:
        """Return what `f"layers.{i}" for i in range(4, 8)` makes."""
        loop = node.generators[0]
        is_plain = len(node.generators) == 1 and not loop.ifs and not loop.is_async
        call, text = loop.iter, node.elt
        if not (is_plain and isinstance(loop.target, ast.Name)):
            raise _Unknown
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise _Unknown
        bounds = [self._value(own, depth + 1) for own in call.args]
        is_range = call.func.id == "range" and 0 < len(bounds) < 3
        if not is_range or not all(isinstance(own, int) for own in bounds):
            raise _Unknown
        numbers = range(*bounds)
        self._values += len(numbers) if abs(bounds[-1]) <= LONGEST_RANGE else 10**9
        self._check(node, depth)
        return [self._formatted(text, loop.target.id, own) for own in numbers]

    def _formatted(self, node: ast.expr, name: str, number: int) -> str:
        if not isinstance(node, ast.JoinedStr):
            raise _Unknown
        parts = []
        for own in node.values:
            if isinstance(own, ast.Constant):
                parts.append(str(own.value))
            elif isinstance(own, ast.FormattedValue) and own.format_spec is None:
                if not (isinstance(own.value, ast.Name) and own.value.id == name):
                    raise _Unknown
                parts.append(str(number))
        return "".join(parts)
