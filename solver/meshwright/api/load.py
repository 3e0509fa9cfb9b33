"""Reads a spec: `meshwright.load`."""

from __future__ import annotations

from typing import overload

from meshwright.api.arguments import checked
from meshwright.errors import SpecError
from meshwright.loading.load import PinList, RuleList, load_question, load_spec
from meshwright.loading.sources import Source
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec


@overload
def load(
    source: Source,
    kind: None = None,
    *,
    pins: PinList | None = None,
    rules: RuleList = (),
    notes: list[str] | None = None,
) -> Spec | ServingSpec | OpenSpec: ...


@overload
def load(
    source: Source,
    kind: type[Spec],
    *,
    pins: PinList | None = None,
    rules: RuleList = (),
    notes: list[str] | None = None,
) -> Spec: ...


@overload
def load(
    source: Source,
    kind: type[ServingSpec],
    *,
    pins: PinList | None = None,
    rules: RuleList = (),
    notes: list[str] | None = None,
) -> ServingSpec: ...


@checked
def load(
    source: Source,
    kind: type[Spec] | type[ServingSpec] | None = None,
    *,
    pins: PinList | None = None,
    rules: RuleList = (),
    notes: list[str] | None = None,
) -> Spec | ServingSpec | OpenSpec:
    """Return the spec that a file, a bundled name, YAML text or plain data holds.

    Args:
        source: A path, the name of a bundled spec, YAML text (several lines, or one
            that opens a mapping with a brace), or a mapping of the spec's fields.
        kind: `meshwright.Spec` or `meshwright.ServingSpec` where only one of them
            will do. Without it the spec's section decides, `training` or `inference`.
        pins: Plan fields to decide, beside those that the spec pins: `{"tp": 4}`.
        rules: Rules that plans must keep, beside those of the spec: `["tp <= 4"]`, or
            `[{"that": "tp <= 4", "name": "converter", "because": "our converter"}]`.
        notes: Gets what the files of other tools that the spec names leave out, and
            what was assumed instead.

    Returns:
        A `Spec` of training, or a `ServingSpec`; an `OpenSpec` where the spec of
        training leaves machines or sequences open.

    Raises:
        SpecError: names the file, the line, the field, the value, and what is accepted.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("llama3-8b-2xh100-nvlink", pins={"tp": 2})
        >>> spec.cluster.gpus
        2
        >>> mw.load({"model": "llama3-8b", "cluster": "dgx-h100"})
        Traceback (most recent call last):
        ...
        meshwright.errors.SpecError: fields: training: missing; ...
    """
    if kind is Spec:
        return load_spec(source, pins, notes, rules)
    spec = load_question(source, pins, notes, rules)
    if kind is ServingSpec and not isinstance(spec, ServingSpec):
        raise SpecError(f"{spec.title}: has training; expected inference")
    return spec
