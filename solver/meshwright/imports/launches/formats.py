"""Formats of launch files, with the line of every value: Hjson, TOML and Python."""

from __future__ import annotations

import ast
import contextlib
import operator
import re
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from typing import Any

from meshwright.errors import SpecError
from meshwright.imports.launches.settings import Setting, canonical
from meshwright.reading.document import Document, FieldPath, Where
from meshwright.reading.yaml_and_csv import (
    MAX_DEPTH,
    SPECS,
    NotYaml,
    check_size,
    parse_yaml,
)

_HJSON_PART = re.compile(
    r"\"(?:[^\"\\\n]|\\[^\n])*\"?|'(?:[^'\\\n]|\\[^\n])*'?"
    r"|(?P<comment>#[^\n]*|(?<!:)//[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<variable>\$\{[^}\n]{1,80}\})"
    r"|(?P<power>(?<![\w.])-?\d{1,40}(?:\.\d{1,40})?[eE][+-]?\d{1,3})(?!\w)"
    r"|(?P<colon>:(?=[^\s/]))",
    re.DOTALL,
)
"""Texts, which stay, and the parts of Hjson that YAML has otherwise."""

_NEXT_LINE = re.compile(r"([^\s{\[,:])([ ]*\n\s*)(?=[^\s}\],:])")
"""The end of a line behind which Hjson may leave out a comma."""


def parse_hjson(text: str, name: str) -> Document:
    """Return the fields of a text; `name` stands for it in messages.

    With its comments left out and its commas put in, Hjson is YAML in braces.

    Raises:
        SpecError: the text is no Hjson, is too long, or nests too deep.
    """
    plain = _HJSON_PART.sub(_in_yaml, text.replace("\t", " "))
    try:
        return parse_yaml(_NEXT_LINE.sub(r"\1,\2", plain), name)
    except NotYaml as error:
        told = str(error).replace("not valid YAML", "not valid JSON")
        raise SpecError(told) from None


def _in_yaml(found: re.Match[str]) -> str:
    if found["comment"]:
        return "\n" * found[0].count("\n")
    if found["variable"]:
        return f'"{found[0]}"'
    if found["power"]:
        return f"{float(found[0]):.16e}"
    return ": " if found["colon"] else found[0]


_TOML_TABLE = re.compile(r"^[ \t]*\[\[?[ \t]*([\w.\- \"']{1,200}?)[ \t]*\]\]?", re.M)
_TOML_KEY = re.compile(r"^[ \t]*([\w.\-\"']{1,200})[ \t]*=", re.M)
_DEEP = re.compile(r"[\[{]")
_LONG_KEY = re.compile(
    r"(?<![\w\-])(?:(?:\"[^\"]*\"|'[^']*'|[\w\-]+)[ \t]*\.[ \t]*)"
    f"{{{MAX_DEPTH}}}"
)
"""More parts with dots between them than tables may nest."""
_LINE_OF = re.compile(r"\(at line (\d+), column \d+\)")


_TEXTS = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'")
"""A text within a line: dots and brackets in it nest nothing."""


