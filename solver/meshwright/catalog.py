"""Finds and reads the files that ship with Meshwright; names those near a typo."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from meshwright.errors import SpecError
from meshwright.reading.document import Document, Where
from meshwright.reading.yaml_and_csv import parse_yaml, read_yaml

LONGEST = 1_000
"""Characters of a name or path; longer ones are not looked for."""

MOST_NAMED = 24
"""Bundled names in one message."""

ALIASES = "aliases.yaml"
"""The file of other names: of GPUs and machines beside the topologies, of models
beside theirs."""

MODELS = "specs/models"
"""The kind of files that hold models."""

GPUS = "topologies/gpus"
"""The kind whose names are matched by model, board and memory."""

_FOLDERS = {
    "topologies": ("topologies", "topologies/machines"),
    "clusters": ("specs", "topologies", "topologies/machines"),
    "sweeps": ("specs/sweeps", "specs"),
}
"""Folders of the kinds whose files lie in several."""

_SECTIONS = {
    "topologies": "machines",
    "clusters": "machines",
    "topologies/machines": "machines",
    "topologies/gpus": "gpus",
    MODELS: "models",
}
"""The section of the aliases by kind."""

_OF_A_MODEL = {
    *("hf", "base", "instruct", "chat", "it", "pt", ""),
    *("bf16", "fp16", "fp8", "nf4", "nvfp4", "awq", "gptq", "bnb", "4bit", "8bit"),
    *("int4", "int8", "dequantized", "unsloth"),
}
"""Words in the names of models that say nothing about their shape."""

_QUANTISED = {
    **{"int8": "int8", "8bit": "int8", "gptq": "gptq", "awq": "gptq"},
    **{"bnb": "nf4", "4bit": "nf4", "nf4": "nf4"},
}
"""How frozen weights are kept, by a word in a checkpoint's name; the first counts."""

_VENDORS = {"nvidia", "amd", "instinct", "tesla", "geforce"}
"""Words in the names of GPUs that say nothing about the product."""


def folder(kind: str) -> Traversable:
    """Return the folder that holds the bundled YAML files of one kind."""
    installed = files("meshwright") / kind
    return installed if installed.is_dir() else Path(__file__).parents[2] / kind


def names(kind: str) -> list[str]:
    """Return the names of the bundled files of one kind, sorted."""
    if kind == MODELS:
        return sorted(hubs_of(_table()))
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder(kind).iterdir()
        if entry.name.endswith(".yaml") and entry.name != ALIASES
    )


def _table() -> Path:
    return Path(str(folder(MODELS) / TABLE))


def read(file: Path) -> Document:
    """Return the fields of a file, or of a bundled model, which is a row of a table.

    Raises:
        SpecError: the file cannot be read, or is no YAML.
    """
    if file.parent.name == TABLE:
        return _read_model(file.parent, file.stem)
    return read_yaml(file)


def about(kind: str, name: str) -> str:
    """Return the first line of the comment on a bundled file; empty without one."""
    if kind == MODELS:
        return _about_model(_table(), name)
    text = (folder(kind) / f"{name}.yaml").read_text(encoding="utf-8")
    lines = text.splitlines()[1:3]
    told = next((line for line in lines if line.startswith("# ")), "")
    return told.removeprefix("# ")


def fold(name: str) -> str:
    """Return what spellings of a name share: 'NVIDIA H100_PCIe' is 'h100-pcie'."""
    words = re.split(r"[\s_-]+", name.lower())
    return "-".join(word for word in words if word and word not in _VENDORS)


def fold_model(name: str) -> str:
    """Return what spellings of a model share: 'Qwen/Qwen3-8B-Base' is 'qwen3.8b'.

    Numbers beside each other stay apart: OPT-1.3B is not OPT-13B.
    """
    apart = re.sub(
        r"(?<=\d)[\s_.-]+(?=\d)", "/", name.lower().rstrip("/").rpartition("/")[2]
    )
    words = re.split(r"[\s_.-]+", apart)
    folded = "".join(word for word in words if word not in _OF_A_MODEL)
    return folded.replace("/", ".")


def _folded(kind: str, name: str) -> str:
    return fold_model(name) if kind == MODELS else fold(name)


def locate(kind: str, name: str, near: Path) -> Path:
    """Return the file meant by `name`: a path, seen from `near`, or a bundled name.

    A bundled name comes first as it is spelled there, then a path, then other
    spellings of a bundled name and its aliases.

    Raises:
        SpecError: none exists; the message names the nearest bundled ones.
    """
    known = _known(kind)
    if name in known:
        return _file(known, name)
    path = near / name
    # os.path answers False for names that no file can have, where Path raises.
    if len(name) <= LONGEST and os.path.isfile(path):
        return path
    if meant := _meant(kind, name, known):
        return _file(known, meant)
    is_folder = name and len(name) <= LONGEST and os.path.isdir(path)
    raise SpecError(_refusal(kind, name, _spellings(kind, known), bool(is_folder)))


