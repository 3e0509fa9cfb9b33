"""Standard streams that are closed, or that nothing more can be written to."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

OUT_OF_OUR_HANDS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EPIPE,
    errno.ENXIO, errno.ENODEV, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
}  # fmt: skip
"""Errors of disks, devices and limits, which no code can mend."""


def open_closed() -> None:
    """Open the standard streams that were closed before the start, on nothing.

    Python has None for them; the next file that is opened would take their numbers.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def leave_unwritten() -> None:
    """Drop what is still to be written to stdout: it would fail again at the end."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
