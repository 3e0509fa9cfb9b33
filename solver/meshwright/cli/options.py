"""Options that several commands share, each declared once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.api.arguments import LARGEST_SEED
from meshwright.cli.output import Format, tell, write

if TYPE_CHECKING:
    from meshwright.loading.asked import Asked
    from meshwright.spec.open_spec import OpenSpec
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec


SpecArgument = Annotated[
    str, typer.Argument(help="A YAML file, or a bundled spec's name.")
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
        help="A bundled machine or topology, or a file: YAML, or what nvidia-smi topo "
        "-m and other tools print; - for stdin.",
        rich_help_panel=ASK,
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option(help="The GPU, where the file does not say it.", rich_help_panel=ASK),
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
        metavar="N", help="Machines: 8; or open: 1,2,4 or 1..64.", rich_help_panel=ASK
    ),
]
FrameworkOption = Annotated[
    str | None,
    typer.Option(help="What will train; see explain --rules.", rich_help_panel=ASK),
]
SeqLenOption = Annotated[
    int | None, typer.Option(min=1, help="Tokens per sequence.", rich_help_panel=ASK)
]
BatchOption = Annotated[
    int | None, typer.Option(min=1, help="Sequences per step.", rich_help_panel=ASK)
]
PrecisionOption = Annotated[
    str | None, typer.Option(help="bf16, fp8, ...", rich_help_panel=ASK)
]
SaveOption = Annotated[
    Path | None,
    typer.Option(help="Write the question here as a spec.", rich_help_panel=ASK),
]


@dataclass(frozen=True)
class Words:
    """The options of a question as they are typed; see `loading.asked.Asked`."""

    model: str | None = None
    cluster: str | None = None
    gpu: str | None = None
    machine: str | None = None
    count: str | None = None
    framework: str | None = None
    seq_len: int | None = None
    batch: int | None = None
    precision: str | None = None


def load_asked(
    spec: str | None, words: Words, pins: list[str] | None, save: Path | None
) -> Spec | ServingSpec | OpenSpec:
    """Return the spec of a source, changed by the options, and print its notes."""
    from meshwright.api.load import load
    from meshwright.loading.asked import ask, saved

    notes: list[str] = []
    with _stdin(words, save) as words:
        asked = in_words(words)
        if spec is not None and asked.is_silent and save is None:
            loaded = load(spec, pins=pins, notes=notes)
        else:
            document = ask(spec, asked, notes)
            text = saved(document, save) if save is not None else ""
            loaded = load(document, pins=pins, notes=notes)
            if save is not None:
                write(text, save, "--save")
    tell(notes)
    return loaded


def in_words(words: Words) -> Asked:
    """Return the options as a question.

    Raises:
        SpecError: the number of machines cannot be read.
    """
    from meshwright.loading.asked import Asked, count_of

    count = None if words.count is None else count_of(words.count)
    return Asked(**vars(words) | {"count": count})


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
