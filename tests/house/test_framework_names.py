"""Only the room of frameworks, and those that read and write their files, know names.

Everything else asks a framework what it does, so that one more framework is one more
file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import meshwright
from meshwright.spec.spec import bundled

ROOT = Path(meshwright.__file__).parent
KNOWING = ("frameworks", "imports", "exports")
FILES = [p for p in ROOT.rglob("*.py") if p.relative_to(ROOT).parts[0] not in KNOWING]


def compared(tree: ast.AST, names: frozenset[str]) -> Iterator[ast.Compare]:
    """Yield comparisons with one of these names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
            if texts & names:
                yield node


def test_no_framework_is_compared_by_its_name() -> None:
    names = frozenset(bundled())
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno}"
        for path in FILES
        for node in compared(ast.parse(path.read_text("utf-8")), names)
    ]
    assert len(FILES) > 100
    assert found == []


def test_a_comparison_would_be_found() -> None:
    names = frozenset({"megatron"})
    assert len(list(compared(ast.parse("a if name == 'megatron' else b"), names))) == 1
