"""Frameworks by their names."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from meshwright.frameworks.base.framework import Framework
from meshwright.spec.framework_names import PACKAGE, added, bundled, framework_names
from meshwright.spec.spec import Spec
from meshwright.spec.training import FusedKernels

GENERIC = "generic"
"""The framework of a code base about which nothing is known."""


@cache
def framework(name: str) -> Framework:
    """Return a framework by the name that a spec gives."""
    if name in bundled():
        found = import_module(f"{PACKAGE}.{name}").FRAMEWORK
    else:
        found = added()[name].load()
    assert isinstance(found, Framework)
    return found


def framework_published_as(text: str) -> str | None:
    """Return the name of the framework that a text names, None if it names none.

    The longest word decides, since the name of a fork contains that of its origin.
    """
    lower = text.lower()
    found = [
        (len(word), name)
        for name in framework_names()
        for word in framework(name).published_as
        if word in lower
    ]
    return max(found)[1] if found else None


def framework_of(spec: Spec) -> Framework:
    """Return the framework of a spec."""
    return framework(spec.framework)


def fused_kernels_of(spec: Spec) -> FusedKernels:
    """Return which kernels are fused: as the spec says, else as its framework does."""
    return spec.training.fused_kernels or framework_of(spec).fused_kernels