def parse_toml(text: str, name: str) -> Document:
    """Return the fields of a text; `name` stands for it in messages.

    Raises:
        SpecError: the text is no TOML, is too long, or nests too deep.
    """
    for number, line in enumerate(text.splitlines(), 1):
        bare = _TEXTS.sub("s", line).partition("#")[0]
        is_deep = len(_DEEP.findall(bare)) > MAX_DEPTH and _opened(bare) > MAX_DEPTH
        if is_deep or _LONG_KEY.search(bare):
            check_size(0, MAX_DEPTH + 1, Where(name, number), SPECS)
        digits = re.search(r"\d{400}", line)
        if digits:
            raise SpecError(f"{Where(name, number)}: expected at most 400 digits")
    try:
        data = tomllib.loads(text.replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        found = _LINE_OF.search(str(error))
        here = Where(name, int(found[1]) if found else 0)
        told = _LINE_OF.sub("", str(error)).strip()[:120]
        raise SpecError(f"{here}: not valid TOML: {told}") from None
    return _TomlLines(text, name).document(data)


def _opened(line: str) -> int:
    """Return the most brackets that are open at once in a line."""
    most = depth = 0
    for char in line:
        depth += (char in "[{") - (char in "]}")
        most = max(most, depth)
    return most


class _TomlLines:
    """Finds the lines of keys, table by table."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._lines: dict[FieldPath, int] = {}
        table: FieldPath = ()
        for number, line in enumerate(text.splitlines(), 1):
            if found := _TOML_TABLE.match(line):
                table = _toml_path(found[1])
                self._lines.setdefault(table, number)
            elif found := _TOML_KEY.match(line):
                self._lines.setdefault((*table, *_toml_path(found[1])), number)

    def document(self, data: dict[str, Any]) -> Document:
        document = Document(None, {(): Where(self._name)})
        document.data = self._plain(document, data, ())
        return document

    def _plain(self, document: Document, value: Any, path: FieldPath) -> Any:
        if path in self._lines:
            document.places[path] = Where(self._name, self._lines[path])
        if len(path) > MAX_DEPTH:
            check_size(0, len(path), document.where(path), SPECS)
        if isinstance(value, dict):
            items = value.items()
            return {k: self._plain(document, v, (*path, k)) for k, v in items}
        if isinstance(value, list):
            return [self._plain(document, v, path) for v in value]
        if isinstance(value, date | datetime | time):
            return str(value)
        return value


def _toml_path(written: str) -> FieldPath:
    return tuple(part.strip(" \"'") for part in written.split("."))


MOST_PYTHON = 200_000
"""Most characters of a file of Python."""

LONGEST_RANGE = 10_000
"""Most values of `range` in a list."""


class _Unknown(Exception):
    """Raised for an expression that only a run knows."""


BY_NAME = ("get_mixed_precision_config", "_perf_precision")
"""Functions of Megatron Bridge that make a recipe by its name."""

LAYOUT = "pipeline_model_parallel_layout"
"""The end of the names of functions of Megatron Bridge that take a layout."""

BATCH = "_with_global_batch_size"
"""The function of Megatron Bridge that makes a recipe with another batch."""

SKELETON = "_pretrain_common"
"""The function of Megatron Bridge that makes a recipe of data, rates and logs."""

ELSEWHERE = "of another file"
"""The value of a function that sets what is not in the file."""


SUMS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
}
"""Operations on whole numbers that are done, as in `8 * 2048`."""

REGISTRY = "model_registry"
"""The function of torchtitan that takes one of its models by its name."""

FUNCTIONS = ("torch.nn.functional", "megatron.core.activations")
"""Modules whose functions are values by their names."""

HUB = "from_hf_pretrained"
"""The method of Megatron Bridge that takes a model of the Hugging Face hub."""


NO_MODEL = re.compile(r"(?:Tokenizer|Processor|Extractor)(?:Fast)?$")
"""Ends of the names of classes that are loaded beside a model."""

CONFIGURES = (
    "parallel_size", "parallel_degree", "batch_size", "seq_len", "seq_length",
    "_per_dp_rank", "max_context_length",
)  # fmt: skip
"""Ends of names that only a configuration of training sets."""


def python_settings(text: str, name: str, function: str | None = None) -> list[Setting]:
    """Return the settings of a file of Python, or those of one of its functions.

    A function has the settings of those of the file that it calls, before its own.

    Raises:
        SpecError: the text is no Python, is too long, nests too deep, has no such
            function, or several that configure a training.
    """
    tree = _parsed(text, name)
    reader = _PythonReader(name)
    kinds = ast.FunctionDef | ast.ClassDef
    outside = [node for node in tree.body if not isinstance(node, kinds)]
    found = [*reader.settings(ast.Module(outside, []))]
    parts = {node.name: node for node in tree.body if isinstance(node, kinds)}
    alone = {k: [*reader.settings(ast.Module([v], []))] for k, v in parts.items()}
    whole = {key: _with_called(key, parts, alone, ()) for key in parts}
    if function is not None and function not in parts:
        known = ", ".join(_configuring(whole)) or "none"
        raise SpecError(f"{name}: has no function {function}; accepted: {known}")
    chosen = function or _only(name, whole)
    if chosen is not None:
        return [*found, *whole[chosen]]
    return [*found, *(setting for settings in alone.values() for setting in settings)]


def _parsed(text: str, name: str) -> ast.Module:
    if len(text) > MOST_PYTHON:
        raise SpecError(f"{name}: expected at most {MOST_PYTHON:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        here = Where(name, error.lineno or 0)
        raise SpecError(f"{here}: not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise SpecError(f"{name}: not valid Python") from None


def called_settings(
    text: str, name: str, calls: Mapping[str, Mapping[str, str | None]]
) -> list[Setting]:
    """Return the arguments of some calls in a file of Python, in its order.

    Args:
        text: The file.
        name: Its name, for messages.
        calls: By the last name of what is called, the settings that its arguments are
            where they have other names there; `first` names the first one without a
            name, `is` a setting that says the call is there, and `only` is among them
            where no others count.

    Raises:
        SpecError: the text is no Python, is too long, or nests too deep.
    """
    tree, reader = _parsed(text, name), _PythonReader(name)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    nodes.sort(key=lambda node: node.lineno)
    return [*reader.of_calls(tree, nodes, calls)]


def _with_called(
    name: str,
    parts: dict[str, ast.FunctionDef | ast.ClassDef],
    alone: dict[str, list[Setting]],
    above: tuple[str, ...],
) -> list[Setting]:
    """Return the settings of a function behind those of the functions it calls."""
    calls = (node for node in ast.walk(parts[name]) if isinstance(node, ast.Call))
    names = [node.func.id for node in calls if isinstance(node.func, ast.Name)]
    called = [key for key in dict.fromkeys(names) if key in parts and key != name]
    seen = (*above, name)
    if len(seen) > MAX_DEPTH:
        return alone[name]
    before = (
        _with_called(key, parts, alone, seen) for key in called if key not in seen
    )
    return [*(setting for several in before for setting in several), *alone[name]]


def _configuring(whole: dict[str, list[Setting]]) -> list[str]:
    """Return the functions that configure a training."""
    return [
        key
        for key, settings in whole.items()
        if not key.startswith("_")
        and any(setting.name.endswith(CONFIGURES) for setting in settings)
    ]


def _only(name: str, whole: dict[str, list[Setting]]) -> str | None:
    """Return the function that configures a training; None where no one does."""
    found = _configuring(whole)
    places = {
        key: {(setting.name, str(setting.where)) for setting in whole[key]}
        for key in found
    }
    ends = [key for key in found if all(places[o] <= places[key] for o in found)]
    if len(found) > 1 and not ends:
        known = ", ".join(found[:20]) + (", ..." if len(found) > 20 else "")
        raise SpecError(
            f"{name}: has several configurations: {known}; say which: {name}:{found[0]}"
        )
    return ends[-1] if ends else None


class _PythonReader:
    def __init__(self, name: str) -> None:
        self._name, self._values = name, 0
        self._calls: dict[str, ast.Call] = {}
        """Values of names that are arguments of calls further down."""
        self._passed: set[str] = set()
        self._constants: dict[str, Any] = {}
        """Values of names that the module sets outside of functions."""
        self._imported: set[str] = set()
        """Functions of other files."""

    def settings(self, tree: ast.Module) -> Iterator[Setting]:
        self._passed = {
            node.value.id
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword) and isinstance(node.value, ast.Name)
        }
        for node in tree.body:
            self._keep_constant(node)
            if isinstance(node, ast.ImportFrom):
                self._imported |= {one.asname or one.name for one in node.names}
        todo: list[ast.stmt] = [*reversed(tree.body)]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Assign | ast.Return | ast.Expr):
                yield from self._made_elsewhere(node)
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                yield from self._assigned(node)
            elif isinstance(node, ast.Return | ast.Expr) and node.value is not None:
                yield from self._called(node.value, "", 0)
            if not isinstance(node, ast.If):
                todo += reversed(getattr(node, "body", []))

    def of_calls(
        self,
        tree: ast.Module,
        nodes: Iterable[ast.Call],
        calls: Mapping[str, Mapping[str, str | None]],
    ) -> Iterator[Setting]:
        """Yield the arguments of calls by the names that they have as settings."""
        for statement in tree.body:
            self._keep_constant(statement)
        for node in nodes:
            *owner, called = ast.unparse(node.func)[-120:].split(".")
            if called not in calls or (owner and NO_MODEL.search(owner[-1])):
                continue
            names, where = calls[called], Where(self._name, node.lineno)
            if (kind := names.get("is")) is not None:
                setting, _, word = kind.partition("=")
                yield Setting(setting, word or True, where, called)
            given = [(one.arg, one.value) for one in node.keywords if one.arg]
            first = [("first", one) for one in node.args[:1]]
            for argument, value in [*first, *given]:
                if argument in names or not (argument == "first" or "only" in names):
                    yield from self._argument(names.get(argument) or argument, value)

    def _argument(self, name: str, node: ast.expr) -> Iterator[Setting]:
        """Yield an argument, or the entries of a mapping that is one."""
        if not isinstance(node, ast.Dict):
            yield self._setting(name, node)
            return
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield self._setting(f"{name}.{key.value}".rstrip("."), value)

    def _keep_constant(self, node: ast.stmt) -> None:
        if isinstance(node, ast.ImportFrom) and node.module in FUNCTIONS:
            self._constants |= {one.asname or one.name: one.name for one in node.names}
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(_Unknown):
                self._constants[node.targets[0].id] = self._value(node.value, 0)

    def _made_elsewhere(
        self, node: ast.Assign | ast.Return | ast.Expr
    ) -> Iterator[Setting]:
        """Yield the arguments of a call into another file, or its name alone.

        `f()` makes the whole configuration; `f(config)` changes one.
        """
        call = node.value
        if isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name):
            return
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return
        name, arguments = call.func.id, call.args
        is_known = not name[:1].isupper() and name in self._imported
        if not is_known or name in (REGISTRY, SKELETON, *BY_NAME):
            return
        if isinstance(node, ast.Assign) and self._is_passed(node.targets[0]):
            return
        if name.endswith(LAYOUT) and len(arguments) > 1:
            yield self._setting(f"model.{LAYOUT}", arguments[1])
        elif name == BATCH and len(arguments) > 1:
            yield self._setting("train.global_batch_size", arguments[1])
        else:
            where = Where(self._name, node.lineno)
            yield Setting(f"{name.lower()}()", ELSEWHERE, where, f"{name}()")

    def _is_passed(self, target: ast.expr) -> bool:
        return isinstance(target, ast.Name) and target.id in self._passed

    def _assigned(self, node: ast.Assign) -> Iterator[Setting]:
        target, names = node.targets[0], list[str]()
        while isinstance(target, ast.Attribute):
            names.append(target.attr)
            target = target.value
        is_call = isinstance(node.value, ast.Call)
        if isinstance(target, ast.Name) and not names and target.id in self._passed:
            if isinstance(node.value, ast.Call):
                self._calls[target.id] = node.value
            return
        if isinstance(target, ast.Name) and (names or is_call):
            yield from self._named(".".join(reversed(names)), node.value, 0)

    def _named(self, path: str, value: ast.expr, depth: int) -> Iterator[Setting]:
        """Yield the settings of a value that has a name."""
        if isinstance(value, ast.Name) and value.id in self._calls:
            value = self._calls[value.id]
        function = value.func if isinstance(value, ast.Call) else None
        if isinstance(function, ast.Name) and function.id == REGISTRY:
            arguments = value.args if isinstance(value, ast.Call) else []
            if arguments:
                yield self._setting(f"model_spec.{REGISTRY}", arguments[0])
        if isinstance(value, ast.Call) and value.keywords:
            yield from self._called(value, path, depth)
        elif path:
            yield self._setting(path, value)

    def _called(self, node: ast.expr, path: str, depth: int) -> Iterator[Setting]:
        self._check(node, depth)
        if not isinstance(node, ast.Call):
            return
        if isinstance(node.func, ast.Attribute) and path:
            yield from self._from_hub(node.func.value, path)
        for keyword in node.keywords:
            if keyword.arg is not None:
                inner = f"{path}.{keyword.arg}" if path else keyword.arg
                yield from self._named(inner, keyword.value, depth + 1)

    def _from_hub(self, node: ast.expr, path: str) -> Iterator[Setting]:
        """Yield the name of a model on the hub that a method of it is called on."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return
        if node.func.attr == HUB and node.args:
            yield self._setting(f"{path}.{HUB}", node.args[0])

    def _setting(self, path: str, node: ast.expr) -> Setting:
        where, unset = Where(self._name, node.lineno), tuple[str, ...]()
        try:
            value = self._value(node, 0)
        except _Unknown:
            value = ast.unparse(node)[:60]
            unset = () if path.endswith("converters") else (value,)
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
            return [
                value for item in node.elts for value in self._items(item, depth + 1)
            ]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._value(node.operand, depth + 1)
            if isinstance(inner, int | float):
                return -inner
        if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
            left = self._value(node.left, depth + 1)
            right = self._value(node.right, depth + 1)
            if type(left) is int and type(right) is int and abs(left * right) < 2**53:
                return SUMS[type(node.op)](left, right)
        if isinstance(node, ast.Name) and node.id in self._constants:
            return self._constants[node.id]
        if isinstance(node, ast.Attribute):
            dotted = self._dotted(node)
            if dotted.startswith("torch."):
                return dotted
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            return self._dotted(node.func)
        if isinstance(node, ast.Call) and self._dotted(node.func) in BY_NAME:
            return self._value(node.args[0], depth + 1) if node.args else None
        raise _Unknown

    def _dotted(self, node: ast.expr) -> str:
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
        """Return the texts of a loop such as `f"layers.{i}" for i in range(4, 8)`."""
        loop = node.generators[0]
        is_plain = len(node.generators) == 1 and not loop.ifs and not loop.is_async
        call, text = loop.iter, node.elt
        if not (is_plain and isinstance(loop.target, ast.Name)):
            raise _Unknown
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise _Unknown
        bounds = [self._value(bound, depth + 1) for bound in call.args]
        is_range = call.func.id == "range" and 0 < len(bounds) < 3
        if not is_range or not all(isinstance(bound, int) for bound in bounds):
            raise _Unknown
        numbers = range(*bounds)
        self._values += len(numbers) if abs(bounds[-1]) <= LONGEST_RANGE else 10**9
        self._check(node, depth)
        return [self._formatted(text, loop.target.id, value) for value in numbers]

    def _formatted(self, node: ast.expr, name: str, number: int) -> str:
        if not isinstance(node, ast.JoinedStr):
            raise _Unknown
        parts = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
            elif isinstance(part, ast.FormattedValue) and part.format_spec is None:
                if not (isinstance(part.value, ast.Name) and part.value.id == name):
                    raise _Unknown
                parts.append(str(number))
        return "".join(parts)
