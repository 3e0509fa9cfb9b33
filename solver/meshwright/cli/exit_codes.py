"""The exit codes of commands."""

from __future__ import annotations

FOUND = 0
"""A plan was found, or fits."""

NONE_FITS = 1

BAD_INPUT = 2

UNDECIDED = 3
"""Stopped by a time limit or Ctrl-C; the best plan so far is printed, if any."""

FAULT = 4
"""A fault of Meshwright, not of its input."""

KILLED = 130
"""A second Ctrl-C; 128 + SIGINT, as shells have it."""

UNREAD = 1
"""What is printed goes into a closed pipe; click has it too."""

OF_STATUS = {
    "optimal": FOUND,
    "feasible": FOUND,
    "infeasible": NONE_FITS,
    "unknown": UNDECIDED,
}

IN_WORDS = (
    f"Exit codes: {FOUND} a plan was found or fits, {NONE_FITS} none fits, "
    f"{BAD_INPUT} bad input, {UNDECIDED} stopped by a time limit or Ctrl-C before "
    f"that was decided, {FAULT} a fault of Meshwright's own."
)