def bundled(kind: str, name: str) -> Path:
    """Return the bundled file that `name` means, without a look at other files.

    Raises:
        SpecError: there is none; the message names the nearest ones.
    """
    known = _known(kind)
    if meant := name if name in known else _meant(kind, name, known):
        return _file(known, meant)
    spellings = _spellings(kind, known)
    near = _near(_folded(kind, Path(name[:LONGEST]).stem[:60]), spellings)
    raise SpecError(f"{_shown(name)} is no bundled name; {near}")


def meant(kind: str, name: str) -> str | None:
    """Return the bundled name that a name means; None where none, or several, do."""
    try:
        return bundled(kind, name).stem if name else None
    except SpecError:
        return None


def weights_of(name: str) -> str | None:
    """Return how a checkpoint keeps frozen weights, if its name says so."""
    words = {*re.split(r"[^a-z0-9]+", name.lower()[:LONGEST])}
    return next((kept for word, kept in _QUANTISED.items() if word in words), None)


def _meant(kind: str, name: str, known: dict[str, str]) -> str | None:
    """Return the bundled name that `name` is another spelling or an alias of."""
    name = _without_cloud(kind, name)[:LONGEST]
    meant = _spellings(kind, known).get(_folded(kind, name))
    return meant or _gpu(kind, name, known)


def _without_cloud(kind: str, name: str) -> str:
    """Return the instance type of a name such as aws:p5.48xlarge; else the name.

    Raises:
        SpecError: the cloud has no such instance type among the bundled machines.
    """
    cloud, colon, instance = name[:LONGEST].partition(":")
    if not colon or _SECTIONS.get(kind) != "machines":
        return name
    instances = _aliases(kind)["clouds"].get(cloud.strip().lower())
    if instances is None:
        return name
    types = {fold(instance): instance for instance in instances}
    if fold(instance) not in types:
        close = difflib.get_close_matches(fold(instance), types, n=3, cutoff=0.5)
        accepted = ", ".join(types[one] for one in close or sorted(types)[:12])
        raise SpecError(f"{name!r}: no instance type of {cloud}; accepted: {accepted}")
    return instance


def _gpu(kind: str, name: str, known: dict[str, str]) -> str | None:
    """Return the GPU of a name as drivers and clouds print it.

    Raises:
        SpecError: several GPUs go by the name.
    """
    if kind != GPUS:
        return None
    spelled = "-".join(re.split(r"[\s_-]+", name[:LONGEST].lower()))
    if label := _aliases(kind)["labels"].get(spelled):
        return str(label)
    found = matches(name[:LONGEST], known)
    if len(found) > 1:
        raise SpecError(f"{name!r} may be {' or '.join(found)}; say which")
    return found[0] if found else None


def _known(kind: str) -> dict[str, str]:
    """Return the folder of each bundled name of a kind, in the order of names."""
    folders = _FOLDERS.get(kind, (kind,))
    found = {name: source for source in folders for name in names(source)}
    return dict(sorted(found.items()))


def _file(known: dict[str, str], name: str) -> Path:
    around = _table() if known[name] == MODELS else Path(str(folder(known[name])))
    return around / f"{name}.yaml"


def _spellings(kind: str, known: dict[str, str]) -> dict[str, str]:
    """Return the bundled names by their folded names, then by their aliases."""
    section = _SECTIONS.get(kind)
    aliases = _aliases(kind)[section].items() if section else ()
    hubs = hubs_of(_table()).items() if kind == MODELS else ()
    every = [
        *((hub, name) for name, hub in hubs if hub),
        *((name, name) for name in known),
        *aliases,
    ]
    return {_folded(kind, spelled): name for spelled, name in every}


@cache
def _aliases(kind: str) -> dict[str, dict[str, Any]]:
    """Return the sections of other names in the file of a kind."""
    file = folder(MODELS if kind == MODELS else "topologies") / ALIASES
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))


