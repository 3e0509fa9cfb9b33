"""Loads specs from files, names, YAML text or fields; remarks on odd numbers."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.registry import detect
from meshwright.imports.text import read_text
from meshwright.loading.gpus_alone import (
    BESIDE_GPUS,
    HOST_GIB,
    named_cluster,
    usual_machine,
)
from meshwright.loading.imported import fill, fill_model, take_sources
from meshwright.loading.open_question import open_fields, open_spec, refuse_open
from meshwright.loading.sources import (
    USER_FILES,
    Files,
    Source,
    open_source,
    require_mapping,
    resolve_field,
    resolve_machine,
    resolved,
)
from meshwright.reading.document import (
    Document,
    FieldPath,
    Where,
    explain,
    shown,
    validated,
)
from meshwright.reading.yaml_and_csv import parse_yaml, read_yaml
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.plan_fields import Pins
from meshwright.spec.serving import FixedSpec, ServingSpec
from meshwright.spec.spec import TRAINS_ADAPTERS, Spec, usual_framework
from meshwright.spec.topology import Topology
from meshwright.spec.training import Training
from meshwright.surface import asked_place

PinList = Mapping[str, Any] | Sequence[str]
"""Plan fields with values, or texts as on the command line, 'tp=4'."""

RuleList = Sequence[str | Mapping[str, Any]]
"""Rules as the spec has them, or only their condition: 'tp <= 8'."""

_OPTIONAL = {"limits": dict, "pins": dict, "run": dict, "rules": list}
"""Sections that may be left empty, and the type of their empty value."""

NO_TRAINING = ": training: missing;"

FIXED_HERE = (
    "here it must be one number; solve and explain choose it, and search within a "
    "budget or a deadline ranks all"
)

FIXED_IN_SERVING = (
    "specs with inference take one number: ask once for each, as with cluster.count: 2"
)

OR_INFERENCE = "; or inference, to serve the model"


def load_spec(
    source: Source,
    pins: PinList | None = None,
    notes: list[str] | None = None,
    rules: RuleList = (),
    files: Files = USER_FILES,
) -> Spec:
    """Return the spec that a source holds, with `pins` and `rules` added.

    Args:
        source: A file, a bundled name, YAML text, or the fields themselves.
        pins: Pins to add to those of the spec, as `{"tp": 4}` or as `["tp=4"]`.
        notes: Gets a note on each value that files of other tools leave out.
        rules: Rules to add to those of the spec.
        files: The files that names in the spec may mean.

    Raises:
        SpecError: names the file, line, field, value and what is accepted.
    """
    document = read_spec(source, pins, notes, rules, files)
    refuse_inference(document)
    refuse_open(document, FIXED_HERE)
    spec = validated(document, Spec)
    tell_remarks([spec.cluster], notes, spec)
    return spec


def refuse_inference(document: Document) -> None:
    """Refuse a spec of serving where one of training is needed.

    Raises:
        SpecError: the spec has the section `inference`.
    """
    if "inference" in document.data:
        at = document.where(("inference",))
        raise SpecError(f"{at}: inference: this command is for specs with training")


def load_question(
    source: Source,
    pins: PinList | None = None,
    notes: list[str] | None = None,
    rules: RuleList = (),
    files: Files = USER_FILES,
) -> FixedSpec | OpenSpec:
    """Return the spec of training or of serving that a source holds.

    Raises:
        SpecError: see `load_spec`; or there are both sections, or neither.
    """
    document = read_spec(source, pins, notes, rules, files)
    schema = _schema(document)
    if schema is ServingSpec:
        refuse_open(document, FIXED_IN_SERVING)
    elif open_fields(document):
        question = open_spec(document)
        tell_remarks(question.clusters, notes)
        return question
    try:
        spec = schema.model_validate(document.data)
    except ValidationError as error:
        lines = explain(document, error, schema).splitlines()
        told = [line + OR_INFERENCE * (NO_TRAINING in line) for line in lines]
        raise SpecError("\n".join(told)) from None
    job = spec if isinstance(spec, Spec) else None
    tell_remarks([spec.cluster], notes, job)
    return spec


def _schema(document: Document) -> type[Spec] | type[ServingSpec]:
    """Return the schema by the section that the spec has, `training` or `inference`.

    Raises:
        SpecError: the spec has both sections.
    """
    if "inference" not in document.data:
        return Spec
    if "training" in document.data:
        at = document.where(("inference",))
        other = document.where(("training",))
        raise SpecError(f"{at}: inference: given beside training ({other}); keep one")
    return ServingSpec


def read_spec(
    source: Source,
    pins: PinList | None = None,
    notes: list[str] | None = None,
    rules: RuleList = (),
    files: Files = USER_FILES,
) -> Document:
    """Return the data of a spec, every name in it resolved; see `load_spec`."""
    document = open_source(source, "specs", files)
    open_sections(document)
    if pins:
        document.data.setdefault("pins", {})
        require_mapping(document, ("pins",), "plan fields")
        _add_pins(document, pins)
    _add_rules(document, rules)
    assumed = resolve_names(document, files)
    if "framework" not in document.data and "training" in document.data:
        usual = usual_framework(document.data["training"])
        if usual == TRAINS_ADAPTERS:
            document.data["framework"] = usual
            assumed.append(f"adapters without a framework: taken as {usual}")
    if notes is not None:
        notes += assumed
    return document


def _add_pins(document: Document, pins: PinList) -> None:
    if not isinstance(pins, Mapping):
        for pin in pins:
            add_pin(document, pin, ("pins",), "--pin")
        return
    for name, value in pins.items():
        document.graft(("pins", name), Document(value, {(): Where("pins")}))


def _add_rules(document: Document, rules: RuleList) -> None:
    rules = [rules] if isinstance(rules, str) else rules
    known = document.data.setdefault("rules", []) if rules else []
    for rule in rules if isinstance(known, list) else ():
        given = {"that": rule} if isinstance(rule, str) else rule
        known.append(None)
        path = ("rules", len(known) - 1)
        document.graft(path, Document(given, {(): Where("rules")}))


def open_sections(document: Document) -> None:
    """Turn empty sections of a spec into empty mappings and lists.

    Raises:
        SpecError: the document is no spec.
    """
    require_mapping(
        document, (), "a spec with model, cluster and training or inference"
    )
    for section, empty in _OPTIONAL.items():
        if section in document.data and document.data[section] is None:
            document.data[section] = empty()


def resolve_names(document: Document, files: Files = USER_FILES) -> list[str]:
    """Replace names of presets and files in a spec by their contents.

    Returns:
        Notes on assumed values.

    Raises:
        SpecError: a preset or a file does not exist.
    """
    notes: list[str] = []
    wrong: list[str] = []
    for resolve in (_resolve_model, _resolve_cluster):
        try:
            notes += resolve(document, files)
        except SpecError as error:
            wrong.append(str(error))
    if wrong:
        raise SpecError("\n".join(wrong))
    return notes


def _resolve_model(document: Document, files: Files) -> list[str]:
    """Replace the name of a model, or of a config.json, by its fields."""
    named = document.data.get("model")
    notes = fill_model(document, files)
    resolve_field(document, ("model",), "specs/models", files)
    return [*notes, *_quantised(named, document)]


def _quantised(named: Any, document: Document) -> Iterator[str]:
    """Yield a note where adapters train on a checkpoint that its name says is small."""
    training = document.data.get("training")
    lora = training.get("lora") if isinstance(training, dict) else None
    if not isinstance(named, str) or lora is None:
        return
    if isinstance(lora, dict) and "weights" in lora:
        return
    if kept := catalog.weights_of(named):
        yield (
            f"{printable(named)}: frozen weights are taken in 16 bits; to have them as "
            f"its name says: training.lora.weights: {kept}"
        )


class _HasCluster(BaseModel):
    """The field of a spec that says where it runs; others are ignored."""

    cluster: Cluster


def load_cluster(name: str, notes: list[str] | None = None) -> Cluster:
    """Return the cluster of a spec, or one topology, in a file or bundled.

    A spec differs from a topology by its field `cluster`. Values that files of other
    tools leave out are assumed, with a note in `notes`.

    Raises:
        SpecError: names the file, line, field, value and what is accepted.
    """
    path = catalog.locate("clusters", name, Path())
    if path.suffix not in (".yaml", ".yml"):
        _refuse_foreign(name, path)
    document = read_yaml(path)
    require_mapping(document, (), "a spec with a cluster, or a topology")
    if "cluster" not in document.data:
        document = document.below(("cluster", "topology"))
    return _cluster_of(document, notes)


def _refuse_foreign(name: str, path: Path) -> None:
    """Refuse a file of another tool by the command that makes a topology of it.

    Raises:
        SpecError: it is one.
    """
    try:
        kind = detect(read_text(path), "machines")
    except SpecError:
        return  # What cannot be read is told where it is read as a topology.
    if kind is not None:
        made = f"meshwright import {kind} {printable(name)} --gpu GPU -o cluster.yaml"
        told = f"is no topology; it looks like {kind}: {made}"
        raise SpecError(f"{printable(name)}: {told}")


def cluster_of_fields(fields: Mapping[str, Any], files: Files = USER_FILES) -> Cluster:
    """Return the cluster whose section of a spec has these fields.

    Raises:
        SpecError: names the field, its value and what is accepted.
    """
    copied = copy.deepcopy({**fields})
    document = Document({"cluster": copied}, {(): Where(asked_place())})
    return _cluster_of(document, None, files)


def _cluster_of(
    document: Document, notes: list[str] | None, files: Files = USER_FILES
) -> Cluster:
    """Return the cluster of a document, once its names are resolved."""
    assumed = _resolve_cluster(document, files)
    if notes is not None:
        notes += assumed
    cluster = validated(document, _HasCluster).cluster
    tell_remarks([cluster], notes)
    return cluster


def _resolve_cluster(document: Document, files: Files) -> list[str]:
    """Replace names of topologies, GPUs and files by their data; return notes."""
    cluster = document.data.get("cluster")
    if isinstance(cluster, str):
        cluster = {"topology": cluster}
    if not isinstance(cluster, dict):
        return []
    topology = cluster.get("topology")
    if isinstance(topology, str) and files.file(topology, Path()) is None:
        try:
            cluster = named_cluster(cluster)
        except SpecError as error:
            where = document.where(("cluster", "topology"))
            raise SpecError(f"{where}: cluster.topology: {error}") from None
    document.data["cluster"] = cluster
    notes = _fill_host(document, files)
    sources = take_sources(document, files)
    resolve_machine(document, ("cluster",), files)
    notes += _set_host_memory(document)
    for name in ("parts", "choices"):
        several = cluster.get(name)
        for index, choice in enumerate(several if isinstance(several, list) else ()):
            if isinstance(choice, str) and name == "choices":
                cluster[name][index] = {"topology": choice}
            resolve_machine(document, ("cluster", name, index), files)
    return notes + fill(document, sources)


def _fill_host(document: Document, files: Files) -> list[str]:
    """Put the usual host around GPUs that a cluster names alone; return a note.

    Raises:
        SpecError: no number of GPUs, or more on a host than there are.
    """
    cluster = document.data["cluster"]
    if "gpu" not in cluster or not cluster.keys() <= BESIDE_GPUS:
        return []
    path, at = ("cluster", "gpu"), document.where(("cluster", "gpu"))
    resolve_field(document, path, catalog.GPUS, files)
    numbers = {name: cluster.get(name, 1) for name in ("count", "per_host")}
    for name, number in numbers.items():
        if type(number) is not int or not 0 < number <= catalog.MOST_GPUS:
            where = document.where(("cluster", name))
            told = f"expected a whole number of GPUs, up to {catalog.MOST_GPUS:,}"
            if isinstance(number, list | dict):
                told += "; beside a machine, as dgx-h100, numbers may be left open"
            raise SpecError(f"{where}: cluster.{name}: {shown(number)}: {told}")
    try:
        gpu = Gpu.model_validate(cluster["gpu"])
    except ValidationError as error:
        told = explain(document, error, Gpu)
        raise SpecError(f"{at}: cluster.gpu: {told}") from None
    count, per_host = numbers["count"], numbers["per_host"]
    if "per_host" in cluster and count % per_host:
        told = f"{count} GPUs are not hosts of {per_host}"
        raise SpecError(f"{document.where(('cluster', 'per_host'))}: {told}")
    given = cluster.pop("per_host", None)
    is_joined = "scale_out" in cluster
    machine, hosts, note = usual_machine(gpu, count, given, is_joined=is_joined)
    fields = {**machine, "gpu": cluster.pop("gpu"), "name": machine["name"]}
    for name in ("host", "scale_out"):
        if name in cluster:
            fields[name] = cluster.pop(name)
    cluster["count"] = hosts
    document.graft(("cluster", "topology"), Document(fields, {(): at}))
    return [f"{note}; see cluster.topology"]


def _set_host_memory(document: Document) -> list[str]:
    """Give hosts the memory that a list of nodes has; return a note where it does."""
    cluster = document.data["cluster"]
    gib, topology = cluster.pop(HOST_GIB, None), cluster.get("topology")
    host = topology.get("host") if isinstance(topology, dict) else None
    if gib is None or not isinstance(host, dict):
        return []
    host["memory_gib"] = gib
    return [f"{gib:,} GiB of host memory, as the list of nodes has it"]


class _HasGpu(BaseModel):
    """A mapping with a GPU."""

    gpu: Gpu


def load_gpu(option: str, name: str) -> Gpu:
    """Return the GPU that an option of the command line names: bundled, or a file.

    Raises:
        SpecError: names the option, or the file, line, field and value.
    """
    document = resolved(option, "gpu", name)
    return validated(document, _HasGpu).gpu


def add_pin(document: Document, pin: str, path: FieldPath, option: str) -> None:
    """Add the value of an option, such as 'tp=4', to the fields at a path.

    Raises:
        SpecError: the text is no FIELD=VALUE of a plan.
    """
    name, equals, text = pin.partition("=")
    place = Where(f"{option} {shown(pin)[1:-1]}")
    if not equals or not text.strip() or name not in Pins.model_fields:
        raise SpecError(f"{place}: expected FIELD=VALUE; {_near_pin(name)}")
    value = parse_yaml(text, str(place), has_lines=False)
    document.graft((*path, name), value)


def _near_pin(name: str) -> str:
    meant = Pins.meant_by(name).removeprefix("pins.")
    if meant in Pins.model_fields:
        return f"did you mean {meant}? fields: {', '.join(Pins.model_fields)}"
    close = difflib.get_close_matches(name.lower(), Pins.model_fields, n=1)
    hint = f"did you mean {close[0]}? " if close and close[0] != name else ""
    return f"{hint}fields: {', '.join(Pins.model_fields)}"


SLACK = 1.02
"""Tolerance for rounded bandwidths in data sheets."""

NIC_GB_S = 100.0
"""The fastest NIC of one GPU: 800 Gbit/s (NVIDIA ConnectX-8 SuperNIC datasheet)."""

SHORT_SEQUENCE, MANY_SEQUENCES = 256, 8
"""Length below which, and times of it from which, a batch looks like the length.

