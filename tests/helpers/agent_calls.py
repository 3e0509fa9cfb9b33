"""Calls of the tools for agents, without a server."""

from __future__ import annotations

from typing import Any

from meshwright.agents.answering import answer
from meshwright.deadline import Interrupt
from meshwright.errors import InternalError, MeshwrightError


def told(tool: str, arguments: dict[str, Any]) -> str:
    """Return the answer to a call, or its error."""
    sent: list[dict[str, Any]] = []
    task = {"tool": tool, "arguments": arguments, "root": None, "wanted": "answer"}
    try:
        answer(task, sent.append, Interrupt())
    except InternalError:
        raise
    except MeshwrightError as error:
        return str(error)
    return str(sent[-1])
