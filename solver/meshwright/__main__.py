"""Runs the command line as `python -m meshwright`."""

from meshwright.cli import main

main()