Published runs on short sequences (BERT: 128 tokens, batches of 256) are far from it."""

FEW_COPIES = 8
"""A batch is remarked on that lets so many times fewer copies train than it could."""


def tell_remarks(
    clusters: Iterable[Cluster], notes: list[str] | None, job: Spec | None = None
) -> None:
    """Add a note for what was probably meant otherwise, and for what is not priced."""
    found: dict[str, None] = {}
    for cluster in clusters if notes is not None else ():
        topologies = [part.topology for part in cluster.parts] or [cluster.topology]
        for topology in topologies:
            found |= dict.fromkeys((*_too_fast(topology), *_bits(topology)))
        if job is not None:
            remarks = *_swapped(job.training), *_odd_batch(cluster, job.training)
            found |= dict.fromkeys((*remarks, *_untold(job)))
    if notes is not None:
        notes += found


def _too_fast(topology: Topology) -> Iterator[str]:
    """Yield a remark on a link between GPUs that is faster than the GPU's links.

    Vendors give the bandwidth of both directions together; specs need one direction.
    """
    gpu = topology.gpu
    if not gpu.peer_links or not gpu.peer_link_gb_s:
        return
    one_way = gpu.peer_links * gpu.peer_link_gb_s
    for level in topology.levels[:1]:
        if level.uplink != "per_gpu" or level.gb_s <= one_way * SLACK:
            continue
        is_double = level.gb_s <= 2 * one_way * SLACK
        why = "that is both ways together; gb_s is one way" if is_double else "one way"
        yield (
            f"level {level.name}: {level.gb_s:g} GB/s, but {gpu.name} has "
            f"{gpu.peer_links} links of {gpu.peer_link_gb_s:g}, {one_way:g} in all: "
            f"{why}"
        )


def _bits(topology: Topology) -> Iterator[str]:
    """Yield a remark on a network in GB/s whose number is that of its Gbit/s."""
    for level in topology.above[1:]:
        if level.uplink != "shared" and level.gb_s > NIC_GB_S * SLACK:
            yield (
                f"level {level.name}: {level.gb_s:g} GB/s is more than any NIC has "
                f"({8 * NIC_GB_S:g} Gbit/s, {NIC_GB_S:g} GB/s): gb_s is in bytes, and "
                f"{level.gb_s:g} Gbit/s are {level.gb_s / 8:g}"
            )


def _swapped(training: Training) -> Iterator[str]:
    """Yield a remark on very many very short sequences."""
    length, batch = training.seq_len, training.global_batch
    if length < SHORT_SEQUENCE and batch >= MANY_SEQUENCES * length:
        yield (
            f"training.seq_len: {length:,} tokens with a global_batch of {batch:,} "
            "sequences: were they swapped?"
        )


def _untold(job: Spec) -> Iterator[str]:
    """Yield a remark on an indexer of whose loss a spec says nothing."""
    is_said = "indexer_loss" in job.training.model_fields_set
    if job.model.picker is not None and not is_said:
        yield (
            "training.indexer_loss: a loss over the tokens that model.mla.indexer "
            "picks trains it, as in DeepSeek-V3.2's sparse stage; all and none are "
            "others"
        )


def _odd_batch(cluster: Cluster, training: Training) -> Iterator[str]:
    """Yield a remark on a batch that hardly any number of copies divides."""
    batch, gpus = training.global_batch, cluster.gpus
    most = gcd(batch, gpus)
    if cluster.parts or most * FEW_COPIES > min(batch, gpus):
        return
    unit = max(n for n in range(1, min(batch, gpus) + 1) if gpus % n == 0)
    below = batch // unit * unit
    copies = "one copy of the model alone" if most == 1 else f"at most {most:,} copies"
    yield (
        f"training.global_batch: {batch:,} sequences on {gpus:,} GPUs let {copies} "
        f"train at a time; {below:,} or {below + unit:,} let {unit:,}"
    )
