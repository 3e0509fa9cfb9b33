"""What of a model's layers the files of a program do not describe yet."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.refusals import Refusal
from meshwright.spec.model import Model


def layer_refusals(model: Model, title: str) -> Iterator[Refusal]:
    """Yield the fields of a model that no file for a program says."""
    moe, mla = model.moe, model.mla
    said = {
        "pattern": len(model.order.names) > 1,
        "mixer": model.mixer != "attention",
        "attention_window": model.attention_window > 0,
        "attention_chunk": model.attention_chunk > 0,
        "output_gate": model.output_gate,
        "attention_sinks": model.attention_sinks,
        "keys_are_values": model.keys_are_values,
        "head_bias": model.head_bias,
        "bias": model.bias in ("attention", "mlp"),
        "mla.indexer": mla is not None and mla.indexer is not None,
        "moe.latent_d": moe is not None and moe.latent_d > 0,
        "moe.own_norms": moe is not None and moe.own_norms > 0,
        "moe.shared_gate": moe is not None and moe.shared_gate,
    }
    for name, is_there in said.items():
        if is_there:
            sentence = f"is not written for {title} yet"
            yield Refusal(f"model.{name}", sentence, "Meshwright's exports")
