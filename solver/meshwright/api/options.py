"""Options that the public functions share, and which specs they are for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypedDict

from meshwright.cost.profile import Profile, load_profile
from meshwright.deadline import Interrupt
from meshwright.errors import SpecError
from meshwright.results.outcome_parts import OpenAnswer
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec

OnProgress = Callable[[str], None]


class Effort(TypedDict, total=False):
    """Keywords of `meshwright.solve`."""

    time_limit_s: float | None
    seed: int
    workers: int
    top: int
    fastest: bool
    near: float
    by_kind: bool | None
    framework_limits: bool
    show_model: bool
    safety: bool
    profile: str | Profile
    on_progress: OnProgress
    interrupt: Interrupt | None


def quiet(_: str) -> None:
    """Ignore a line of progress."""


def read_profile(profile: str | Profile) -> Profile:
    """Return a profile, from its file or its bundled name where that is given."""
    return profile if isinstance(profile, Profile) else load_profile(profile)


def seconds(time_limit_s: float | None) -> float:
    """Return a time limit in seconds, infinite for None."""
    return math.inf if time_limit_s is None else time_limit_s


def refuse_beside_inference(
    spec: Spec | ServingSpec | OpenSpec, given: Mapping[str, bool]
) -> None:
    """Refuse options of training where a spec is about inference.

    Args:
        spec: The spec.
        given: By name of an option, whether it was given.

    Raises:
        SpecError: one of them was given.
    """
    for name, is_given in given.items():
        if is_given and isinstance(spec, ServingSpec):
            raise SpecError(f"{name}: for specs with training; this has inference")


def refuse_beside_open(
    spec: Spec | ServingSpec | OpenSpec, given: Mapping[str, bool]
) -> None:
    """Refuse options of specs with fixed numbers where numbers are open.

    Args:
        spec: The spec.
        given: By name of an option, whether it was given.

    Raises:
        SpecError: one of them was given.
    """
    for name, is_given in given.items():
        if is_given and isinstance(spec, OpenSpec):
            left = " and ".join(spec.open_fields) or "nothing that fits"
            raise SpecError(f"{name}: for fixed numbers; the spec leaves {left} open")


def fixed_spec(
    spec: Spec | ServingSpec | OpenSpec, answer: object
) -> Spec | ServingSpec:
    """Return a spec with the numbers that an answer chose for what it leaves open.

    Raises:
        SpecError: the answer chose none.
    """
    if not isinstance(spec, OpenSpec):
        return spec
    told = getattr(answer, "open", None)
    if not isinstance(told, OpenAnswer) or told.chosen is None:
        raise SpecError("spec: leaves numbers open, and the answer chose none of them")
    return spec.choices[told.chosen.number]
