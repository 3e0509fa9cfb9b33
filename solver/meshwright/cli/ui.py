"""`meshwright ui`: a page to play with."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.errors import SpecError

LOCAL = "127.0.0.1"


def ui(
    host: Annotated[
        str, typer.Option(help="Where to listen; other machines need more than that.")
    ] = LOCAL,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")
    ] = 8321,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Solves at once; others wait.")
    ] = 2,
    queue: Annotated[
        int, typer.Option(min=0, max=10_000, help="Most questions that wait.")
    ] = 64,
) -> None:
    """Serve a page on which to try models, clusters and limits."""
    try:
        from meshwright.ui.app import Settings
        from meshwright.ui.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "anyio"):
            raise
        told = f"{error.name} is missing; pip install 'meshwright[ui]'"
        raise SpecError(f"ui: {told}") from None
    if host != LOCAL:
        typer.echo("note: whoever reaches this address can ask for solves", err=True)
    serve(Settings(host, workers, queue), port)
