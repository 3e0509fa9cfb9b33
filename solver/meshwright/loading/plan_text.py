"""Reads plans: `tp=8,pp=2`, a file of fields, an answer's JSON, or a launch file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.launches.launch import FieldValue, Launch
from meshwright.imports.launches.plan import Decided, Sizes, decide
from meshwright.imports.read import (
    kind_of_launch,
    read_launch,
    split_function,
    told_of_script,
)
from meshwright.imports.registry import detect_log
from meshwright.imports.text import read_text
from meshwright.loading.load import add_pin
from meshwright.loading.sources import JOBS, USER_FILES, Files
from meshwright.reading.document import Document, Where, shown, validated
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.consistency import adaptable
from meshwright.spec.model_parts import Details
from meshwright.spec.plan_fields import FIELD, Pins
from meshwright.spec.serving import FixedSpec, ServingSpec
from meshwright.spec.spec import Spec
from meshwright.spec.training import FusedOperation, Overlap, projections
from meshwright.surface import command, option

LONGEST_PLAN = 10_000
"""Most characters of a plan on the command line; all fields take a few hundred."""

_LIKE_A_FILE = re.compile(
    r"[^=,{}\n]{1,200}\.(?:sh|py|ya?ml|json|toml|slurm|sbatch|log|txt)"
)
"""A text that can only mean a file: fields have `=`."""


def read_plan(
    text: str,
    spec: FixedSpec | None = None,
    notes: list[str] | None = None,
    files: Files = USER_FILES,
) -> Pins:
    """Return the fields of a plan, from text or from a file.

    A file holds the fields of pins, what `solve --format json` printed, or the
    configuration with which a framework starts.

    Args:
        text: The fields, or the name of a file.
        spec: The question that the plan is for; a configuration must not contradict it.
        notes: Gets what is said of the options of a configuration.
        files: The files that a text may name.

    Raises:
        SpecError: names the field or the option, its value and what is accepted.
    """
    if (launch := launch_of(text, files)) is not None:
        return pins_of_launch(launch, spec, [] if notes is None else notes)
    document = _document(text, files)
    return validated(document, Pins)


def launch_of(text: str, files: Files = USER_FILES) -> Launch | None:
    """Return the launch in the file that a plan names; None where it names none.

    Raises:
        SpecError: the launch contradicts itself.
    """
    file, function = split_function(Path(text[:LONGEST_PLAN]))
    path = files.file(str(file), Path())
    if path is None and _LIKE_A_FILE.fullmatch(str(file)):
        told = "no such file; expected a file, or fields of a plan such as tp=8,zero=1"
        raise SpecError(f"{option('plan', printable(str(file)))}: {told}")
    if path is None or kind_of_launch(path) is None:
        return None
    return read_launch(path.with_name(f"{path.name}:{function}") if function else path)


def _document(text: str, files: Files) -> Document:
    path = files.file(text, Path())
    if path is not None:
        refuse_other_plan(text, path)
        document = read_yaml(path)
        if not isinstance(document.data, dict):
            raise SpecError(f"{text}: expected the fields of a plan, as a mapping")
        if isinstance(document.data.get("plan"), dict):
            document.data = pins_of_answer(document.data["plan"])
        elif document.data.keys() & {*JOBS, "model"}:  # a spec, such as `import` made
            if not isinstance(document.data.get("pins"), dict):
                told = "is a spec without pins; expected the fields of a plan"
                raise SpecError(f"{printable(text)}: {told}")
            document = document.part("pins")
        return document
    if len(text) > LONGEST_PLAN:
        told = f"expected a file, or at most {LONGEST_PLAN:,} characters"
        raise SpecError(f"{option('plan')}: {len(text):,} characters; {told}")
    document = Document({}, {(): Where(option("plan"))})
    for part in _parts(text):
        add_pin(document, part.strip(), (), option("plan"))
    return document


def refuse_other_plan(text: str, path: Path) -> None:
    """Refuse a script or a program that starts no trainer, and the log of a run.

    Raises:
        SpecError: it is one; names what it starts, or the command that takes it.
    """
    try:
        content = read_text(path)
    except SpecError:
        return  # What cannot be read is told where it is read as a plan.
    told = told_of_script(content)
    if path.suffix == ".py":
        told = "a program that starts no trainer that is known"
    elif not told and (seen := detect_log(content)):
        judged = command("diagnose", option("file", printable(text)))
        told = f"the log of a run ({seen}): {judged}"
    if told:
        raise SpecError(f"{printable(text)}: {told}")


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas, except for commas inside brackets.

    Blanks before a field separate as commas do: 'tp=8 pp=2'.
    """
    text = re.sub(r"(?<![\s,=])\s+(?=\w+=)", ",", text.strip())
    start, depth = 0, 0
    for index, char in enumerate(text):
        depth += (char in "[{") - (char in "]}")
        if char == "," and depth <= 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def pins_of_answer(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the pins that fix every field of the plan in an answer."""
    names = (*FIELD, *Pins.ONLY_SERVING, "mesh")
    pins = {name: plan[name] for name in names if name in plan}
    stages = plan.get("stages")
    if isinstance(stages, list) and all(isinstance(stage, dict) for stage in stages):
        pins["layers"] = [stage.get("layers") for stage in stages]
        pins["recompute_layers"] = [stage.get("recompute_layers") for stage in stages]
    return pins


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
    "training.mlp_chunks",
)
"""Settings of a launch that a spec may leave out, as its framework has them."""

FUSED = ("training.attention", "model.dropout", *_OF_CODE)
"""Settings of the code that may differ from the spec: a note, never an error."""

STATE = ("training.master_weights", "training.moments")
"""State that may differ from what a spec leaves out: a note, too."""


def pins_of_launch(launch: Launch, spec: FixedSpec | None, told: list[str]) -> Pins:
    """Return the fields of a plan that a launch sets; `told` gets notes.

    Raises:
        SpecError: the launch contradicts itself or the spec.
    """
    if isinstance(spec, ServingSpec):
        raise SpecError(f"{launch.name}: is of training; the spec has inference")
    if spec is not None:
        told += _contradictions(launch, spec)
    sizes = sizes_of(launch) if spec is None else sizes_in(spec)
    decided = decide(launch, sizes)
    if spec is not None and decided.global_batch is not None:
        _check_batch(launch, decided, spec)
    told += launch.notes()
    told.append(_left_open(launch, decided))
    return as_pins(launch, decided)


def as_pins(launch: Launch, decided: Decided) -> Pins:
    """Return the decided fields as pins."""
    return validated(Document(decided.pins, {(): Where(launch.name)}), Pins)


def sizes_of(launch: Launch) -> Sizes:
    """Return the sizes that a launch gives."""
    return Sizes(launch.value("gpus"), launch.value("model.n_layers"))


def sizes_in(spec: Spec) -> Sizes:
    """Return the sizes that a spec gives."""
    model, precisions = spec.model, spec.training.precisions
    leading, period = len(model.order.leading), model.order.period
    return Sizes(spec.cluster.gpus, model.n_layers, precisions, leading, period)


def _left_open(launch: Launch, decided: Decided) -> str:
    names = ", ".join(decided.open)
    return f"{launch.name}: left open and taken from the best plan: {names}"


def _contradictions(launch: Launch, spec: Spec) -> Iterator[str]:
    """Yield notes on defaults of a launch that differ from a spec.

    Raises:
        SpecError: an option contradicts the spec.
    """
    if launch.framework and launch.framework != spec.framework:
        raise SpecError(
            f"{launch.name}: starts {launch.title}, whose plans are those of "
            f"framework: {launch.framework}; the spec has {spec.framework}"
        )
    for field, said in launch.values.items():
        if field == "gpus" and said.value != spec.cluster.gpus:
            _refuse(said, "the spec's cluster has", spec.cluster.gpus)
        if field == "precision":
            _check_precision(launch, said, spec)
        if field.startswith(("training.", "model.")):
            yield from _difference(launch, field, said, spec)


def _refuse(said: FieldValue, what: str, expected: Any) -> NoReturn:
    assert said.setting is not None
    accepted = _plain(expected)
    is_same = str(said.setting.value) == str(said.value)
    meant = "" if is_same else f"that is {_plain(said.value)}; "
    said.setting.refuse(f"{meant}{what} {accepted}; accepted: {accepted}")


def _plain(value: Any) -> str:
    """Return a value as messages have it, words without quotes or brackets."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return shown(value).strip("'")


def _check_precision(launch: Launch, said: FieldValue, spec: Spec) -> None:
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


def _difference(
    launch: Launch, field: str, said: FieldValue, spec: Spec
) -> Iterator[str]:
    expected = _value(spec, field)
    is_detail = field.startswith("model.details.")
    is_default = expected is None and (field in LEFT_OUT or is_detail)
    is_default |= is_detail and expected == _at(Details(), field.split(".")[2:])
    if field == "training.gradients" and expected is None:
        is_default = launch.value("precision") == "fp16"
        expected = "fp32"
    value = tuple(said.value) if isinstance(said.value, list) else said.value
    is_same = value == expected or (field == "model.d_ff" and _is_unused(spec))
    # `flash` is whichever fused kernel runs.
    is_open = field == "training.attention" and "flash" in (said.value, expected)
    is_same |= is_open and "plain" not in (said.value, expected)
    if field == "training.lora.targets" and expected is not None:
        differing = projections(value) ^ projections(expected)
        is_same |= not differing & adaptable(spec.model)
    if is_same or is_default:
        return
    is_free = (
        field in FUSED or is_detail or (field in STATE and not _is_said(spec, field))
    )
    if said.setting is not None and not is_free:
        _refuse(said, f"the spec's {field} is", expected)
    where = said.setting.where if said.setting else launch.name
    given = said.setting if said.setting else "what no option changes"
    effect = "; no price depends on it" if is_detail else ", which is what is priced"
    yield (
        f"{where}: {printable(str(given))}: {field} is {_plain(said.value)} there and "
        f"{_plain(expected)} in the spec{effect}"
    )


def _is_said(spec: Spec, field: str) -> bool:
    return field.partition(".")[2] in spec.training.model_fields_set


def _is_unused(spec: Spec) -> bool:
    """Return whether every layer has experts, so that no MLP has the width d_ff."""
    return spec.model.moe is not None and spec.model.first_dense_layers == 0


def _value(spec: Spec, field: str) -> Any:
    """Return the value of a field of a spec, None where the spec leaves it out."""
    if field.startswith(_FUSED):
        fused = spec.training.fused
        return None if fused is None else field.removeprefix(_FUSED) in fused
    return _at(spec, field.split("."))


def _at(value: Any, names: Sequence[str]) -> Any:
    """Return the field of a field and so on, None where one is left out."""
    for name in names:
        value = getattr(value, name) if value is not None else None
    return value


def _check_batch(launch: Launch, decided: Decided, spec: Spec) -> None:
    """Refuse another number of sequences in a step than the spec has."""
    setting, batch = launch.setting("local_batch"), spec.training.global_batch
    if setting is not None and decided.global_batch != batch:
        setting.refuse(
            f"makes {decided.global_batch} sequences a step; the spec's "
            f"training.global_batch is {batch}; accepted: a global batch size beside it"
        )
