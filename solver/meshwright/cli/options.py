"""The options of the commands, from `options.yaml`; and the question that some ask."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.output import check_written, command_words, tell, write
from meshwright.reading.yaml_and_csv import table_beside

if TYPE_CHECKING:
    from meshwright.loading.asked import Asked
    from meshwright.loading.sources import Source
    from meshwright.spec.open_spec import OpenSpec
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec


MOST_BYTES = 50_000_000

METAVARS = {
    bool: "",
    int: "N",
    float: "N",
    Path: "FILE",
    str: "TEXT",
    list[Path]: "FILE",
    list[str]: "TEXT",
}
"""How the help of a command shows the values of its options, by their type."""


@dataclass(frozen=True)
class Words:
    """The options of a question as they are typed; see `loading.asked.Asked`."""

    model: str | None = None
    cluster: str | None = None
    gpu: str | None = None
    machine: str | None = None
    count: str | None = None
    framework: str | None = None
    seq_len: str | None = None
    batch: int | None = None
    precision: str | None = None
    lora: int | None = None
    set: list[str] | None = None

    @property
    def is_silent(self) -> bool:
        """Return whether no option is given; one that is given may be empty."""
        return all(value is None or value == [] for value in vars(self).values())


UNASKED = Words()


def asked_again(first: str | None, asked: Words, **more: str | None) -> str:
    """Return a question as a shell takes it; empty where stdin was a part of it.

    `first` is the spec or the log, `more` are options beside those of a question.
    """
    words = [] if first is None else [first]
    if more.get("profile") == DEFAULT_PROFILE:
        del more["profile"]
    for name, value in (vars(asked) | more).items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                words += [f"--{name.replace('_', '-')}", str(one)]
    return "" if "-" in (first, asked.cluster) else command_words(*words)


@cache
def _table() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the options by command and parameter, as `options.yaml` has them."""
    table: dict[str, dict[str, dict[str, Any]]]
    table = table_beside(__file__, "options.yaml")
    return table


def with_options(verb: str, command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options that `options.yaml` has for its parameters.

    A parameter `asked` becomes the options of `Words`. What the command writes is
    checked before it begins.
    """
    told = _table()["shared"] | _table().get(verb, {})
    asked = get_type_hints(Words)
    given: dict[str, tuple[Any, Any]] = {}
    for name, one in signature(command, eval_str=True).parameters.items():
        if name == "asked":
            given |= {field: (hint, None) for field, hint in asked.items()}
        else:
            given[name] = one.annotation, one.default
    kind = Parameter.KEYWORD_ONLY
    parameters = [
        Parameter(name, kind, default=default, annotation=_annotated(hint, told[name]))
        for name, (hint, default) in given.items()
    ]

    @wraps(command)
    def run(**values: Any) -> None:
        for name in given:
            check_written(told[name].get("writes"), values[name], _flag(name, told))
        if "asked" in signature(command).parameters:
            values["asked"] = Words(**{name: values.pop(name) for name in asked})
        command(**values)

    run.__annotations__ = {one.name: one.annotation for one in parameters}
    vars(run)["__signature__"] = Signature(parameters)
    return run


def _flag(name: str, told: dict[str, dict[str, Any]]) -> str:
    """Return the long name of an option."""
    names = told[name].get("names", [f"--{name.replace('_', '-')}"])
    return str(names[-1])


def _annotated(hint: Any, told: dict[str, Any]) -> Any:
    """Return the annotation of a parameter, as typer takes it."""
    more = {name: value for name, value in told.items() if name != "writes"}
    names = more.pop("names", ())
    if more.pop("is_argument", False):
        return Annotated[hint, typer.Argument(*names, **more)]
    for one in {hint, *get_args(hint)} & METAVARS.keys():
        more = {"metavar": METAVARS[one]} | more
    return Annotated[hint, typer.Option(*names, **more)]


def load_asked(
    spec: str | None,
    words: Words,
    pins: list[str] | None = None,
    save: Path | None = None,
    notes: list[str] | None = None,
    plan: str | None = None,
) -> Spec | ServingSpec | OpenSpec:
    """Return the spec of a source, changed by the options.

    Its notes are added to `notes`, or else printed. Without a source, a `plan` that
    names what starts training says what the options do not.
    """
    from meshwright.api.load import load

    told: list[str] = []
    with _source(spec, words, save, told, plan) as source:
        loaded = load(source, pins=pins, notes=told)
    if notes is None:
        tell(told)
    else:
        notes += told
    return loaded


def load_training(
    spec: str | None,
    words: Words,
    notes: list[str],
    pins: list[str] | None = None,
    plan: str | None = None,
) -> tuple[Spec, Source]:
    """Return a spec of training as `load_asked` does, and what it was read from."""
    from meshwright.api.load import load
    from meshwright.spec.spec import Spec

    with _source(spec, words, None, notes, plan) as source:
        return load(source, Spec, pins=pins, notes=notes), source


@contextmanager
def _source(
    spec: str | None,
    words: Words,
    save: Path | None,
    notes: list[str],
    plan: str | None = None,
) -> Iterator[Source]:
    """Provide the spec that was asked for, to be read before files of stdin go."""
    from meshwright.loading.asked import ask, saved
    from meshwright.loading.sources import USER_FILES

    if spec is not None and words.is_silent and save is None:
        yield spec
        return
    with _stdin(words, save) as words:
        asked, started = in_words(words), None
        if spec is None and plan is not None:
            from meshwright.api.options import asked_of_launch

            asked, started = asked_of_launch(plan, asked, notes)
        document = ask(spec, asked, notes, USER_FILES, started)
        text = saved(document, save) if save is not None else ""
        yield document
    if save is not None:
        write(text, save, "--save")


def in_words(words: Words) -> Asked:
    """Return the options as a question.

    Raises:
        SpecError: the number of machines cannot be read.
    """
    from meshwright.loading.asked import Asked, count_of

    count, fields = count_of(words.count), tuple(words.set or ())
    return Asked(**vars(words) | {"count": count, "set": fields})


@contextmanager
def _stdin(words: Words, save: Path | None) -> Iterator[Words]:
    """Copy stdin into a file if the cluster is `-`.

    The file is kept beside a spec that is saved, and is deleted otherwise.
    """
    if words.cluster != "-":
        yield words
        return
    content = sys.stdin.buffer.read(MOST_BYTES)
    gpu = words.gpu or _gpu_of_this_machine()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stdin.txt" if save is None else save.with_suffix(".txt")
        path.write_bytes(content)
        yield replace(words, cluster=str(path), gpu=gpu)


def _gpu_of_this_machine() -> str | None:
    """Return the GPU of this machine, whose tools printed the text on stdin."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    words = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    names = set(done.stdout.split("\n")) - {""} if done.returncode == 0 else set()
    if len(names) != 1:
        return None
    (name,) = names
    tell([f"assumed the GPU of this machine: {name}"])
    return str(name)
