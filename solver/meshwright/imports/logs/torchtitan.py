"""Logs of torchtitan: lines on the mesh and the model, and one for each step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.imports.launches.launch import FieldValue, Launch
from meshwright.imports.launches.settings import OPTIONS, Setting, Settings
from meshwright.imports.launches.torchtitan import SHARDS, read_plan
from meshwright.imports.logs.log_text import LogLine, compiled, number, numbers_in
from meshwright.imports.logs.run_log import (
    LogKind,
    LogReading,
    count_of,
    importers,
    json_settings,
)
from meshwright.imports.text import data_in, mapping
from meshwright.reading.document import Where

_STEP = re.compile(
    r"\bstep:[ ]{1,12}(\d{1,12})[ ]{1,9}.{0,200}?"
    r"memory:[ ]{0,9}([\d.]{1,12})GiB"
)

_VALUES = compiled(
    {
        "tokens_per_s": r"\b(?:tps|wps):[ ]{0,9}([\d.,]{1,20})",
        "tflops": r"\btflops:[ ]{0,9}([\d.,]{1,20})",
    }
)

_MESH = re.compile(r"device mesh with parallelism:[ ](.{1,300})")
_DEGREE = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp|ep)=(\d{1,7})")
_OLD_MESH = re.compile(r"-D device mesh with \[([^\]]{1,200})\],[ ]\[([\d, ]{1,100})\]")

_BATCHES = compiled(
    {
        "training.local_batch_size": r"local batch size[ ](\d{1,9})",
        "training.global_batch_size": r"global batch size[ ](\d{1,9})",
        "training.seq_len": r"sequence length[ ](\d{1,9})",
    }
)

_MODEL = re.compile(r"Building ([\w./-]{1,80})[ ]([\w.-]{1,40})[ ]?with[ ](.{1,20000})")
_FIELD = re.compile(
    r"[\"']?\b([a-z_]{1,40})[\"']?[=:][ ]?(\d{1,12}(?:\.\d{1,6})?|[Tt]rue)\b"
)
_SIZES = {
    "dim": "d_model", "n_layers": "n_layers", "n_heads": "n_heads",
    "n_kv_heads": "n_kv_heads", "vocab_size": "vocab", "head_dim": "head_dim",
    "hidden_dim": "d_ff",
}  # fmt: skip
"""Fields of torchtitan's models, and the fields of specs that they are."""

_OTHERS = ("multiple_of", "ffn_dim_multiplier", "enable_weight_tying")
"""Fields of torchtitan's models from which fields of specs follow."""

_MODE = "activation_checkpoint.mode"

_APPLIED = compiled(
    {
        _MODE: r"Applied (full|selective|FullAC|SelectiveAC) activation checkpointing",
        "parallelism.pipeline_parallel_schedule": r"Using pipeline schedule (\w{1,40})",
        "model.converters": r"\b(Float8) training active|(?:to )?(Float8)Linear",
    }
)

_COMPILED = re.compile(r"Compil(?:ing|ed) each \w{1,60} with torch\.compile")

_WRAPPED = re.compile(r"Applied (?:fully_shard|[FH]SDP\d?|DDP) to the model")

_CONFIG = re.compile(r"Running with (?:args|configs|config):[ ]?(\{.{0,20000})")


def _read(reading: LogReading) -> Launch:
    """Read a log, and return its launch.

    The time of a step is that between two lines of a rank, by their clock; without a
    clock it follows from tokens per second.
    """
    launch = _launch([*_settings(reading)], reading)
    _read_steps(reading, launch)
    return launch


def _launch(settings: list[Setting], reading: LogReading) -> Launch:
    """Return the launch that the lines before the first step tell."""

    def read(kept: list[Setting]) -> Launch:
        launch = reading.new_launch("torchtitan")
        said = Settings(setting for setting in kept if setting.name.startswith("said."))
        plan = [setting for setting in kept if not setting.name.startswith("said.")]
        if count := said.count("said.gpus"):
            launch.set("gpus", *count)
            kept_all = Setting(_MODE, "none", count[1].where, "no checkpointing")
            plan += [] if any(setting.name == _MODE for setting in plan) else [kept_all]
        read_plan(Settings(plan), launch, is_complete=count is not None)
        compiled, wrapped = said.get("said.compile"), said.get("said.wrapped")
        if compiled is not None or wrapped is not None:
            # A run that compiles its layers says so before it wraps them.
            launch.values.setdefault(
                "training.compile", FieldValue(compiled is not None, compiled)
            )
        _read_model(said, launch)
        return launch

    return reading.launch(read, settings)


