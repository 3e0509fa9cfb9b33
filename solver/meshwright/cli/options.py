"""Options that several commands share, each declared once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from meshwright.api.arguments import LARGEST_SEED
from meshwright.cli.output import Format, command_words, tell, write

if TYPE_CHECKING:
    from meshwright.loading.asked import Asked
    from meshwright.loading.sources import Source
    from meshwright.spec.open_spec import OpenSpec
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec


SpecArgument = Annotated[
    str, typer.Argument(help="A YAML file, or a bundled spec's name.")
]
SpecOrNone = Annotated[
    str | None,
    typer.Argument(
        help="A YAML file, or a bundled spec's name; not needed with --model and "
        "--cluster or --gpu, which otherwise change it."
    ),
]
PinOption = Annotated[
    list[str] | None,
    typer.Option(help="Fix a plan field, such as tp=4 or 'pp={max: 8}'."),
]
SeedOption = Annotated[
    int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of CP-SAT.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write here, not to stdout.")
]
ProfileOption = Annotated[
    str,
    typer.Option(
        help="Efficiencies: a file of `meshwright calibrate`, or bundled: measured "
        "(fitted to published runs) or unfitted."
    ),
]

VerboseOption = Annotated[
    bool,
    typer.Option(
        "-v", "--verbose", help="Print all of the answer, not what fits on a screen."
    ),
]

ReportOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the answer here as one HTML page with charts: step time, pipeline, "
        "memory, mesh, links, near plans, proof."
    ),
]

TraceOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the modelled step here as a trace that Perfetto opens "
        "(https://ui.perfetto.dev); see `meshwright compare-trace`."
    ),
]


ASK = "Without a spec"

MOST_BYTES = 50_000_000

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="A bundled model, as on the Hugging Face hub, or a config.json.",
        rich_help_panel=ASK,
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="A bundled machine or topology, GPUs such as 4xRTX3090, or a file: YAML, "
        "or what nvidia-smi topo -m, scontrol, kubectl and others print; - for stdin.",
        rich_help_panel=ASK,
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        help="The GPU, where the file does not say it; or, without --cluster, GPUs in "
        "their usual host, --count of them.",
        rich_help_panel=ASK,
    ),
]
MachineOption = Annotated[
    str | None,
    typer.Option(
        help="The machine that the switches of a file join.", rich_help_panel=ASK
    ),
]
CountOption = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Machines: 8; left open: 1,2,4 or 1..64. With --gpu alone: GPUs.",
        rich_help_panel=ASK,
    ),
]
FrameworkOption = Annotated[
    str | None,
    typer.Option(
        help="The training framework: megatron, fsdp, ...; `explain --rules` has all.",
        rich_help_panel=ASK,
    ),
]
SeqLenOption = Annotated[
    str | None,
    typer.Option(
        metavar="N", help="Tokens per sequence: 8192, 128k.", rich_help_panel=ASK
    ),
]
BatchOption = Annotated[
    int | None, typer.Option(min=1, help="Sequences per step.", rich_help_panel=ASK)
]
PrecisionOption = Annotated[
    str | None, typer.Option(help="bf16, fp8, ...", rich_help_panel=ASK)
]
LoraOption = Annotated[
    int | None,
    typer.Option(
        metavar="RANK",
        min=1,
        help="Train LoRA adapters of this rank; QLoRA: "
        "--set training.lora='{rank: 16, weights: nf4}'.",
        rich_help_panel=ASK,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set any field of the spec, such as rules='tp <= 4'.",
        rich_help_panel=ASK,
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option(help="Write the question here as a spec.", rich_help_panel=ASK),
]


@dataclass(frozen=True)
class Words:
    """The options of a question as they are typed; see `loading.asked.Asked`."""

    model: ModelOption = None
    cluster: ClusterOption = None
    gpu: GpuOption = None
    machine: MachineOption = None
    count: CountOption = None
    framework: FrameworkOption = None
    seq_len: SeqLenOption = None
    batch: BatchOption = None
    precision: PrecisionOption = None
    lora: LoraOption = None
    set: SetOption = None

    @property
    def is_silent(self) -> bool:
        """Return whether no option is given."""
        return not any(vars(self).values())


UNASKED = Words()


def asked_again(spec: str | None, asked: Words) -> str:
    """Return a question as a shell takes it; empty where stdin was a part of it."""
    words = [] if spec is None else [spec]
    for name, value in vars(asked).items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                words += [f"--{name.replace('_', '-')}", str(one)]
    return "" if asked.cluster == "-" else command_words(*words)


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameter `asked` is the options of `Words`."""
    hints = get_type_hints(Words, include_extras=True)
    parameters: dict[str, Parameter] = {}
    for name, parameter in signature(command, eval_str=True).parameters.items():
        mine = {name: (parameter.annotation, parameter.default)}
        if name == "asked":
            mine = {field: (hint, None) for field, hint in hints.items()}
        for field, (hint, default) in mine.items():
            kind = Parameter.KEYWORD_ONLY
            parameters[field] = Parameter(field, kind, default=default, annotation=hint)

    @wraps(command)
    def run(**given: Any) -> None:
        asked = Words(**{name: given.pop(name) for name in hints})
        command(asked=asked, **given)

    run.__annotations__ = {name: one.annotation for name, one in parameters.items()}
    vars(run)["__signature__"] = Signature([*parameters.values()])
    return run


def load_asked(
    spec: str | None,
    words: Words,
    pins: list[str] | None = None,
    save: Path | None = None,
    notes: list[str] | None = None,
) -> Spec | ServingSpec | OpenSpec:
    """Return the spec of a source, changed by the options.

    Its notes are added to `notes`, or else printed.
    """
    from meshwright.api.load import load

    told: list[str] = []
    with _source(spec, words, save, told) as source:
        loaded = load(source, pins=pins, notes=told)
    if notes is None:
        tell(told)
    else:
        notes += told
    return loaded


def load_training(
    spec: str | None, words: Words, notes: list[str], pins: list[str] | None = None
) -> tuple[Spec, Source]:
    """Return a spec of training as `load_asked` does, and what it was read from."""
    from meshwright.api.load import load
    from meshwright.spec.spec import Spec

    with _source(spec, words, None, notes) as source:
        return load(source, Spec, pins=pins, notes=notes), source


@contextmanager
def _source(
    spec: str | None, words: Words, save: Path | None, notes: list[str]
) -> Iterator[Source]:
    """Provide the spec that was asked for, to be read before files of stdin go."""
    from meshwright.loading.asked import ask, saved

    if spec is not None and words.is_silent and save is None:
        yield spec
        return
    with _stdin(words, save) as words:
        document = ask(spec, in_words(words), notes)
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
