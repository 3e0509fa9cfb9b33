"""Files of an export: settings with their reasons, model.md, and refusals."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import Field, field_validator

from meshwright.errors import SpecError
from meshwright.escape import in_markdown, printable
from meshwright.frameworks.base.framework import Framework
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import to_row
from meshwright.reading.yaml_and_csv import table_beside
from meshwright.rules.legality import framework_degree_rules, framework_rules
from meshwright.spec.base import SpecModel
from meshwright.spec.consistency import adaptable
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec
from meshwright.spec.training import (
    FusedOperation,
    Lora,
    Overlap,
    Projection,
    Training,
)
from meshwright.topology.routed_fabric import build_fabric

TABLES: Mapping[str, Any] = table_beside(__file__, "texts.yaml")
"""What files of other programs say, where it is no text."""

TEXTS: Mapping[str, str] = TABLES
"""Texts of files, as `str.format` fills them in."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class ExportedFile(SpecModel):
    """One file of an export."""

    name: str = Field(description="Its name in the folder; never a path.")
    text: str = Field(description="All of it.")

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _PLAIN_NAME.fullmatch(name):
            raise ValueError("expected the plain name of a file")
        return name


class Export(SpecModel):
    """A plan as files that start a training framework.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("gpt-1.3b-2xh100-nvlink")
        >>> exported = mw.export(spec, mw.solve(spec), to="megatron")
        >>> [file.name for file in exported.files]
        ['launch.sh', 'model.md']
    """

    target: str = Field(
        description="What starts the plan: `megatron`, `torchtitan`, ..."
    )
    version: str = Field(description="The versions that the files are written for.")
    files: tuple[ExportedFile, ...] = Field(description="In no order.")

    def __getitem__(self, name: str) -> str:
        """Return the text of the file of a name.

        Raises:
            SpecError: no file has this name.
        """
        texts = {file.name: file.text for file in self.files}
        if name not in texts:
            raise SpecError(f"{name!r} is no file of it; there are {', '.join(texts)}")
        return texts[name]


@dataclass(frozen=True)
class Setting:
    """An argument, a key or a variable, its value, and where the value comes from."""

    name: str
    value: Any = None
    """None for an argument that has no value, a tuple for one that has several."""
    why: str = ""

    @property
    def words(self) -> list[str]:
        """Return the words of a command line."""
        if isinstance(self.value, tuple):
            return [self.name, *map(str, self.value)]
        return [self.name] if self.value is None else [self.name, self.text]

    @property
    def text(self) -> str:
        """Return the value as command lines, YAML and JSON write it."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return str(self.value)


Sections = dict[str, list[Setting]]
"""Settings by the section that they stand in, `a.b` below `a`; "" for none."""


def commented(lines: Iterable[tuple[str, str]], indent: str = "  ") -> Iterator[str]:
    """Yield lines of code with their comments in one column, each ended."""
    texts = [(indent + code, printable(why)) for code, why in lines]
    width = min(max((len(code) for code, _ in texts), default=0), 60)
    for code, why in texts:
        yield f"{code:<{width}}  # {why}\n" if why else f"{code}\n"


_WHOLE_POWER = re.compile(r"(?<![\w.\"])(-?\d+)e([+-]?\d+)")


def yaml_value(value: Any) -> str:
    """Return a value on one line, as YAML 1.1 reads it: 1e-05 is a text there."""
    text = json.dumps(value)
    return text if isinstance(value, str) else _WHOLE_POWER.sub(r"\1.0e\2", text)


def bash_array(name: str, settings: Iterable[Setting]) -> str:
    """Return a bash array of quoted words, a line with its comment per setting."""
    lines = [(shlex.join(setting.words), setting.why) for setting in settings]
    return f"{name}=(\n{''.join(commented(lines))})\n"


def bash_exports(settings: Iterable[Setting]) -> str:
    """Return the exported variables of a bash script, a line per setting."""
    lines = [
        (f"export {setting.name}={shlex.quote(setting.text)}", setting.why)
        for setting in settings
    ]
    return "".join(commented(lines, indent=""))


@dataclass(frozen=True)
class Refusal:
    """A field that a framework cannot be told, and the check that would fail."""

    field: str
    sentence: str
    check: str
    """File and name, in the framework's source, of what rejects it or has no word."""

    def __str__(self) -> str:
        """Return the refusal as one line."""
        return f"{self.field} {self.sentence} ({self.check})"


