"""`meshwright ui` and `meshwright mcp`: the page in the browser, tools for agents."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from meshwright.errors import SpecError
from meshwright.escape import printable

LOCAL = "127.0.0.1"


def ui(
    host: str = LOCAL,
    port: int = 8321,
    workers: int = 2,
    queue: int = 64,
) -> None:
    """Serve a page on which to try models, clusters and limits."""
    try:
        from meshwright.ui.app import Settings
        from meshwright.ui.serve import serve
    except ModuleNotFoundError as error:
        raise _missing("ui", error) from error
    if host != LOCAL:
        typer.echo("note: whoever reaches this address can ask for solves", err=True)
    serve(Settings(host, workers, queue), port)


def mcp(
    http: int | None = None,
    root: Path | None = None,
    workers: int = 1,
    skill: bool = False,
) -> None:
    """Serve the commands as tools of an agent (MCP)."""
    if skill:
        from meshwright import catalog

        typer.echo(str(catalog.folder("skills") / "meshwright" / "SKILL.md"))
        return
    try:
        from meshwright.agents.server import Settings, serve_http, serve_stdio
    except ModuleNotFoundError as error:
        raise _missing("mcp", error) from error
    settings = Settings(None if root is None else _folder(root), workers)
    if http is None:
        serve_stdio(settings)
    else:
        serve_http(settings, http)


def _folder(root: Path) -> Path:
    """Return the real path of a folder.

    Raises:
        SpecError: there is no such folder.
    """
    real = os.path.realpath(root)
    if not os.path.isdir(real):
        raise SpecError(f"--root {printable(str(root))}: no such folder")
    return Path(real)


NEEDED = {
    "ui": ("starlette", "uvicorn", "anyio"),
    "mcp": ("mcp", "mcp_types", "starlette", "uvicorn", "anyio"),
}
"""By extra, the libraries that it brings."""


def _missing(extra: str, error: ModuleNotFoundError) -> Exception:
    """Return the error that says what to install; other errors as they are."""
    if error.name not in NEEDED[extra]:
        return error
    told = f"needs the extra [{extra}]; pip install 'meshwright[{extra}]'"
    return SpecError(f"{extra}: {told} ({error.name} is missing)")
