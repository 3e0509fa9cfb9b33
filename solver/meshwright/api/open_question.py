"""The fixed spec that an answer to an open one is about."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.errors import SpecError
from meshwright.results.outcome_parts import OpenAnswer
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec


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
