"""What kinds of layers of a model may not be, as problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.reading.document import FieldPath
from meshwright.spec.base import Problem

if TYPE_CHECKING:
    from meshwright.spec.model import Model


def kind_problems(model: Model) -> Iterator[Problem]:
    """Yield what a pattern names in vain, and kinds that contradict the model."""
    yield from _pattern(model)
    yield from _mixers(model)
    if model.attention_window and model.attention_chunk:
        sentence = "beside model.attention_window; accepted: one of them"
        yield Problem(("attention_chunk",), model.attention_chunk, sentence)
    if not model.d_ff and model.mixer == "none":
        yield Problem(("d_ff",), 0, "without a mixer leaves an empty layer")


def _pattern(model: Model) -> Iterator[Problem]:
    known, named = ", ".join(model.kinds) or "none", model.pattern
    for index, name in enumerate(named):
        if name not in model.kinds:
            sentence = f"is not in model.kinds; accepted: {known}"
            yield Problem(("pattern", index), name, sentence)
    for name in model.kinds:
        if name not in named:
            sentence = "is not in model.pattern; a kind needs a layer"
            yield Problem(("kinds",), name, sentence)
    if len(named) > model.n_layers:
        sentence = f"are more than model.n_layers {model.n_layers}"
        yield Problem(("pattern",), len(named), sentence)
    if named and model.first_dense_layers:
        sentence = "beside model.pattern; write dense layers as a kind, experts: false"
        path = ("moe", "first_dense_layers")
        yield Problem(path, model.first_dense_layers, sentence)


def _mixers(model: Model) -> Iterator[Problem]:
    """Yield state spaces that are missing, and parts that no layer of a kind has."""
    mixers: dict[FieldPath, str] = {("mixer",): model.mixer}
    for name, kind in model.kinds.items():
        if kind.mixer is not None:
            mixers[("kinds", name, "mixer")] = kind.mixer
        heads = model.n_heads
        kv_heads = kind.n_kv_heads or model.n_kv_heads
        if heads % kv_heads:
            sentence = f"does not divide the {heads} query heads"
            yield Problem(("kinds", name, "n_kv_heads"), kv_heads, sentence)
        if kind.experts and model.moe is None:
            sentence = "without model.moe; accepted: false"
            yield Problem(("kinds", name, "experts"), True, sentence)
    for path, mixer in mixers.items():
        if mixer == "state_space" and model.state_space is None:
            yield Problem(path, mixer, "needs model.state_space")
    if model.state_space is not None and "state_space" not in mixers.values():
        sentence = "is of no layer: no mixer of a kind or the model is state_space"
        yield Problem(("state_space",), model.state_space.form, sentence)
