"""Errors: everything that can be wrong with a user's input.

    MeshwrightError
    ├── SpecError        a spec, preset or command-line value
    └── InternalError    the checker disagrees with the solver: a bug, please report

"No plan fits" is an outcome, not an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.escape import printable_lines


class MeshwrightError(Exception):
    """The base of every error that is shown to the user without a traceback."""

    def __str__(self) -> str:
        """Return the message; what a terminal would obey in it is spelled out."""
        return printable_lines(super().__str__())


class SpecError(MeshwrightError):
    """A value in a file, in an argument or on the command line that cannot be used.

    Example:
        >>> import meshwright as mw
        >>> try:
        ...     mw.load("llama3-8b-2xh100")
        ... except mw.SpecError as error:
        ...     print(error)
        'llama3-8b-2xh100' is neither a file nor a bundled name; did you mean ...
    """


def refuse_given(given: Mapping[str, bool], why: str) -> None:
    """Refuse options, by whether each was given.

    Raises:
        SpecError: one of them was given; says why it cannot be.
    """
    for name, is_given in given.items():
        if is_given:
            raise SpecError(f"{name}: {why}")


class InternalError(MeshwrightError):
    """Two parts of Meshwright disagree about a plan: a bug, never the user's fault."""


class UndecidedError(Exception):
    """It was not decided whether a spec has a plan; says what was left open."""