class NotLaunchableError(SpecError):
    """A plan that the framework cannot launch as it is printed."""

    def __init__(self, title: str, refusals: Iterable[Refusal]) -> None:
        """Say which fields, and which checks of the framework would fail."""
        self.refusals = tuple(refusals)
        lines = "\n  ".join(map(str, self.refusals))
        super().__init__(f"plan: cannot be launched by {title} as printed:\n  {lines}")


def rule_refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield a refusal for every rule, beside pins and limits, that a plan breaks."""
    rows, _ = to_row(build_fabric(spec.cluster), plan)
    for rule in (*framework_degree_rules(spec), *framework_rules(spec)):
        if not rule.holds(spec, rows)[0]:
            yield Refusal(rule.name, rule.told(spec, rows), rule.source)


def layer_refusals(model: Model, title: str) -> Iterator[Refusal]:
    """Yield the fields of a model that no file for a program says."""
    moe = model.moe
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
        "mla.indexer": model.picker is not None,
        "moe.latent_d": moe is not None and moe.latent_d > 0,
        "moe.activation_limit": moe is not None and moe.activation_limit is not None,
        "moe.own_norms": moe is not None and moe.own_norms > 0,
        "moe.shared_gate": moe is not None and moe.shared_gate,
    }
    for name, is_there in said.items():
        if is_there:
            sentence = f"is not written for {title} yet"
            yield Refusal(f"model.{name}", sentence, "Meshwright's exports")


def is_like_llama(model: Model) -> bool:
    """Return whether layers without experts are built as Llama's, biases aside."""
    return (
        model.gated_mlp
        and model.norm == "rmsnorm"
        and model.norms_per_layer == 2
        and model.mla is None
        and model.details.activation in (None, "silu")
        and not (model.qk_norm or model.parallel_residual or model.alibi)
        and not (model.embedding_norm or model.learned_positions or model.dropout)
    )


USUAL_DROPOUT = 0.05
"""Share of an adapter's inputs that is dropped, where any are."""


OF_DELTA_NETS = ("in_proj_qkvz", "in_proj_qkv", "in_proj_z")
"""The first projection of a delta net, as Qwen3-Next and as Qwen3.5 name it; PEFT takes
those that a model has."""


def adapted_matrices(model: Model, lora: Lora) -> list[str]:
    """Return the matrices of a model that have adapters, by their names for PEFT."""
    named, mixer = lora.projections & adaptable(model), model.state_space
    names = [name for name in get_args(Projection) if name in named]
    if mixer is not None and mixer.form == "delta_net" and "in_proj" in names:
        names.remove("in_proj")
        names += OF_DELTA_NETS
    return names


TRAINED_WHOLE = ("embed_tokens", "lm_head")
"""Embedding and head, by the names that Llama has for them."""


def lora_notes(spec: Spec) -> Iterator[str]:
    """Yield how PEFT makes the adapters of a spec, and bitsandbytes their weights."""
    lora = spec.training.lora
    if lora is None:
        return
    names = adapted_matrices(spec.model, lora)
    dropped = f", lora_dropout={USUAL_DROPOUT}" if lora.dropout else ""
    whole = f", modules_to_save={[*TRAINED_WHOLE]}" if lora.trains_ends else ""
    yield (
        f"All weights are frozen beside adapters: `LoraConfig(r={lora.rank}, "
        f"target_modules={names}{dropped}{whole})` of PEFT, by the names that Llama "
        "has for them."
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
    elif lora.weights == "gptq":
        yield "The checkpoint has its weights in four bits, as GPTQ keeps them."


RARE = (
    "attention_window", "attention_chunk", "output_gate", "attention_sinks",
    "keys_are_values", "head_bias", "mixer", "kinds", "pattern", "shares_indexer",
    "mtp_layers",
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
    yield "reference_model", training.reference_model, "none"
    yield "loss_chunks", training.loss_chunks, usual.loss_chunks
    yield "mlp_chunks", training.mlp_chunks, 1
    yield "loss_parallel", training.loss_parallel, usual.is_loss_parallel
    exchange, exchanges = training.context_exchange, usual.context_exchanges
    yield "context_exchange", exchange, exchanges[0]
    for kind in Overlap.model_fields:
        chosen = getattr(training.overlap, kind)
        yield f"overlap.{kind}", chosen, kind in usual.overlap
    if training.fused is not None:
        for operation in get_args(FusedOperation):
            is_fused = operation in training.fused
            yield f"fused.{operation}", is_fused, operation in usual.fused
