"""Kinds of layers that differ in what a token attends to."""

from __future__ import annotations

from meshwright.imports.hf.architecture import Fields, kinds
from meshwright.imports.hf.config import Config

WORDS = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "attention": "full",
}
"""Words of `layer_types`, and our names of kinds."""


def every_nth_full(layers: int, step: int, other: str = "sliding") -> list[str]:
    """Return layers of which each `step`-th attends to all tokens, the last of them."""
    return ["full" if (index + 1) % step == 0 else other for index in range(layers)]


def windowed(config: Config, usual: list[str], full: Fields | None = None) -> Fields:
    """Return the kinds of layers of a model with sliding windows in some of them.

    `usual` is the order where the file lists none, `full` what layers without a window
    change. A null window leaves all layers without one.
    """
    layers = config.layers()
    every = config.words("layer_types", layers, WORDS) or usual
    window = config.count_or("sliding_window", 0)
    if not window and not full:
        return {}
    found = {"sliding": {"attention_window": window}, "full": dict(full or {})}
    return kinds(found, every)


def uniform_window(config: Config) -> Fields:
    """Return the window of a model that has the same one in all layers, if any."""
    window = config.count_or("sliding_window", 0)
    return {"attention_window": window} if window else {}
