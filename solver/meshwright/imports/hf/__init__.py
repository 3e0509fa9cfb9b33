"""Reads config.json of Hugging Face models; `read.py` finds the architecture."""
