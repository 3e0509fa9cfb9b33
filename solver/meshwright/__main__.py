"""Runs the command line, as `meshwright` and as `python -m meshwright`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is read in ends without a traceback."""
    try:
        from meshwright.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
