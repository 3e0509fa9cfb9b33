"""Runs the command line, as `meshwright` and as `python -m meshwright`."""

from __future__ import annotations

import os
import sys

KILLED = 130
"""As in `cli/errors.py`, which is not read in yet."""


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback from the start on."""
    try:
        import signal

        # The shell may have it ignored.
        is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_usual:
            signal.signal(signal.SIGINT, lambda *_: os._exit(KILLED))
        from meshwright.cli import main as run

        if is_usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(KILLED)


if __name__ == "__main__":
    main()
