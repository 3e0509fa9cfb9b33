"""Questions asked by options of the command line, without a spec or beside one.

Kinds of files are recognised by their content: our topologies, what a tool printed of a
machine, or of the switches that join machines. Values that are not given are assumed,
with a note. A question can be saved as a spec.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.registry import detect, importer, kinds
from meshwright.imports.text import read_text, without_colours
from meshwright.loading.gpus_alone import (
    HOST_GIB,
    counted_gpus,
    in_service,
    listed_cards,
    listed_gpus,
    listed_hosts,
    named_cluster,
    network_of,
    on_hosts,
)
from meshwright.loading.load import cluster_of_fields
from meshwright.loading.sources import USER_FILES, Files, Source, open_source
from meshwright.reading.document import Document, FieldPath, Where, field_path
from meshwright.reading.yaml_and_csv import parse_yaml
from meshwright.spec.base import to_length
from meshwright.spec.spec import usual_framework
from meshwright.surface import asked_place, option

USUAL_SEQ_LEN = 4096
"""Default tokens of a sequence, as models of 2023 and 2024 have."""

USUAL_TOKENS = 2**20
"""Default tokens of a batch."""

LONGEST_COUNT = 1_000
"""Most characters of `--count`."""

_GPU_LINE = re.compile(
    r"^\s*(?:GPU\s+\d+:\s*(.+?)\s*\(UUID|\"?name\"?\s*[:=]\s*\"?([^\",]+)|"
    r"Product Name\s*:\s*(.+?)\s*$)",
    re.MULTILINE,
)
"""Lines of `nvidia-smi -L` and `nvidia-smi -q` that name a GPU."""

_COUNTS = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9})|((?:,\d{1,9})+))?")
"""8, a range as 1..64, or a list as 1,2,4."""

OpenCount = int | list[int] | dict[str, int]
"""A number of machines, or the numbers that it may become, as a spec has them."""


def count_of(
    given: OpenCount | str | None, option: str = "--count"
) -> OpenCount | None:
    """Return the number of machines in the text of `--count`, or its open numbers.

    What is no text is returned as it is.

    Raises:
        SpecError: names the option, its value and what is accepted.
    """
    if not isinstance(given, str):
        return given
    text = given
    found = _COUNTS.fullmatch(re.sub(r"\s", "", text[:LONGEST_COUNT]))
    if found is None or len(text) > LONGEST_COUNT:
        told = "expected whole numbers above 0, as 8, 1,2,4 or 1..64"
        raise SpecError(f"{option} {printable(text[:60])}: {told}")
    first, last, more = found.groups()
    if last:
        return {"min": int(first), "max": int(last)}
    return [int(number) for number in found[0].split(",")] if more else int(first)


@dataclass(frozen=True)
class Asked:
    """Values of the options; None for an option that is not given.

    A model or a cluster may also be the fields of one, which no command line has.
    """

    model: str | Mapping[str, Any] | None = None
    cluster: str | Mapping[str, Any] | None = None
    gpu: str | None = None
    machine: str | None = None
    count: OpenCount | None = None
    framework: str | None = None
    seq_len: int | str | None = None
    batch: int | None = None
    precision: str | None = None
    lora: int | None = None
    """Rank of LoRA adapters."""
    gpus: int | None = None
    """GPUs in all; the machines follow."""
    set: tuple[str, ...] = ()
    """Fields of the spec, each with its value: 'training.lora=16'."""

    @property
    def is_silent(self) -> bool:
        """Return whether no option is given."""
        return all(value in (None, ()) for value in vars(self).values())


def ask(
    source: Source | None,
    asked: Asked,
    notes: list[str],
    files: Files = USER_FILES,
    started: Document | None = None,
) -> Document:
    """Return the spec of a source, with the options in place of its values.

    Args:
        source: A spec, or None where the options alone ask.
        asked: The values of the options.
        notes: Gets what was assumed.
        files: The files that names may mean.
        started: Fields of what starts the training, where there is no spec.

    Raises:
        SpecError: there is neither a spec nor a model and a cluster, or a file is of
            no known kind.
    """
    if source is None:
        both = ("model", "cluster")
        said = {} if started is None else started.data
        known = {name for name in both if vars(asked)[name] or name in said}
        missing = [option(name) for name in both if name not in known]
        if asked.gpu:  # In its usual host.
            missing = [name for name in missing if name != option("cluster")]
        if missing:
            named = " and ".join(f"{option(name)} NAME" for name in both)
            silent = f", and not in {started.where(())}" if started else ""
            told = f"expected a spec, or {named} or {option('gpu')} NAME"
            raise SpecError(f"{' and '.join(missing)}: missing{silent}; {told}")
        document = started or Document({}, {(): Where(asked_place())})
    else:
        document = open_source(source, "specs", files)
    if not isinstance(document.data, dict):
        return document
    if asked.machine is not None and asked.cluster is None:
        why = f"only beside {option('cluster')}, a file of switches that join machines"
        raise SpecError(f"{option('machine')} {printable(asked.machine)}: {why}")
    for path, name, value in _said(asked, files, notes):
        _put(document, path, option(name), value)
    if asked.gpus is not None:
        _put_gpus(document, asked, files)
    for text in asked.set:
        before = copy.copy(document.data.get("cluster"))
        _set(document, text)
        if asked.cluster is not None or isinstance(before, str):
            notes += _counted(before, document, text)
    cluster = document.data.get("cluster")
    if asked.cluster and isinstance(cluster, dict) and "scale_out" in cluster:
        speed = cluster["scale_out"]["gb_s"]
        told = f"assumed NICs of {speed} to join the machines; see cluster.scale_out"
        notes.append(f"{told} of a spec ({option('save')})")
    if source is None and "inference" not in document.data:
        notes += _assume(document)
    return document


def _said(
    asked: Asked, files: Files, notes: list[str]
) -> Iterator[tuple[FieldPath, str, Any]]:
    """Yield path, option and value of each field that an option gives.

    `notes` gets what a file has that is left out.
    """
    if asked.model is not None:
        yield ("model",), "model", asked.model
    if asked.cluster is not None:
        yield ("cluster",), "cluster", cluster_of(asked, files, notes)
    elif asked.gpu is not None:
        yield ("cluster",), "gpu", {"gpu": asked.gpu, "count": asked.count or 1}
    elif asked.count is not None:
        yield ("cluster", "count"), "count", asked.count
    if asked.framework is not None:
        yield ("framework",), "framework", asked.framework
    if asked.seq_len is not None:
        yield ("training", "seq_len"), "seq_len", _tokens(asked.seq_len)
    if asked.precision is not None:
        yield ("training", "precision"), "precision", asked.precision
    if asked.lora is not None:
        yield ("training", "lora"), "lora", asked.lora
    if asked.batch is not None:
        yield ("training", "global_batch"), "batch", asked.batch


def gpus_of(asked: Asked, files: Files = USER_FILES) -> int:
    """Return the GPUs of the cluster that is asked for; 0 where that is not known."""
    if asked.gpus is not None:
        return asked.gpus
    try:
        said = {path: value for path, _, value in _said(asked, files, [])}
        return cluster_of_fields(said.get(("cluster",), {}), files).gpus
    except SpecError:  # What is wrong with it is told when the spec is read.
        return 0


def _put_gpus(document: Document, asked: Asked, files: Files) -> None:
    """Put as many machines into a spec as have the GPUs that are asked for.

    Raises:
        SpecError: machines are asked for too, or have other numbers of GPUs.
    """
    at, gpus = option("gpus"), asked.gpus
    section = document.data.get("cluster")
    fields = {"topology": section} if isinstance(section, str) else section
    if gpus is None or not isinstance(fields, dict):
        return  # A spec without a cluster is refused when it is read.
    if asked.count is not None:
        raise SpecError(f"{at} {gpus}: given beside {option('count')}; keep one")
    named = counted_gpus(asked.cluster) if isinstance(asked.cluster, str) else None
    if named is not None and named[0] != gpus:
        said = option("cluster", str(asked.cluster))
        raise SpecError(f"{at} {gpus}: {said} has {named[0]}; keep one")
    if unlike := fields.keys() & {"parts", "choices"}:
        raise SpecError(f"{at} {gpus}: not for a cluster of {unlike.pop()}")
    machine = cluster_of_fields({**fields, "count": 1}, files)
    if gpus < 1 or gpus % machine.gpus:
        told = f"expected a multiple of {machine.gpus}, the GPUs of"
        gpu = machine.topology.gpu.name
        is_named = gpus > 0 and gpu in catalog.names(catalog.GPUS)
        part = f"; for some GPUs of one, {option('gpu')} {gpu} in its place"
        raise SpecError(
            f"{at} {gpus}: {told} {machine.topology.name}{part if is_named else ''}"
        )
    _put(document, ("cluster", "count"), at, gpus // machine.gpus)


def _tokens(said: int | str) -> int | str:
    """Return the tokens of a sequence as a number, where text is one."""
    text = str(said).replace(",", "").strip()
    return to_length(text) or (int(text) if text.isdecimal() else said)


SHORT_FORMS: dict[FieldPath, tuple[type, Callable[[Any], dict[str, Any]]]] = {
    ("model",): (str, lambda name: {"preset": name}),
    ("cluster",): (str, named_cluster),
    ("training", "lora"): (int, lambda rank: {"rank": rank}),
}
"""Fields that one value may stand for: its type, and the mapping that it means."""


def _set(document: Document, text: str) -> None:
    """Set a field by its path, as in 'training.lora=16'.

    Raises:
        SpecError: the text is no PATH=VALUE, or the path leads through no mapping.
    """
    name, equals, value = text.partition("=")
    place, path = option("set", printable(text[:60])), field_path(name.strip())
    if not equals or not path or not all(isinstance(step, str) for step in path):
        told = "expected PATH=VALUE, such as training.lora=16"
        raise SpecError(f"{place}: {told}")
    for end in range(1, len(path)):
        parent = document.value(path[: end - 1])
        if isinstance(parent, dict) and parent.get(path[end - 1]) is None:
            parent[path[end - 1]] = {}
        short, opened = SHORT_FORMS.get(path[:end], (None, None))
        if opened and type(said := parent[path[end - 1]]) is short:
            parent[path[end - 1]] = opened(said)
        if not isinstance(document.value(path[:end]), dict):
            told = f"{'.'.join(map(str, path[:end]))} is a name here; set all of it"
            raise SpecError(f"{place}: {told}")
    document.graft(path, parse_yaml(value, place, has_lines=False))


def _counted(before: Any, document: Document, text: str) -> Iterator[str]:
    """Yield a note where a number of GPUs alone is set, which may be meant as hosts."""
    now = document.value(("cluster",))
    is_alone = isinstance(now, dict) and "gpu" in now and "topology" not in now
    if is_alone and before is not None and text.startswith("cluster.count"):
        had = before if isinstance(before, dict) else named_cluster(str(before))
        if had.get("count") is not None:
            many = f"{now['count']} GPUs in the place of {had['count']}"
            told = f"{option('count')} counts {had['count']} at a time"
            yield f"{option('set', printable(text[:60]))}: {many}; {told}"


def _put(document: Document, path: FieldPath, option: str, value: Any) -> None:
    """Put the value of an option at a path."""
    if len(path) > 1:
        section = document.data.get(path[0])
        if isinstance(section, str):
            document.data[path[0]] = {"topology": section}
        elif not isinstance(section, dict):
            document.data[path[0]] = {}
    document.graft(path, Document(value, {(): Where(option)}))


def cluster_of(
    asked: Asked, files: Files = USER_FILES, notes: list[str] | None = None
) -> dict[str, Any]:
    """Return the section `cluster` for a name, for fields, or for a file of any kind.

    `notes` gets what the file has that is left out.

    Raises:
        SpecError: the file is of no known kind, or does not say what GPU it has.
    """
    named, count = asked.cluster, asked.count
    more = {} if count is None else {"count": count}
    if isinstance(named, Mapping):
        _refuse_unused(asked)
        is_topology = named.keys() & {"levels", "nodes"}
        return {**({"topology": {**named}} if is_topology else named), **more}
    name = str(named)
    path = files.file(name, Path())
    if path is None or path.suffix in (".yaml", ".yml"):
        _refuse_unused(asked)
        if path is None and (gpus := counted_gpus(name)):
            return on_hosts(*gpus, _hosts(count))
        return {"topology": name, **more}
    text = read_text(path)
    kind = detect(text, "machines", "fabrics", "facts")
    if kind in kinds("facts"):
        facts = importer(kind).parse(text, printable(name))
        return _of_nodes(asked, in_service(facts, [] if notes is None else notes))
    place = f"{option('cluster')} {printable(name)}"
    if kind is None and (
        cards := listed_cards(without_colours(text), place, asked.gpu)
    ):
        return on_hosts(*cards, _hosts(count))
    if kind is None:
        accepted = ", ".join(kinds("machines", "fabrics", "facts"))
        told = f"of no known kind; accepted: a topology as YAML, {accepted}"
        raise SpecError(f"{place}: {told}, or the GPUs that nvidia-smi lists")
    if kind in kinds("fabrics"):
        why = "the file joins machines"
        machine = asked.machine or _missing("machine", why)
        return {"machine": machine, kind: name, **more}
    gpu = asked.gpu or gpu_in(text)
    gpu = gpu or _missing("gpu", "the file does not say which GPU it is")
    found = {kind: name, "gpu": gpu, **more}
    if count not in (None, 1):
        found["scale_out"] = network_of(gpu)
    return found


def _refuse_unused(asked: Asked) -> None:
    """Refuse options that say more of a cluster which says all of itself.

    Raises:
        SpecError: a GPU or a machine is given beside it.
    """
    for name in ("gpu", "machine"):
        if (value := getattr(asked, name)) is not None:
            cluster = printable(str(asked.cluster)[:60])
            told = f"not beside {option('cluster')} {cluster}, which says its GPUs"
            raise SpecError(f"{option(name)} {printable(str(value))}: {told}")


def _hosts(count: OpenCount | None) -> int:
    """Return how many hosts some GPUs sit in.

    Raises:
        SpecError: the number of hosts is left open.
    """
    if isinstance(count, list | dict):
        told = "expected one number beside a number of GPUs; name a machine to vary it"
        raise SpecError(f"{option('count')}: {told}")
    return count or 1


def _of_nodes(asked: Asked, facts: Any) -> dict[str, Any]:
    """Return the section `cluster` for a list of nodes, which says no links.

    Options come first; then an instance type that is bundled is the machine, or the
    usual host of the GPUs is assumed.

    Raises:
        SpecError: nothing says which GPU it is, or nodes differ.
    """
    place = f"{option('cluster')} {printable(str(asked.cluster))}"
    if not any(getattr(facts, "gpus_by_type", {}).values()):
        why = "the file lists hosts alone"
        machine = asked.machine or _missing("machine", why)
        return {"machine": machine, "count": asked.count or listed_hosts(facts)}
    wanted = catalog.meant(catalog.GPUS, asked.gpu or "")
    listed = listed_gpus(facts, place, wanted)
    instance = None if asked.gpu else catalog.meant("topologies", listed.instance)
    memory = {HOST_GIB: listed.host_gib} if listed.host_gib else {}
    if known := asked.machine or instance:
        return {"machine": known, "count": asked.count or listed.hosts, **memory}
    named = wanted or asked.gpu or catalog.meant(catalog.GPUS, listed.gpu)
    why = f"the file has {listed.gpu or 'GPUs without names'}"
    gpu = named or _missing("gpu", why)
    hosts = _hosts(asked.count or listed.hosts)
    sizes = {"count": listed.per_host * hosts, "per_host": listed.per_host}
    return {"gpu": gpu, **sizes, **memory}


def gpu_in(text: str) -> str | None:
    """Return the GPU that a text names, None where it names none or several."""
    found = set()
    for match in _GPU_LINE.finditer(text[:1_000_000]):
        name = next(part for part in match.groups() if part)
        if known := catalog.meant(catalog.GPUS, name):
            found.add(known)
    return found.pop() if len(found) == 1 else None


def _missing(name: str, why: str) -> str:
    example = {"gpu": "H100-SXM-80GB", "machine": "dgx-h100"}[name]
    at = option(name)
    raise SpecError(f"{at}: missing; {why}; for one, {at} {example}")


def _assume(document: Document) -> list[str]:
    """Fill in usual values that training lacks, and return notes on them."""
    training, notes = document.data.setdefault("training", {}), []
    if "seq_len" not in training:
        training["seq_len"] = USUAL_SEQ_LEN
        told = f"assumed sequences of {USUAL_SEQ_LEN:,} tokens"
        notes.append(f"{told}; say {option('seq_len')}")
    if "global_batch" not in training:
        length = training["seq_len"]
        is_count = type(length) is int and length > 0
        batch = max(1, USUAL_TOKENS // length) if is_count else 1
        training["global_batch"] = batch
        notes.append(f"assumed batches of {batch:,} sequences; say {option('batch')}")
    if "framework" not in document.data:
        usual = document.data["framework"] = usual_framework(training)
        notes.append(f"assumed the framework {usual}; say {option('framework')}")
    return notes


def saved(document: Document, to: Path) -> str:
    """Return a spec as YAML, with the paths of files as seen from its folder.

    The names in the document must not be resolved yet.
    """
    data = {**document.data}
    if isinstance(model := data.get("model"), str):
        data["model"] = seen_from(to, model)
    if isinstance(cluster := data.get("cluster"), dict):
        data["cluster"] = _cluster(to, cluster)
    return spec_text(data)


def spec_text(fields: dict[str, Any]) -> str:
    """Return the fields of a spec as YAML, the sections that all have first."""
    import yaml

    order = ("model", "cluster", "framework", "training")
    data = {name: fields[name] for name in order if name in fields} | fields
    head = "# Every field: `meshwright schema spec`.\n"
    return head + str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def in_one_line(to: Path, cluster: dict[str, Any]) -> str:
    """Return the section `cluster` of a spec in a line of YAML."""
    import yaml

    data, wide = _cluster(to, cluster), float("inf")
    text = yaml.safe_dump(data, sort_keys=False, default_flow_style=True, width=wide)
    return str(text).strip()


def _cluster(to: Path, cluster: dict[str, Any]) -> dict[str, Any]:
    files = {"topology", *kinds("machines", "fabrics")}
    return {
        name: seen_from(to, value) if name in files else value
        for name, value in cluster.items()
    }


def seen_from(to: Path, value: Any) -> Any:
    """Return the path of a file as seen from the folder of a spec; else the value."""
    if not isinstance(value, str) or not os.path.exists(value):
        return value
    folder, path = to.resolve().parent, Path(value).resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
