"""Reads a spec: `meshwright.load`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack, overload

from meshwright.api.arguments import checked
from meshwright.errors import SpecError
from meshwright.loading.asked import Asked, OpenCount, ask, count_of
from meshwright.loading.load import PinList, RuleList, load_question, load_spec
from meshwright.loading.sources import USER_FILES, Files, Source
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec
from meshwright.surface import sent

AnySpec = Spec | ServingSpec | OpenSpec

Question = AnySpec | Source
"""A spec, or what one is read from."""


class Asking(TypedDict, total=False):
    """Keywords that ask without a spec, or change one; see `load`."""

    pins: PinList | None
    rules: RuleList
    model: str | Mapping[str, Any] | None
    cluster: str | Mapping[str, Any] | None
    gpu: str | None
    machine: str | None
    gpus: int | None
    count: OpenCount | str | None
    framework: str | None
    seq_len: int | str | None
    batch: int | None
    precision: str | None
    lora: int | None


@overload
def load(
    source: Question | None = None,
    kind: None = None,
    *,
    notes: list[str] | None = None,
    **asking: Unpack[Asking],
) -> AnySpec: ...


@overload
def load(
    source: Question | None,
    kind: type[Spec],
    *,
    notes: list[str] | None = None,
    **asking: Unpack[Asking],
) -> Spec: ...


@overload
def load(
    source: Question | None,
    kind: type[ServingSpec],
    *,
    notes: list[str] | None = None,
    **asking: Unpack[Asking],
) -> ServingSpec: ...


@checked
def load(
    source: Question | None = None,
    kind: type[Spec] | type[ServingSpec] | None = None,
    *,
    notes: list[str] | None = None,
    **asking: Unpack[Asking],
) -> AnySpec:
    """Return the spec that a file, a bundled name, YAML text or plain data holds.

    Args:
        source: A path, the name of a bundled spec, YAML text (several lines, or one
            that opens a mapping with a brace), a mapping of the spec's fields, or a
            spec that is loaded already. Not needed with `model` and `cluster`.
        kind: `meshwright.Spec` or `meshwright.ServingSpec` where only one of them
            will do. Without it the spec's section decides, `training` or `inference`.
        pins: Plan fields to decide, beside those that the spec pins: `{"tp": 4}`.
        rules: Rules that plans must keep, beside those of the spec: `["tp <= 4"]`, or
            `[{"that": "tp <= 4", "name": "converter", "because": "our converter"}]`.
        notes: Gets what the files of other tools that the spec names leave out, and
            what was assumed instead.
        model: A bundled model, as on the Hugging Face hub, a config.json, or fields.
        cluster: A bundled machine or topology, a file of one, or fields.
        gpu: The GPU, where the file of a machine does not say it; or, without a
            cluster, GPUs in their usual host.
        machine: The machine that the switches of a file join.
        gpus: GPUs in all, instead of a `count` of machines.
        count: Machines: 8; or open, to be chosen: [1, 2, 4] or '1..64'.
        framework: What will train.
        seq_len: Tokens of a sequence, as a number or as '128k'.
        batch: Sequences of a step.
        precision: bf16, fp8, ...
        lora: Rank of LoRA adapters.

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
        >>> mw.load(model="llama3-8b", cluster="dgx-h100", gpus=16).cluster.count
        2
        >>> mw.load({"model": "llama3-8b", "cluster": "dgx-h100"})
        Traceback (most recent call last):
        ...
        meshwright.errors.SpecError: fields: training: missing; ...
    """
    words: dict[str, Any] = {**asking}
    pins, rules = words.pop("pins", None), words.pop("rules", ())
    words["count"] = count_of(words.get("count"), "count")
    return read_question(
        source, Asked(**words), kind, pins=pins, rules=rules, notes=notes
    )


@overload
def as_spec(
    spec: Question | None, kind: type[Spec], asking: Asking | None = None
) -> Spec: ...


@overload
def as_spec(
    spec: Question | None, kind: None = None, asking: Asking | None = None
) -> AnySpec: ...


def as_spec(
    spec: Question | None, kind: type[Spec] | None = None, asking: Asking | None = None
) -> AnySpec:
    """Return the spec that an argument `spec` means, or that `asking` describes.

    Raises:
        SpecError: see `load`; names the argument if its value is no spec's name.
    """
    words: Any = {} if asking is None else asking
    try:
        return load(spec, kind, **words)
    except SpecError as error:
        is_named = isinstance(spec, str) and str(error).startswith(repr(spec)[:20])
        raise SpecError(f"spec: {error}" if is_named else str(error)) from None


def read_question(
    source: Question | None,
    asked: Asked,
    kind: type[Spec] | type[ServingSpec] | None = None,
    *,
    pins: PinList | None = None,
    rules: RuleList = (),
    notes: list[str] | None = None,
    files: Files = USER_FILES,
) -> AnySpec:
    """Return the spec of a source with what is asked beside it; see `load`.

    Raises:
        SpecError: see `load`; or a file is named that `files` does not have.
    """
    is_plain = asked.is_silent and not pins and not rules
    if isinstance(source, Spec | ServingSpec | OpenSpec) and is_plain:
        return _of_kind(source, kind)
    told = [] if notes is None else notes
    given = None if source is None else source_of(source)
    if given is None or not asked.is_silent:
        with sent():
            given = ask(given, asked, told, files)
    if kind is Spec:
        return load_spec(given, pins, told, rules, files)
    return _of_kind(load_question(given, pins, told, rules, files), kind)


def source_of(source: Question) -> Source:
    """Return the source of a spec: itself, or the fields of one that is loaded already.

    Raises:
        SpecError: the spec leaves numbers open, which are resolved by now.
    """
    if isinstance(source, OpenSpec):
        told = "is loaded and has open numbers; give the rest when it is loaded"
        raise SpecError(f"source: {told}")
    if isinstance(source, Spec | ServingSpec):
        return source.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return source


def _of_kind(spec: AnySpec, kind: type[Spec] | type[ServingSpec] | None) -> AnySpec:
    if kind is ServingSpec and not isinstance(spec, ServingSpec):
        raise SpecError(f"{spec.title}: has training; expected inference")
    if kind is Spec and isinstance(spec, ServingSpec):
        raise SpecError(f"{spec.title}: has inference; expected training")
    return spec
