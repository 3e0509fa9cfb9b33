"""Options that ask a question without a spec, or change one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import tell, write

if TYPE_CHECKING:
    from meshwright.loading.asked import Asked
    from meshwright.spec.open_spec import OpenSpec
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec

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

Words = tuple[
    str | None, str | None, str | None, str | None, str | None, str | None,
    int | None, int | None, str | None,
]  # fmt: skip


def load_asked(
    spec: str | None, words: Words, pins: list[str] | None, save: Path | None
) -> Spec | ServingSpec | OpenSpec:
    """Return the spec that a source and the options ask for, after telling notes."""
    from meshwright.api.load import load
    from meshwright.loading.asked import ask
    from meshwright.loading.saved_question import saved

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
    """Return what the options ask for.

    Raises:
        SpecError: the number of machines cannot be read.
    """
    from meshwright.loading.asked import Asked, count_of

    model, cluster, gpu, machine, count, *training = words
    number = None if count is None else count_of(count)
    return Asked(model, cluster, gpu, machine, number, *training)  # type: ignore[arg-type]


@contextmanager
def _stdin(words: Words, save: Path | None) -> Iterator[Words]:
    """Put what stdin holds into a file, where the cluster is `-`.

    The file stays beside a spec that is saved, and is gone afterwards otherwise.
    """
    model, cluster, gpu, *rest = words
    if cluster != "-":
        yield words
        return
    content = sys.stdin.buffer.read(MOST_BYTES)
    gpu = gpu or _own_gpu()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stdin.txt" if save is None else save.with_suffix(".txt")
        path.write_bytes(content)
        yield (model, str(path), gpu, *rest)  # type: ignore[misc]


def _own_gpu() -> str | None:
    """Return the GPU of this machine, which printed what is on stdin, if it has one."""
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
