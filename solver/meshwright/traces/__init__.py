"""Traces of real profilers: what the GPU did when, against the modelled step."""
