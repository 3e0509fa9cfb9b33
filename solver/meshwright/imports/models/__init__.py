"""Kinds of files that describe a model, one module each; see `imports/registry.py`."""
