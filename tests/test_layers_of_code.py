"""Who may import whom, and how long a file may be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import meshwright

ROOT = Path(meshwright.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LONGEST = 300


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, wherever in it.

    `from meshwright.cost import traffic` names meshwright.cost.traffic where that is
    a file, so that no way of writing an import hides a module.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import"
            assert node.module is not None
            found.add(node.module)
            found |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if is_own_module(f"{node.module}.{alias.name}")
            }
    return found


def is_own_module(name: str) -> bool:
    parts = name.split(".")
    if parts[0] != "meshwright":
        return False
    path = ROOT.joinpath(*parts[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def importers(package: str) -> set[str]:
    return {
        name_of(path)
        for path in FILES
        if any(own == package or own.startswith(package + ".") for own in imports(path))
    }


def own_modules(path: Path) -> set[str]:
    """Return what a file imports from Meshwright, without the leading name."""
    return {
        own.removeprefix("meshwright.")
        for own in imports(path)
        if own.startswith("meshwright.")
    }


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == own or name.startswith(own + ".") for own in packages)


def test_only_cpsat_imports_ortools() -> None:
    found = importers("ortools")
    assert found, "nothing imports ortools: is this test looking in the right place?"
    assert {name.split("/")[0] for name in found} == {"cpsat"}


def test_only_topology_imports_networkx() -> None:
    found = importers("networkx")
    assert found, "nothing imports networkx: is this test looking in the right place?"
    assert {name.split("/")[0] for name in found} == {"topology"}


CHECKERS = {"check.py": "cost.price", "serving/check.py": "serving.price"}
"""With the costs that they re-score plans by."""

SERVING = ("stages", "bounds", "lattice", "problem", "solve")

SOLVER = ("cpsat", "bounds", "prune", "lattice", "scaling", "problem", "solve",
    *(f"serving.{name}" for name in SERVING),
)  # fmt: skip


def reached(path: Path) -> set[str]:
    """Return the modules of Meshwright that importing a file brings in."""
    seen: set[str] = set()
    todo = own_modules(path)
    while todo:
        name = todo.pop()
        seen.add(name)
        file = ROOT.joinpath(*name.split("."))
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        if file.is_file():
            todo |= own_modules(file) - seen
    return seen


def test_checker_never_sees_the_solver() -> None:
    """It is the specification of a plan: it may not reach what it checks."""
    for path, costs in CHECKERS.items():
        modules = reached(ROOT / path)
        assert costs in modules
        assert not {name for name in modules if within(name, SOLVER)}


@pytest.mark.parametrize("path", sorted((ROOT / "cost").glob("*.py")), ids=name_of)
def test_costs_never_see_solver_or_reports(path: Path) -> None:
    banned = (*SOLVER, "check", "nearest", "decode", "cli", "report")
    assert not {name for name in reached(path) if within(name, banned)}


@pytest.mark.parametrize("path", sorted((ROOT / "cpsat").glob("*.py")), ids=name_of)
def test_model_sees_whole_numbers_alone(path: Path) -> None:
    own = own_modules(path)
    assert not {
        name for name in own if not within(name, ("cpsat", "errors", "deadline"))
    }


BESIDE_PLANS = {
    "topology.py": ("spec", "topology.kinds", "topology.pairs"),
    "drawing.py": ("errors", "spec.cluster", "topology.kinds", "topology.sketch"),
    "chart.py": ("errors",),
    "degrees.py": ("explain.data",),
    "explain.py": ("explain.data",),
    "ledger.py": ("ledger.data",),
    "gemm.py": ("gemm.data",),
    "run.py": ("economics.data",),
    "compare.py": ("explain.compared", "ledger.data"),
    "turns.py": ("explain.compared",),
    "short_names.py": ("explain.compared",),
    "rules.py": ("rule",),
    "search.py": ("search.row", "search.summary"),
    "serving.py": ("serving.plan",),
    "serving_explain.py": ("serving.plan", "serving.explanation"),
}
"""What these reports know beside plans."""


@pytest.mark.parametrize("path", sorted((ROOT / "report").glob("*.py")), ids=name_of)
def test_reports_know_plans_alone(path: Path) -> None:
    own = own_modules(path)
    known = ("plan", "spec.pins", "report", "escape", *BESIDE_PLANS.get(path.name, ()))
    assert not {n for n in own if not within(n, known)}
    foreign = {name.split(".")[0] for name in imports(path)} - {"meshwright"}
    assert not foreign & {"ortools", "networkx", "numpy", "pydantic", "typer", "yaml"}


@pytest.mark.parametrize("path", sorted((ROOT / "spec").glob("*.py")), ids=name_of)
def test_specs_know_nothing_of_costs(path: Path) -> None:
    """Of imports only what turns files into parts of a topology."""
    known = ("spec", "catalog", "errors", "escape", "imports.clusters")
    assert not {name for name in own_modules(path) if not within(name, known)}
    banned = ("cost", "topology", "report", *SOLVER)
    assert not {name for name in reached(path) if within(name, banned)}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_is_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST, f"{name_of(path)} has {lines} lines"
