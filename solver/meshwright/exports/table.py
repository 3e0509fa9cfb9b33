"""The targets by name, and a plan as files of one of them."""

from __future__ import annotations

from importlib import import_module

from meshwright.errors import SpecError
from meshwright.exports.files import Export
from meshwright.exports.refusals import NotLaunchableError
from meshwright.exports.rule_refusals import rule_refusals
from meshwright.exports.target import Target
from meshwright.exports.target_names import TARGETS
from meshwright.plans.plan import Plan
from meshwright.spec.spec import Spec


def target(name: str) -> Target:
    """Return the target of a name."""
    if name not in TARGETS:
        known = ", ".join(TARGETS)
        raise SpecError(f"to: {name!r} is no target; accepted: {known}")
    module = import_module(f"meshwright.exports.{name.replace('-', '_')}")
    found = module.TARGET
    assert isinstance(found, Target)
    return found


def target_of(framework: str) -> str:
    """Return the target that plans of a framework are written for unless told."""
    for name in TARGETS:
        if target(name).framework == framework:
            return name
    frameworks = ", ".join(dict.fromkeys(target(name).framework for name in TARGETS))
    sentence = f"plans of {framework} cannot be exported; those of {frameworks} can"
    raise SpecError(f"framework: {sentence}")


def export_plan(spec: Spec, plan: Plan, to: str) -> Export:
    """Return a plan as files.

    Raises:
        NotLaunchableError: the target cannot be told all of the plan.
        SpecError: the plan is one of another framework.
    """
    launcher = _target_for(spec, to)
    if refused := [*rule_refusals(spec, plan), *launcher.refusals(spec, plan)]:
        raise NotLaunchableError(launcher.title, refused)
    files = tuple(launcher.files(spec, plan))
    return Export(target=to, version=launcher.version, files=files)


def _target_for(spec: Spec, to: str) -> Target:
    own = target(to)
    if own.framework != spec.framework:
        sentence = f"launches plans of {own.framework}, and the spec's are of "
        raise SpecError(f"to: {to} {sentence}{spec.framework}")
    return own
