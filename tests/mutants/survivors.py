"""Changes that no test has to see, and why: they change no answer."""

from __future__ import annotations

from tests.mutants.changes import Change

REASONS: dict[tuple[str, str, str], str] = {}
"""By path, the line as it stands in the file, and what is changed in it."""


def reason(change: Change, source: str) -> str:
    """Return why no test has to see a change; nothing where it is not known."""
    line = source.splitlines()[change.line - 1].strip()
    return REASONS.get((change.path, line, change.what), "")
