"""Files that are written whole, or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.escape import printable


def write_whole(data: bytes, path: Path, option: str) -> None:
    """Write a file that is whole at any moment: the old one, or the new one.

    It is written beside, to a new file `.meshwright-PID.part`, which is all that a kill
    leaves behind. A link stays one. What is no file (a device, a pipe) is written to as
    it is, and so is a file in a folder in which none can be made.

    Raises:
        SpecError: names the option, the file, and why it cannot be written.
    """
    try:
        target = path.resolve()
        if target.is_file() or not target.exists():
            try:
                _replace(target, data)
            except (PermissionError, FileExistsError):
                path.write_bytes(data)
        else:
            path.write_bytes(data)
    except (OSError, RuntimeError) as error:
        raise unwritten(path, option, error) from None


def _replace(target: Path, data: bytes) -> None:
    part = target.with_name(f".meshwright-{os.getpid()}.part")
    file = part.open("xb")
    try:
        with file:
            file.write(data)
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def unwritten(path: Path, option: str, error: Exception) -> SpecError:
    """Return the error of a file that cannot be written: the system's reason."""
    reason = getattr(error, "strerror", None) or "cannot be written"
    return SpecError(f"{option} {printable(str(path))}: {reason.lower()}")
