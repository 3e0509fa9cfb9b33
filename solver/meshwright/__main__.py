"""Runs the command line, as `meshwright` and as `python -m meshwright`."""

from __future__ import annotations

import gc
import os
import sys

KILLED = 130
"""As in `cli/errors.py`, which is not read in yet."""

COLLECTED_AFTER = 50_000
"""New objects after which Python looks for cycles: what modules make stays."""


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback from the start on."""
    _start_cheaply()
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


def _start_cheaply() -> None:
    """Leave out what takes a tenth of a small solve and serves none.

    Nothing that commands multiply is large enough for the threads of numpy's BLAS.
    """
    gc.set_threshold(COLLECTED_AFTER)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


if __name__ == "__main__":
    main()
