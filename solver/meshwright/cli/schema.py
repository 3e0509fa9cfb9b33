"""`meshwright schema`: what files look like, for editors and programs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from meshwright.cli.options import OutputOption, check_writable, write


class Kind(StrEnum):
    """Kinds of files."""

    spec = "spec"
    topology = "topology"
    model = "model"
    gpu = "gpu"
    sweep = "sweep"
    runs = "runs"
    profile = "profile"
    prices = "prices"
    result = "result"


def schema(
    kind: Annotated[Kind, typer.Argument(help="What the file holds.")],
    output: OutputOption = None,
) -> None:
    """Print the JSON Schema of a kind of file."""
    check_writable(output)
    from meshwright.api.file_schemas import schema_text

    write(schema_text(kind.value), output)
