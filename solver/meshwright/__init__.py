"""Meshwright picks the fastest parallelism plan that fits, with a proof."""

__version__ = "0.1.0"
