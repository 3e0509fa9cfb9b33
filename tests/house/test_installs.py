"""The versions that pyproject.toml names are those that `.ci/run` tests."""

from __future__ import annotations

import os
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
CI = ROOT / ".ci"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"dev", "docs", "torch"}

in_checkout = pytest.mark.skipif(not CI.exists(), reason="not a checkout of git")


def needed(extras: set[str]) -> list[Requirement]:
    """Return what Meshwright needs on this Python with extras."""
    texts = [
        *PROJECT["dependencies"],
        *(extra for name in sorted(extras) for extra in EXTRAS[name]),
    ]
    read = [Requirement(text) for text in texts]
    here = [one for one in read if one.marker is None or one.marker.evaluate()]
    return [one for one in here if one.name != "meshwright"]


USED = needed(set(EXTRAS) - FOR_DEVELOPERS)


def lowest(requirement: Requirement) -> Version:
    """Return the version that a requirement names: each has one, and no other."""
    (bound,) = requirement.specifier
    assert bound.operator == ">="
    return Version(bound.version)


@in_checkout
def test_lowest_versions_are_installed_from_what_is_stated() -> None:
    script = (CI / "run").read_text("utf-8").replace("\\\n", " ")
    (python,) = re.findall(r'uv venv .*--python (\S+) "\$work/lowest"', script)
    assert PROJECT["requires-python"] == f">={python}"
    (words,) = re.findall(r"uv pip install .*--resolution lowest-direct .*", script)
    assert "--requirement pyproject.toml " in words
    assert set(re.findall(r"--extra (\S+)", words)) == set(EXTRAS) - FOR_DEVELOPERS


@pytest.mark.skipif("MESHWRIGHT_LOWEST" not in os.environ, reason="not the lowest")
def test_the_lowest_versions_can_be_had() -> None:
    """A bound below what the other libraries accept is none."""
    bounds = {one.name: lowest(one).release for one in USED}
    installed = {name: Version(version(name)).release for name in bounds}
    cut = {name: found[: len(bounds[name])] for name, found in installed.items()}
    assert cut == bounds


@pytest.mark.parametrize("requirement", USED, ids=str)
def test_every_library_that_users_need_has_a_lowest_version(
    requirement: Requirement,
) -> None:
    assert lowest(requirement)


@in_checkout
def test_constraints_pin_what_tests_need() -> None:
    lines = (CI / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines]
    assert [one.url for one in pins if one.url] == []
    here = [one for one in pins if one.marker is None or one.marker.evaluate()]
    pinned = {one.name: one.specifier for one in here}
    assert len(pinned) == len(here)
    assert "torch" not in pinned  # the build for CPUs has a version of its own
    for one in needed(set(EXTRAS) - {"torch"}):
        (pin,) = pinned[re.sub(r"[-_.]+", "-", one.name).lower()]
        assert pin.operator == "=="
        assert one.specifier.contains(pin.version), one
