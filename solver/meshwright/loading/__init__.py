"""Loads specs: resolves presets, imports clusters, reads plans from text."""