def _read_model(said: Settings, launch: Launch) -> None:
    """Read the sizes of the model; its blocks are those of all models that ship."""
    for field in _SIZES.values():
        launch.put(f"model.{field}", said.count(f"said.{field}"))
    width, multiple = launch.value("model.d_model"), said.count("said.multiple_of")
    if width is None:
        return
    if multiple and launch.value("model.d_ff") is None:
        inner, factor = 8 * width // 3, said.number("said.ffn_dim_multiplier")
        inner = int(inner * factor[0]) if factor else inner
        size = multiple[0]
        launch.set("model.d_ff", -(-inner // size) * size, multiple[1])
    launch.set("model.gated_mlp", True)
    launch.set("model.norm", "rmsnorm")
    launch.set("model.tied_embeddings", bool(said.is_on("said.enable_weight_tying")))


def _settings(reading: LogReading) -> Iterator[Setting]:
    """Yield what the lines say, each setting once."""
    seen: set[str] = set()
    for index, line in enumerate(reading.lines):
        text = line.text
        found = [*_said(line)] if " " in text else []
        if config := _CONFIG.search(text):
            found += _config(reading, index, config[1])
        if "Building" in text and (model := _MODEL.search(text)):
            found += _model(reading, index, model[3])
        for setting in found:
            if setting.name not in seen:
                seen.add(setting.name)
                yield setting


def _said(line: LogLine) -> Iterator[Setting]:
    """Yield the settings that a line says in words."""
    text, where = line.text, line.where
    if "mesh" in text:
        yield from _mesh(text, where)
    if "batch size" in text:
        for key, pattern in _BATCHES.items():
            if found := pattern.search(text):
                yield Setting(key, int(found[1]), where, key)
    if "pplied" in text or "loat8" in text or "schedule" in text:
        for key, pattern in _APPLIED.items():
            if found := pattern.search(text):
                word = next(group for group in found.groups() if group)
                yield Setting(key, word.removesuffix("AC").lower(), where, key)
    if "torch.compile" in text and _COMPILED.search(text):
        yield Setting("said.compile", True, where, "Compiling each layer")
    elif "Applied" in text and _WRAPPED.search(text):
        yield Setting("said.wrapped", True, where, "Applied to the model")


_DEGREES: Mapping[str, str] = {
    field: row["count"] for field, row in OPTIONS["torchtitan"]["degrees"].items()
} | {"dp_shard": SHARDS}
"""Axes of a mesh, and the fields of a configuration that they are."""


def _mesh(text: str, where: Where) -> Iterator[Setting]:
    """Yield the degrees of the mesh; those that an old line leaves out are 1."""
    degrees: dict[str, int] = {}
    if found := _MESH.search(text):
        degrees = {degree[1]: int(degree[2]) for degree in _DEGREE.finditer(found[1])}
    elif old := _OLD_MESH.search(text):
        names = [word.strip(" '\"") for word in old[1].split(",")]
        sizes = [count_of(word) for word in old[2].split(",")]
        known = {"dp": "dp_shard"}
        pairs = zip((known.get(axis, axis) for axis in names), sizes, strict=False)
        degrees = {axis: size for axis, size in pairs if axis in _DEGREES and size}
        degrees = dict.fromkeys(_DEGREES, 1) | degrees if degrees else {}
    if not degrees:
        return
    gpus = 1
    for axis, size in degrees.items():
        yield Setting(_DEGREES[axis], size, where, axis)
        gpus *= 1 if axis == "ep" else size
    yield Setting("said.gpus", gpus, where, "device mesh")


def _config(reading: LogReading, index: int, start: str) -> Iterator[Setting]:
    """Yield the fields of a configuration that is printed as JSON."""
    rows = reading.until_closed(index, start)
    for setting in json_settings(rows):
        is_plain = not isinstance(setting.value, dict | list | None)
        is_rest = setting.name == SHARDS
        if is_plain and not (is_rest and setting.value == -1):
            yield setting


def _model(reading: LogReading, index: int, start: str) -> Iterator[Setting]:
    """Yield the sizes of the model: arguments of its class, or JSON."""
    text = start
    if start.lstrip().startswith("{"):
        rows = reading.until_closed(index, start)
        text = "\n".join(row.text for row in rows)
    where = reading.lines[index].where
    if layered := _layered(text):
        for name, size in layered.items():
            yield Setting(f"said.{name}", size, where, name)
        return
    text = text.partition("moe_args")[0]
    for found in _FIELD.finditer(text):
        if field := _SIZES.get(found[1], found[1] if found[1] in _OTHERS else ""):
            yield Setting(f"said.{field}", found[2], where, found[1])


def _layered(text: str) -> dict[str, int]:
    """Return the sizes of a model whose layers are printed one by one, by our names.

    Layers with experts have no `feed_forward`: what their experts are is left open.
    """
    data = mapping(data_in(text))
    layers = data.get("layers")
    if not isinstance(layers, list) or not layers:
        return {}
    attention, inner = _inside(layers[0], "attention"), _inside(layers[0], "w1")
    found = {
        "d_model": data.get("dim"),
        "vocab": data.get("vocab_size"),
        "n_layers": len(layers),
        "n_heads": attention.get("n_heads"),
        "n_kv_heads": attention.get("n_kv_heads"),
        "head_dim": attention.get("head_dim"),
        "d_ff": inner.get("out_features"),
    }
    return {name: size for name, size in found.items() if type(size) is int and size}


def _inside(layer: Any, name: str) -> Mapping[str, Any]:
    """Return a part of a layer, or of its MLP; empty without one."""
    parts = mapping(layer)
    return mapping(parts.get(name, mapping(parts.get("feed_forward")).get(name)))


LATE = 2
"""Steps by which the line of a rank without a label may lag behind that of another."""


def _read_steps(reading: LogReading, launch: Launch) -> None:
    """Read the lines of steps: time, memory and tokens per second."""
    before: dict[int | None, tuple[int, float | None]] = {}
    steps = reading.steps
    tokens = _tokens_of_gpu(launch)
    for line in reading.lines:
        text = line.text
        if "step:" in text and (found := _STEP.search(text)):
            reading.keep_peak(line.rank, reserved=number(found[2]))
            values = numbers_in(_VALUES, text)
            step = int(found[1])
            last, last_s = before.get(line.rank, (0, None))
            if last and -LATE <= step - last <= 0:
                continue
            before[line.rank] = (step, line.time_s)
            interval = step - last if 0 < step - last <= 10_000 else 1
            if last_s is not None and line.time_s is not None and step > last:
                seconds = (line.time_s - last_s) / interval
            elif tokens and values.get("tokens_per_s"):
                seconds = tokens / values["tokens_per_s"]
            else:
                continue
            steps.add(line, step, seconds, interval, values)
        elif "Saving the checkpoint" in text or "Saving a " in text:
            steps.happened("checkpoint")
        elif "validate step:" in text or "Validator" in text:
            steps.happened("evaluation")


def _tokens_of_gpu(launch: Launch) -> float | None:
    """Return the tokens of a step on one GPU, None where the log does not tell."""
    names = ("training.global_batch", "training.seq_len", "gpus")
    batch, length, gpus = map(launch.value, names)
    return batch * length / gpus if batch and length and gpus else None


IMPORTERS = importers(
    LogKind(
        "torchtitan_log",
        "torchtitan",
        r"step:[ ]{1,12}\d{1,12}[ ]{1,9}.{0,200}?memory:[ ]{0,9}[\d.]{1,12}GiB\("
        r"|\[titan\]|Building .{0,9}device mesh with",
        _read,
    )
)
