"""Families of architectures, one module each; see `imports/hf/architecture.py`."""
