"""Feeds mutated files to every reader of foreign text: `python -m tests.fuzz`."""
