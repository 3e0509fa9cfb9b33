"""Frameworks by their names."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from meshwright.frameworks.base.framework import Framework
from meshwright.frameworks.base.limits import Limit, limits, without_limits
from meshwright.spec.framework_names import PACKAGE, added, bundled, framework_names
from meshwright.spec.spec import Spec

GENERIC = "generic"
"""The framework of a code base about which nothing is known."""

IDEAL = "ideal"
"""The framework that has no limits."""


@cache
def framework(name: str, lifted: frozenset[str] = frozenset()) -> Framework:
    """Return a framework by the name that a spec gives, without its `lifted` limits."""
    if lifted:
        return without_limits(framework(name), lifted, framework(IDEAL))
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
    """Return the framework of a spec, without the limits that the spec lifts."""
    return framework(spec.framework, spec.lifted_limits)


def limits_of(spec: Spec) -> tuple[Limit, ...]:
    """Return the limits of a spec's framework that concern the spec."""
    own, ideal = framework(spec.framework), framework(IDEAL)
    return limits(own, ideal, lambda rule: rule.concerns(spec))