def _refusal(kind: str, name: str, spellings: dict[str, str], is_folder: bool) -> str:
    shown = _shown(name)
    if is_folder:
        return f"{shown}: is a folder; expected a YAML file"
    if _is_path(kind, name):
        near = _or(_folded(kind, Path(name).stem[:60]), spellings)
        is_of_hub = kind == MODELS and name.endswith(".json")
        expected = "a config.json" if is_of_hub else "a YAML file"
        return f"{shown}: no such file; expected {expected}{near}"
    is_of_machines = _SECTIONS.get(kind) == "machines"
    if is_of_machines and (counted := _COUNTED.fullmatch(name[:100])):
        return f"{shown}: {_uncounted(counted[1], counted[2], spellings)}"
    if is_of_machines and matches(name[:60], _known(GPUS)):
        many = f"8x{name[:60]}"
        return f"{shown} is a GPU; expected how many of them, such as {many}"
    if kind == GPUS and _SLICE.search(name[:LONGEST]):
        return f"{shown}: a slice of a GPU (MIG) is not bundled; {SLICE}"
    near = _near(_folded(kind, name[:60]), spellings)
    more = " Any model can be given by its config.json." if kind == MODELS else ""
    return f"{shown} is neither a file nor a bundled name; {near}{more}"


_COUNTED = re.compile(r"(\d{1,40}) ?[x*\N{MULTIPLICATION SIGN}] ?(\S.{0,50})")
"""A number of machines or GPUs, and their name."""

MOST_GPUS = 100_000
"""Most GPUs of a cluster that names them alone."""

_SLICE = re.compile(r"\bMIG\b", re.IGNORECASE)

SLICE = "expected a file with the memory, the bandwidth and the peaks that it has"


def _uncounted(number: str, name: str, machines: dict[str, str]) -> str:
    """Return why so many machines or GPUs are none that can be had."""
    if machine := machines.get(_folded("topologies/machines", name)):
        return f"{machine} is a machine; expected its name alone, and count: {number}"
    if matches(name, _known(GPUS)):
        if 0 < int(number) <= MOST_GPUS:
            return "expected a machine; GPUs alone are given as cluster: 8xH100"
        return f"{number} GPUs; expected 1 to {MOST_GPUS:,}"
    spellings = _spellings(GPUS, _known(GPUS))
    return f"no GPU goes by {name!r}; {_near(_folded(GPUS, name), spellings)}"


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 60 else repr(name[:60]) + "..."


def _is_path(kind: str, name: str) -> bool:
    """Return whether a name can only be a path: the hub's have one slash inside."""
    has_slash = "/" in name
    if kind == MODELS:
        has_slash = name.count("/") > 1 or name.startswith((".", "/", "~"))
    return has_slash or name.endswith((".yaml", ".yml", ".json"))


def _or(folded: str, spellings: dict[str, str]) -> str:
    close = difflib.get_close_matches(folded, spellings, n=1, cutoff=0.7)
    return f" or a bundled name such as {spellings[close[0]]}" if close else ""


def _near(folded: str, spellings: dict[str, str]) -> str:
    close = [other for other in spellings if folded and folded in other]
    close = close or difflib.get_close_matches(folded, spellings, n=9, cutoff=0.5)
    if close:
        meant = list(dict.fromkeys(spellings[other] for other in close))
        return "did you mean " + " or ".join(meant[:3]) + "?"
    names = list(dict.fromkeys(spellings.values()))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return "bundled: " + ", ".join(names[:MOST_NAMED]) + more


NOISE = frozenset(
    re.findall(
        r"\S+",
        "nvidia amd intel habana labs inc corporation tesla geforce instinct graphics "
        "gpu gpus accelerator oam generation edition blackwell workstation tensor core "
        "rtx ac mega vf superchip grace hopper ampere controller 3d display rev a1",
    )
)
"""Words in the names of GPUs that do not tell one GPU from another."""

BOARDS = frozenset({"sxm", "pcie", "nvl"})

NEAR_MEMORY = 0.08
"""Relative difference of two sizes that are the same memory: 192 GB are sold as 180."""

MOST_GPU_GB = 400
"""Sizes above are those of a CPU beside the GPU, as in GH200 480GB."""

_BRACKETS = re.compile(r"\[([^\[\]]{2,80})\]")
_MEMORY = re.compile(r"(\d{1,4})(?:g|gb|gib)")
_PARTS = (
    (re.compile(r"\brtx(?=[a-z0-9])"), "rtx "),
    (re.compile(r"\bgaudi[\W_]{0,6}(?:r\W{0,3})?(?=\d\b)"), "gaudi"),
    (re.compile(r"(?<=\d)(?=nvl|sxm|pcie)"), " "),
    (re.compile(r"\bmax[\W_]{0,3}q\b"), "max q"),
    (re.compile(r"\((?:r|tm)\)"), " "),
    (re.compile(r"(?<=\d) (?=(?:gb|gib)\b)"), ""),
)


class Spoken(NamedTuple):
    """A GPU as a name says it."""

    model: frozenset[str]
    board: str = ""
    memory_gb: int | None = None


