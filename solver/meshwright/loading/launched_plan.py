"""The plan of a launch as pins of a spec, which it must not contradict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, get_args

from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.launches.launch import Launch, Said
from meshwright.imports.launches.plan import Decided, Sizes, decide
from meshwright.imports.read import read_launch
from meshwright.reading.document import Document, Where
from meshwright.reading.messages import explain, shown
from meshwright.spec.pins import Pins
from meshwright.spec.serving import Question, ServingSpec
from meshwright.spec.spec import Spec
from meshwright.spec.training import FusedOperation, Overlap

_FUSED = "training.fused."

_OF_CODE = (
    *(f"{_FUSED}{kind}" for kind in get_args(FusedOperation)),
    *(f"training.overlap.{kind}" for kind in Overlap.model_fields),
    "training.compile",
    "training.cuda_graphs",
)

LEFT_OUT = (
    *_OF_CODE,
    "training.context_exchange",
    "training.loss_chunks",
    "training.loss_parallel",
)
"""Facts that differ from no spec that leaves them out: its framework has them then."""

FUSED = ("training.attention", "model.dropout", *_OF_CODE)
"""Facts of the code that a spec may leave to its framework: never an error."""


def read_launched(
    path: Path, spec: Question | None = None, notes: list[str] | None = None
) -> Pins:
    """Return the fields of a plan that a file decides which starts training.

    Args:
        path: A script, arguments, or a configuration of a framework.
        spec: The question that the plan is for; without, its sizes stay open.
        notes: Gets what is ignored, what changes nothing, and what is left open.

    Raises:
        SpecError: the file contradicts itself or the spec; names file, line, option,
            value, and what would be accepted.
    """
    launch = read_launch(path)
    if isinstance(spec, ServingSpec):
        raise SpecError(f"{path}: is of training; the spec has inference")
    told = [] if notes is None else notes
    if spec is not None:
        told += _contradictions(launch, spec)
    sizes = sizes_of(launch) if spec is None else _sizes(spec)
    decided = decide(launch, sizes)
    if spec is not None and decided.global_batch is not None:
        _check_batch(launch, decided, spec)
    told += launch.notes()
    told.append(_left_open(launch, decided))
    return as_pins(launch, decided)


def as_pins(launch: Launch, decided: Decided) -> Pins:
    """Return the decided fields as pins."""
    try:
        return Pins.model_validate(decided.pins)
    except ValidationError as error:
        document = Document(decided.pins, {(): Where(launch.name)})
        raise SpecError(explain(document, error, Pins)) from None


def sizes_of(launch: Launch) -> Sizes:
    """Return the sizes that a launch has itself."""
    return Sizes(launch.value("gpus"), launch.value("model.n_layers"))


def _sizes(spec: Spec) -> Sizes:
    precisions = spec.training.precisions
    return Sizes(spec.cluster.gpus, spec.model.n_layers, precisions)


def _left_open(launch: Launch, decided: Decided) -> str:
    names = ", ".join(decided.open)
    return f"{launch.name}: left open and taken from the best plan: {names}"


def _contradictions(launch: Launch, spec: Spec) -> Iterator[str]:
    """Yield notes on what a launch does by default and a spec has otherwise.

    Raises:
        SpecError: an option says other than the spec.
    """
    if launch.framework and launch.framework != spec.framework:
        raise SpecError(
            f"{launch.name}: starts {launch.title}, whose plans are those of "
            f"framework: {launch.framework}; the spec has {spec.framework}"
        )
    for field, said in launch.said.items():
        if field == "gpus" and said.value != spec.cluster.gpus:
            _refuse(said, "the spec's cluster has", spec.cluster.gpus)
        if field == "precision":
            _check_precision(launch, said, spec)
        if field.startswith(("training.", "model.")):
            yield from _difference(launch, field, said, spec)


def _refuse(said: Said, what: str, expected: Any) -> NoReturn:
    assert said.setting is not None
    own = _plain(expected)
    is_same = str(said.setting.value) == str(said.value)
    meant = "" if is_same else f"that is {_plain(said.value)}; "
    said.setting.refuse(f"{meant}{what} {own}; accepted: {own}")


def _plain(value: Any) -> str:
    """Return a value as messages have it, words without quotes."""
    return shown(value).strip("'")


def _check_precision(launch: Launch, said: Said, spec: Spec) -> None:
    words = said.value if isinstance(said.value, list) else [said.value]
    accepted = spec.training.precisions
    if set(words) & set(accepted):
        return
    if said.setting is not None:
        _refuse(said, "the spec's training.precision is", " or ".join(accepted))
    raise SpecError(
        f"{launch.name}: has no option for a precision and so runs in "
        f"{' or '.join(words)}; accepted: {' or '.join(accepted)}, the spec's "
        "training.precision"
    )


def _difference(launch: Launch, field: str, said: Said, spec: Spec) -> Iterator[str]:
    expected = _value(spec, field)
    is_default = expected is None and field in LEFT_OUT
    if field == "training.gradients" and expected is None:
        is_default = launch.value("precision") == "fp16"
        expected = "fp32"
    is_same = said.value == expected or (field == "model.d_ff" and _is_unused(spec))
    # `flash` is whichever fused kernel runs.
    is_open = field == "training.attention" and "flash" in (said.value, expected)
    is_same |= is_open and "plain" not in (said.value, expected)
    if is_same or is_default:
        return
    if said.setting is not None and field not in FUSED:
        _refuse(said, f"the spec's {field} is", expected)
    where = said.setting.where if said.setting else launch.name
    given = said.setting if said.setting else "what no option changes"
    yield (
        f"{where}: {printable(str(given))}: {field} is {_plain(said.value)} there and "
        f"{_plain(expected)} in the spec, which is what is priced"
    )


def _is_unused(spec: Spec) -> bool:
    """Return whether every layer has experts, so that no MLP has the width d_ff."""
    return spec.model.moe is not None and spec.model.first_dense_layers == 0


def _value(spec: Spec, field: str) -> Any:
    """Return the value of a field of a spec, None where the spec leaves it out."""
    if field.startswith(_FUSED):
        fused = spec.training.fused
        return None if fused is None else field.removeprefix(_FUSED) in fused
    value: Any = spec
    for name in field.split("."):
        value = getattr(value, name) if value is not None else None
    return value


def _check_batch(launch: Launch, decided: Decided, spec: Spec) -> None:
    """Refuse another number of sequences in a step than the spec has."""
    own, batch = launch.setting("local_batch"), spec.training.global_batch
    if own is not None and decided.global_batch != batch:
        own.refuse(
            f"makes {decided.global_batch} sequences a step; the spec's "
            f"training.global_batch is {batch}; accepted: a global batch size beside it"
        )
