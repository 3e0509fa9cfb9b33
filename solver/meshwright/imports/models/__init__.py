"""Kinds of files that describe a model, one module each; see `imports/importer.py`."""