def spoken(name: str) -> Spoken:
    """Return the model, board and memory in a name."""
    text = name.lower()
    if (inner := _BRACKETS.search(text)) and any(map(str.isdigit, inner[1])):
        text = inner[1]
    for pattern, plain in reversed(_PARTS):
        text = pattern.sub(plain, text)
    model, board, memory_gb = set(), "", None
    for word in re.findall(r"[a-z0-9]+", text):
        plain = re.sub(r"^(sxm|pcie)\d$", r"\1", word)
        if plain in BOARDS:
            board = plain
        elif match := _MEMORY.fullmatch(word):
            size = int(match[1])
            memory_gb = size if size <= MOST_GPU_GB else memory_gb
        elif word not in NOISE and not word.startswith("hbm"):
            model.add(word)
    return Spoken(frozenset(model), board, memory_gb)


def matches(name: str, known: Iterable[str]) -> list[str]:
    """Return the bundled GPUs that a name may mean, those of nearest memory alone."""
    wanted = spoken(name)
    if not wanted.model:
        return []
    able = [(other, spoken(other)) for other in known]
    able = [pair for pair in able if _is_meant(wanted, pair[1])]
    if wanted.memory_gb is not None:
        distances = {
            other: abs((said.memory_gb or wanted.memory_gb) - wanted.memory_gb)
            for other, said in able
        }
        least = min(distances.values(), default=0)
        return [other for other, distance in distances.items() if distance == least]
    return [other for other, _ in able]


def _is_meant(wanted: Spoken, other: Spoken) -> bool:
    if wanted.model != other.model:
        return False
    if wanted.board and other.board and wanted.board != other.board:
        return False
    if wanted.memory_gb is None or other.memory_gb is None:
        return True
    return abs(wanted.memory_gb / other.memory_gb - 1) <= NEAR_MEMORY


TABLE = "families.yaml"
"""The file of the bundled models: families in one table, a model a row.

A family says what its models share and which fields the columns hold; a field of a part
has a dot, as `moe.top_k`. A row may end on a mapping of further fields. A path below
the file, as families.yaml/llama3-8b.yaml, is that of a row."""

_FAMILY = re.compile(r"([\w.-]+):")
_ROW = re.compile(r"    ([\w.-]+): \[([^,]+),")


@cache
def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


@cache
def _families(file: Path) -> dict[str, tuple[int, int]]:
    """Return by model the lines of its family: its first, and the one behind it."""
    lines = _lines(file)
    heads = [at for at, line in enumerate(lines) if _FAMILY.fullmatch(line)]
    ends = [*heads[1:], len(lines)]
    return {
        row[1]: (start, end)
        for start, end in zip(heads, ends, strict=True)
        for row in filter(None, map(_ROW.match, lines[start:end]))
    }


@cache
def hubs_of(file: Path) -> dict[str, str]:
    """Return the models of a table, with their names on the hub; empty without one."""
    rows = filter(None, map(_ROW.match, _lines(file)))
    return {row[1]: "" if row[2] == "~" else row[2] for row in rows}


def _about_model(file: Path, name: str) -> str:
    """Return the first line of the comment above the family of a model."""
    lines, start = _lines(file), _families(file)[name][0]
    told = ""
    while start and lines[start - 1].startswith("# "):
        start -= 1
        told = lines[start].removeprefix("# ")
    return told


def _read_model(file: Path, name: str) -> Document:
    """Return the fields of a model, and the line of the table which has them."""
    family, places = _family(file, *_families(file)[name])
    return Document({"name": name, **row_fields(family, name)}, {(): places[name]})


def row_fields(family: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of a row; those of parts are in mappings of their own."""
    columns, row = family["columns"], family["models"][name]
    named = dict(zip(columns, row, strict=False))
    found: dict[str, Any] = {}
    for mapping in (family["shared"], named, *row[len(columns) :]):
        for column, value in mapping.items():
            part, dot, field = column.partition(".")
            if value is not None:
                found[part] = {**found.get(part, {}), field: value} if dot else value
    return found


def families(file: Path) -> dict[str, dict[str, Any]]:
    """Return what every family says: `shared`, `columns` and `models`, its rows."""
    spans = dict.fromkeys(_families(file).values())
    lines = _lines(file)
    return {lines[span[0]][:-1]: _family(file, *span)[0] for span in spans}


@cache
def _family(
    file: Path, start: int, end: int
) -> tuple[dict[str, Any], dict[str, Where]]:
    """Return what a family says, and the place of every row."""
    text = "\n" * start + "\n".join(_lines(file)[start:end])
    document = parse_yaml(text, str(file))
    ((head, family),) = document.data.items()
    places = {row: document.where((head, "models", row)) for row in family["models"]}
    return family, places
