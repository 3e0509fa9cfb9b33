"""What ships Meshwright elsewhere says the same as pyproject.toml and `--help`."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import meshwright
from tests.helpers.command import run

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
CONDA_NAMES = {"ortools": "ortools-python"}

pytestmark = pytest.mark.skipif(
    not (ROOT / "action.yml").exists(), reason="not a checkout of git"
)


def loaded(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_the_wheel_has_every_folder_that_is_read() -> None:
    """A folder that the package reads beside itself must be put into the wheel."""
    build = PYPROJECT["tool"]["hatch"]["build"]["targets"]
    shipped = build["wheel"]["force-include"]
    modules = ["solver/meshwright", "solver/meshwright_verify.py"]
    assert build["wheel"]["packages"] == modules
    read = {"profiles", "topologies", "specs", "skills"}
    assert shipped == {name: f"meshwright/{name}" for name in shipped}
    assert {*shipped} == read
    assert {f"/{name}" for name in read} <= {*build["sdist"]["include"]}
    for name in read:
        assert any((ROOT / name).iterdir())
    copied = re.findall(r"^COPY (\S+) \1$", (ROOT / "Dockerfile").read_text(), re.M)
    kept = (ROOT / ".dockerignore").read_text().split()
    assert {*copied} == {*read, "solver"}
    assert {f"!{name}" for name in copied} <= {*kept}


def test_the_recipe_needs_what_the_package_needs() -> None:
    recipe = loaded("conda/recipe.yaml")
    assert recipe["context"]["version"] == meshwright.__version__
    needs = [Requirement(one) for one in PROJECT["dependencies"]]
    expected = {
        f"{CONDA_NAMES.get(need.name, need.name)} {need.specifier}" for need in needs
    }
    python = f"python {PROJECT['requires-python']}"
    assert {*recipe["requirements"]["run"]} == {*expected, python}
    (build,) = PYPROJECT["build-system"]["requires"]
    assert build.replace(">=", " >=") in recipe["requirements"]["host"]


def test_the_citation_is_of_this_version() -> None:
    cited = loaded("CITATION.cff")
    needed = {"cff-version", "message", "title", "version", "authors", "license"}
    assert needed <= cited.keys()
    assert cited["version"] == meshwright.__version__
    assert cited["license"] == PROJECT["license"]


def test_the_image_installs_extras_that_there_are() -> None:
    (extras,) = re.findall(r"'\.\[(.+)\]'", (ROOT / "Dockerfile").read_text("utf-8"))
    assert {*extras.split(",")} <= PROJECT["optional-dependencies"].keys()


def test_the_hook_and_the_action_call_the_command_as_it_is() -> None:
    (hook,) = loaded(".pre-commit-hooks.yaml")
    assert shlex.split(hook["entry"]) == ["meshwright", "check"]
    script = loaded("action.yml")["runs"]["steps"][-1]["run"]
    told = run("check", "--help").stdout
    options = {*re.findall(r"--[a-z]+", script)}
    assert options == {"--annotate", "--spec", "--cluster", "--model"}
    assert all(option in told for option in options)
    inputs = loaded("action.yml")["inputs"]
    assert {"paths", "spec", "cluster", "model"} <= inputs.keys()
    assert "${{" not in script
