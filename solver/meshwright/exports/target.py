"""Targets: what each one writes and refuses, and a plan as the files of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from meshwright.errors import SpecError
from meshwright.exports import LAUNCHERS, TARGETS
from meshwright.exports.files import Export, ExportedFile
from meshwright.exports.launchers import launcher_refusals, with_launcher
from meshwright.exports.refusals import NotLaunchableError, Refusal, rule_refusals
from meshwright.plans.plan import Plan
from meshwright.plans.ranks import rank_map
from meshwright.spec.spec import Spec


@dataclass(frozen=True)
class Target:
    """One program that plans are written for."""

    title: str
    version: str
    """Name and version of the packages whose checks accept the files."""
    framework: str
    """The framework whose plans it launches, by the name that specs give it."""
    refusals: Callable[[Spec, Plan], Iterator[Refusal]]
    """Yields what of a plan the program cannot be told."""
    files: Callable[[Spec, Plan], list[ExportedFile]]
    """Writes a plan that is not refused."""
    also: tuple[str, ...] = ()
    """Other frameworks whose plans it launches."""
    is_by_ray: bool = False
    """Whether Ray starts its ranks, so that no launcher does."""


def target(name: str) -> Target:
    """Return the target of a name."""
    if name not in TARGETS:
        known = ", ".join(TARGETS)
        raise SpecError(f"to: {name!r} is no target; accepted: {known}")
    module = import_module(f"meshwright.exports.{_MODULES.get(name, name)}")
    found = module.TARGETS[name] if hasattr(module, "TARGETS") else module.TARGET
    assert isinstance(found, Target)
    return found


_MODULES = {
    "megatron-bridge": "megatron_bridge",
    **dict.fromkeys(("axolotl", "llama-factory", "trl"), "hf_trainers"),
    **dict.fromkeys(("verl", "slime"), "reinforcement"),
}
"""The modules of targets, where they have other names."""


def target_of(framework: str) -> str:
    """Return the target that plans of a framework are written for unless told."""
    for name in TARGETS:
        if target(name).framework == framework:
            return name
    frameworks = ", ".join(dict.fromkeys(target(name).framework for name in TARGETS))
    sentence = f"plans of {framework} cannot be exported; those of {frameworks} can"
    raise SpecError(f"framework: {sentence}")


def export_plan(
    spec: Spec, plan: Plan, to: str, launcher: str = LAUNCHERS[0]
) -> Export:
    """Return a plan as files, with those of a launcher.

    Raises:
        NotLaunchableError: the target cannot be told all of the plan.
        SpecError: the plan is one of another framework.
    """
    if launcher not in LAUNCHERS:
        known = ", ".join(LAUNCHERS)
        raise SpecError(f"launcher: {launcher!r} is none; accepted: {known}")
    program, ranks = _target_for(spec, to), rank_map(spec.cluster, plan)
    refused = [*rule_refusals(spec, plan), *program.refusals(spec, plan)]
    if program.is_by_ray and launcher != LAUNCHERS[0]:
        raise SpecError(f"launcher: {launcher}; {program.title} starts ranks by Ray")
    if refused := [*refused, *launcher_refusals(ranks, launcher)]:
        raise NotLaunchableError(program.title, refused)
    files = tuple(program.files(spec, plan))
    exported = Export(target=to, version=program.version, files=files)
    if program.is_by_ray:
        return exported
    return with_launcher(exported, spec, ranks, launcher)


def _target_for(spec: Spec, to: str) -> Target:
    launcher = target(to)
    accepted = (launcher.framework, *launcher.also)
    if spec.framework not in accepted:
        sentence = f"launches plans of {' and '.join(accepted)}, and the spec's are of "
        raise SpecError(f"to: {to} {sentence}{spec.framework}")
    return launcher


def recomputed_layers(plan: Plan) -> list[int]:
    """Return the recomputed layers of each stage."""
    return [stage.recompute_layers for stage in plan.stages]


def layers(plan: Plan) -> list[int]:
    """Return the layers of each stage."""
    return [stage.layers for stage in plan.stages]


def listed(numbers: list[int]) -> str:
    """Return numbers as text, one for all of them where they are equal."""
    return ", ".join(map(str, numbers if len({*numbers}) > 1 else numbers[:1]))


def recomputed_text(plan: Plan) -> str:
    """Return how many layers of each stage are recomputed, in words."""
    return f"{listed(recomputed_layers(plan))} of {listed(layers(plan))} layers"


def all_or_no_layers(plan: Plan, check: str) -> Iterator[Refusal]:
    """Yield what of a plan's recomputation is not of every whole layer, or of none."""
    if plan.recompute == "selective":
        sentence = f"selective on {recomputed_text(plan)}: it recomputes whole layers"
        yield Refusal("recompute", sentence, check)
    elif plan.recomputes_some_layers:
        text = recomputed_text(plan)
        sentence = f"full on {text}: it recomputes every layer, or none"
        yield Refusal("recompute", sentence, check)
