"""Reads files within limits: each value with its line, errors as sentences."""
