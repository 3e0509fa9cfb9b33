"""Measurements, each run by one command; tests never time."""

from __future__ import annotations

import argparse


def without_options(about: str | None) -> None:
    """Take no words of the command line but `--help`, which prints `about`."""
    argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
