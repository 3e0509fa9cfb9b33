"""The page beside the files of an export: the model, and what the files leave out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, get_args

from meshwright.escape import in_markdown
from meshwright.exports.files import ExportedFile
from meshwright.frameworks.base.framework import Framework
from meshwright.frameworks.base.registry import framework_of
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec
from meshwright.spec.training import FusedOperation, Overlap, Projection, Training


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
        for below, value in inner.items():
            full = f"{name}.{below}".rstrip(".")
            lines.append(f"| `{full}` | {in_markdown(str(value))} |")
    text = "\n".join(lines) + "\n"
    return ExportedFile(name="model.md", text=text)


def unsaid(spec: Spec, title: str, said: Collection[str]) -> Iterator[str]:
    """Yield a note on each setting that is priced and that a launch is not told.

    `said` names the settings that the files carry. A setting as the framework has it
    by itself needs no telling.
    """
    usual = framework_of(spec)
    for name, value, default in _settings(spec.training, usual):
        if value not in (None, default) and name not in said:
            yield (
                f"The price counts on `training.{name}` {str(value).lower()}, which "
                f"none of these files tells {title}: your code must see to it."
            )


def _settings(training: Training, usual: Framework) -> Iterator[tuple[str, Any, Any]]:
    """Yield names of settings, what a spec says, and what its framework has."""
    yield "compile", training.compile, False
    yield "cuda_graphs", training.cuda_graphs, usual.has_cuda_graphs
    yield "loss_chunks", training.loss_chunks, usual.loss_chunks
    yield "loss_parallel", training.loss_parallel, usual.is_loss_parallel
    for kind in Overlap.model_fields:
        chosen = getattr(training.overlap, kind)
        yield f"overlap.{kind}", chosen, kind in usual.overlap
    if training.fused is not None:
        for operation in get_args(FusedOperation):
            is_fused = operation in training.fused
            yield f"fused.{operation}", is_fused, operation in usual.fused
