"""The page on what the model definition must be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import get_args

from meshwright.escape import in_markdown
from meshwright.exports.files import ExportedFile
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec
from meshwright.spec.training import Projection


def lora_notes(spec: Spec) -> Iterator[str]:
    """Yield how PEFT makes the adapters of a spec, and bitsandbytes their weights."""
    lora = spec.training.lora
    if lora is None:
        return
    names = [name for name in get_args(Projection) if name in lora.projections]
    if not spec.model.gated_mlp:
        names = [name for name in names if name != "gate_proj"]
    yield (
        f"All weights are frozen beside adapters: `LoraConfig(r={lora.rank}, "
        f"target_modules={names})` of PEFT, by the names that Llama has for them."
    )
    if lora.weights == "nf4":
        yield (
            "`BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', "
            "bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16, "
            "bnb_4bit_quant_storage=torch.bfloat16)`: shards of another storage type "
            "are not gathered."
        )
    elif lora.weights == "int8":
        yield "`BitsAndBytesConfig(load_in_8bit=True)`."


RARE = (
    "attention_window", "attention_chunk", "output_gate", "attention_sinks",
    "keys_are_values", "head_bias", "mixer", "kinds", "pattern",
)  # fmt: skip
"""Fields that are told only of models that have more than the default."""


def _usual(model: Model) -> Iterator[str]:
    """Yield the rare fields that a model does not use."""
    for name in RARE:
        usual = Model.model_fields[name].get_default(call_default_factory=True)
        if getattr(model, name) == usual:
            yield name


def model_page(spec: Spec, title: str, notes: Iterable[str]) -> ExportedFile:
    """Return model.md: the model's shape, and what its definition must do."""
    left_out = {"name", "published_params", *_usual(spec.model)}
    shape = spec.model.model_dump(mode="json", exclude=left_out, exclude_none=True)
    lines = [f"# What the model definition must be: {in_markdown(title)}", ""]
    lines += [f"- {note}" for note in notes]
    lines += ["", f"The model is {in_markdown(spec.model.name)}:", ""]
    lines += ["| field | value |", "| --- | --- |"]
    for name, value in shape.items():
        inner = value if isinstance(value, dict) else {"": value}
        for below, own in inner.items():
            full = f"{name}.{below}".rstrip(".")
            lines.append(f"| `{full}` | {in_markdown(str(own))} |")
    text = "\n".join(lines) + "\n"
    return ExportedFile(name="model.md", text=text)
