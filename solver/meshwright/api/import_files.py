"""`meshwright import`: files of other tools as a topology, facts, or a plan."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from meshwright import catalog
from meshwright.api.arguments import checked
from meshwright.api.options import spec_fields
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.plan import Decided, decide
from meshwright.imports.logs.training_log import kind_of_log, read_log
from meshwright.imports.read import (
    as_yaml,
    gpu_name,
    kind_of_launch,
    plain_data,
    read_facts,
    read_launch,
    read_levels,
    read_machine,
    told_of_script,
)
from meshwright.imports.registry import (
    FabricImporter,
    Imported,
    LaunchImporter,
    LogImporter,
    MachineImporter,
    TrainingLogImporter,
    detect,
    importer,
    kinds,
)
from meshwright.imports.text import read_text, shown
from meshwright.loading.gpus_alone import in_service
from meshwright.loading.imported import read_model, title
from meshwright.loading.plan_text import as_pins, sizes_of
from meshwright.loading.sources import USER_FILES, Files, resolved
from meshwright.reading.document import Document, Where, validated
from meshwright.reading.yaml_and_csv import parse_yaml
from meshwright.report.tables import Section
from meshwright.spec.gpu import Gpu
from meshwright.spec.model import WHOLE_MODEL, Model
from meshwright.spec.topology import Topology
from meshwright.spec.units import counted
from meshwright.surface import command, option


def launch_text(
    path: Path, kind: str | None, *, is_whole: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Return a launch as the beginning of a spec, and notes.

    Args:
        path: The file.
        kind: Its kind; without, it is told by the text.
        is_whole: Whether all options without effect are named.

    Raises:
        SpecError: the file cannot be read as a launch.
    """
    launch = read_launch(path, kind)
    assumed = []
    if launch.usual and not launch.framework:
        launch.framework = launch.usual
        assumed = [
            f"{launch.name}: assumed the framework {launch.usual}; it names none"
        ]
    decided = decide(launch, sizes_of(launch))
    as_pins(launch, decided)
    told = launch.notes(is_whole=is_whole)
    notes = (*told, *assumed, *_missing(launch, decided))
    plan = plan_text(decided.pins)
    asks = command("explain", option("spec", "SPEC"), option("plan", f"'{plan}'"))
    made_from = f"{path} ({launch.kind}: {launch.title})"
    return as_yaml(
        made_from,
        [*notes, *([asks] if plan else ())],
        spec_fields(launch, decided),
    ), notes


def log_text(path: Path, kind: str | None) -> tuple[str, tuple[str, ...]]:
    """Return a log as the beginning of a spec, the measured run, and notes.

    Args:
        path: The file.
        kind: Its kind; without, it is told by the text.

    Raises:
        SpecError: the file tells nothing of a training run, or contradicts itself.
    """
    log = read_log(read_text(path), printable(str(path)), kind)
    launch = log.launch
    decided = decide(launch, sizes_of(launch))
    as_pins(launch, decided)
    unknown = [field for field in log.unknown if not field.startswith("cluster.")]
    gpus, gpu = launch.value("gpus"), printable(log.gpu)
    cards = counted(gpus, "GPU") if gpus else ""
    known = f"{gpus} x {gpu}" if gpus and gpu else gpu or cards
    needed = [f"cluster ({known})" if known else "cluster", *unknown]
    left = f"{launch.name}: does not say, and a spec needs: {', '.join(needed)}"
    named = [launch.model_note()] if launch.setting("model") else []
    notes = (*launch.notes(), *log.notes, *named, left)
    said = f"{path} ({log.kind}: {log.title}{f', on {gpu}' if gpu else ''})"
    told = [f"{launch.name}: {sentence}" for sentence in log.told()]
    fields = spec_fields(launch, decided)
    text = as_yaml(said, [*told, *notes], {k: v for k, v in fields.items() if v})
    if log.measured:
        run = {"id": path.stem[:100], "source_id": "logs", "spec": "SPEC.yaml"}
        plan = {"plan": plan_text(decided.pins)} if decided.pins else {}
        entry = {**run, **plan, "measured": log.measured}
        rows = as_yaml("", [], {"run": [entry]}).splitlines()[2:]
        head = "The run, as `meshwright calibrate RUNS` takes it beside SPEC.yaml:"
        text += "".join(f"# {row}\n" for row in [head, *rows])
    return text, (*told, *notes)


def plan_text(pins: dict[str, Any]) -> str:
    """Return fields of a plan as `--plan` reads them."""
    return ",".join(f"{name}={_word(value)}" for name, value in pins.items())


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(_word, value)) + "]"
    return str(value)


def _missing(launch: Launch, decided: Decided) -> list[str]:
    names = ["cluster"]
    if gpus := launch.value("gpus"):
        names = [f"cluster ({counted(gpus, 'GPU')})"]
    if launch.preset is None:
        fields = [f"model.{name}" for name in WHOLE_MODEL]
        names += [field for field in fields if launch.value(field) is None]
    if decided.global_batch is None and "training.global_batch" not in launch.values:
        names.append("training.global_batch")
    if "training.seq_len" not in launch.values:
        names.append("training.seq_len")
    left = ", ".join(decided.open)
    named = launch.model_note()
    return [
        *([named] if named else []),
        f"{launch.name}: does not say, and a spec needs: {', '.join(names)}",
        f"{launch.name}: the plan leaves open: {left}",
    ]


@dataclass(frozen=True)
class ImportOptions:
    """Options of the command line beside kind and files."""

    gpu: str | None = None
    machine: str | None = None
    onto: str | None = None
    op: str | None = None
    ranks: int | None = None
    verbose: bool | None = None


@dataclass(frozen=True)
class ImportedFile:
    """A file of another tool, as the text of a file of ours.

    Example:
        >>> import meshwright as mw
        >>> made = mw.import_file("topo.txt")  # doctest: +SKIP
        >>> mw.load(model="llama3-8b", cluster=made.fields)  # doctest: +SKIP
    """

    text: str
    """YAML: the beginning of a spec, a topology, a model, or facts."""
    notes: tuple[str, ...]
    """Facts that the file leaves out, and what was assumed."""
    sections: list[Section] = field(default_factory=list)
    """Tables of a fit."""

    @property
    def fields(self) -> dict[str, Any]:
        """Return the text as data."""
        return dict(parse_yaml(self.text, "made").data or {})


@checked
def import_file(
    file: str | PathLike[str],
    *,
    kind: str | None = None,
    gpu: str | None = None,
    machine: str | None = None,
    onto: str | None = None,
    op: str | None = None,
    ranks: int | None = None,
) -> ImportedFile:
    """Return what a file of another tool says, in the words of a spec.

    A script or configuration that starts training and the log of a run become the
    beginning of a spec with the plan as pins; what nvidia-smi, Slurm and others print
    becomes a topology; a config.json becomes a model.

    Args:
        file: The path of the file.
        kind: Its kind, as `meshwright import --help` lists them; without it, it is
            told by the text.
        gpu: The GPU of a machine whose file does not say it.
        machine: The machine that the switches of a file join.
        onto: The topology whose links a log of nccl-tests measured.
        op: The collective, if that log is silent.
        ranks: How many GPUs ran, if that log does not say it.

    Raises:
        SpecError: the kind, an argument or the file cannot be used.

    Example:
        >>> import meshwright as mw
        >>> script = Path("start.sh")
        >>> line = "torchrun pretrain_gpt.py --tensor-model-parallel-size 4"
        >>> _ = script.write_text(line)
        >>> mw.import_file(script).fields["pins"]["tp"]
        4
    """
    words = [] if kind is None else [kind]
    return run([*words, str(file)], ImportOptions(gpu, machine, onto, op, ranks))


def run(
    words: list[str], options: ImportOptions, files: Files = USER_FILES
) -> ImportedFile:
    """Import files; the first word is their kind, which launches do without.

    Names in the options mean what `files` has.

    Raises:
        SpecError: the kind, an option or a file cannot be used.
    """
    if len(words) == 1 and (
        seen := kind_of_log(Path(words[0])) or kind_of_launch(Path(words[0]))
    ):
        words = [seen, *words]
    kind, paths = _kind_and_files(words)
    reader = importer(kind)
    if isinstance(reader, MachineImporter) and _has_no_machine(kind, reader, paths[0]):
        _check_options(kind, options, ())
        return _facts(kind, paths[0])
    if options.gpu is None and (named := gpu_name(kind, paths[0])):
        options = replace(options, gpu=_bundled(named))
    _check_options(kind, options, reader.takes, reader.why)
    if isinstance(reader, LaunchImporter):
        return ImportedFile(
            *launch_text(paths[0], kind, is_whole=bool(options.verbose))
        )
    if isinstance(reader, TrainingLogImporter):
        return ImportedFile(*log_text(paths[0], kind))
    if kind in kinds("models"):
        return _model(kind, paths[0])
    if isinstance(reader, LogImporter):
        return _fitted(kind, paths, options, files)
    if isinstance(reader, MachineImporter):
        return _machine(kind, paths[0], str(options.gpu), files)
    if isinstance(reader, FabricImporter):
        return _levels(kind, paths[0], str(options.machine), files)
    return _facts(kind, paths[0])


def _bundled(named: str) -> str:
    """Return the bundled GPU that a file names.

    Raises:
        SpecError: there is none, or several go by the name.
    """
    try:
        return catalog.bundled(catalog.GPUS, named).stem
    except SpecError as error:
        raise SpecError(f"{option('gpu')}: missing; the file says {error}") from None


def _kind_and_files(words: list[str]) -> tuple[str, list[Path]]:
    if not words:
        raise SpecError(f"KIND: missing; accepted: {', '.join(kinds())}")
    kind, *files = words
    if kind not in kinds():
        raise SpecError(_no_kind(kind))
    if not files:
        raise SpecError(f"FILE: missing; expected meshwright import {kind} FILE")
    if kind not in kinds("logs") and len(files) > 1:
        raise SpecError(f"FILE: {len(files)} given; {kind} takes one")
    return kind, [Path(file) for file in files]


LONGEST = 200
"""Most characters of a word that is looked at as a name."""

ENGINES = re.compile(
    r"\b(?:vllm[ ]serve|vllm\.entrypoints|sglang\.launch_server|trtllm-serve)\b"
)
"""Commands of engines that serve a model."""


def _no_kind(word: str) -> str:
    """Return the message on a first word that is no kind, but may be a file."""
    accepted = f"accepted: {', '.join(kinds())}"
    try:
        text = read_text(Path(word))
    except SpecError as error:
        if Path(word[:LONGEST]).suffix or "/" in word:
            return str(error)
        return f"KIND: {shown(word)} is not known; {accepted}"
    if ENGINES.search(text):
        told = "starts an engine, which is asked about by `inference` in a spec"
        return f"{printable(word)}: {told} (docs/serving.md)"
    if (seen := detect(text)) is None:
        if script := told_of_script(text):
            return f"{printable(word)}: {script}"
        told = "whose text is of no kind that is known"
        return f"KIND: missing before {shown(word)}, {told}; {accepted}"
    told = f"this looks like {seen}: meshwright import {seen} {word}"
    return f"KIND: missing before {shown(word)}; {told}; {accepted}"


def _check_options(
    kind: str, options: ImportOptions, takes: tuple[str, ...], why: str = ""
) -> None:
    for name, value in vars(options).items():
        if value is not None and name not in (*takes, "verbose"):
            accepted = ", ".join(map(option, takes)) or "none"
            raise SpecError(f"{option(name)}: not for {kind}; accepted: {accepted}")
    if takes and getattr(options, takes[0]) is None:
        raise SpecError(f"{option(takes[0])}: missing; {why}")


def _has_no_machine(kind: str, reader: MachineImporter[Any], path: Path) -> bool:
    """Return whether a file describes no machine, though others of its kind do."""
    has_machine = reader.has_machine
    return has_machine is not None and not has_machine(read_facts(kind, path))


def _facts(kind: str, path: Path) -> ImportedFile:
    facts = read_facts(kind, path)
    data = plain_data(facts)
    if by_type := getattr(facts, "gpus_by_type", None):
        data["gpus_by_type"] = dict(by_type)
    told = ["Facts, no topology: the file does not say how GPUs are joined."]
    told += _as_cluster(in_service(facts, told))
    return ImportedFile(as_yaml(f"{path} ({kind})", told, data), tuple(told))


def _as_cluster(facts: Any) -> list[str]:
    """Return how a spec has the nodes of facts, if all are one bundled instance."""
    nodes = getattr(facts, "nodes", ())
    nodes = nodes if isinstance(nodes, tuple) else ()
    instances = {getattr(node, "instance", "") for node in nodes}
    if len(instances) != 1 or not (instance := instances.pop()):
        return []
    if not (machine := catalog.meant("topologies", instance)):
        return []
    return [f"In a spec: cluster: {{machine: {machine}, count: {len(nodes)}}}."]


def _machine(kind: str, path: Path, gpu_name: str, files: Files) -> ImportedFile:
    document = resolved(option("gpu"), "gpu", gpu_name, files)
    gpu = validated(document.part("gpu"), Gpu)
    imported = read_machine(kind, path, gpu)
    data = {"name": title(path), "gpu": _reference(document, ("gpu",))}
    return _made(f"{path} ({kind}) with {gpu.name}", path, data, imported, gpu)


def _levels(kind: str, path: Path, machine: str, files: Files) -> ImportedFile:
    data, topology = _read_topology(option("machine"), machine, files)
    imported = read_levels(kind, path, topology)
    data.pop("scale_out", None)
    made_from = f"{path} ({kind}) above {topology.name}"
    data["name"] = title(path)
    return _made(made_from, path, data, imported, topology.gpu)


def _model(kind: str, path: Path) -> ImportedFile:
    """Return the section `model` of a spec, with the parameters as a note."""
    from meshwright.cost.whole_model import active_params, total_params

    fields, notes = read_model(path)
    model = validated(Document(fields, {(): Where(str(path))}), Model)
    total, active = total_params(model), active_params(model)
    of_token = f", {active:,} of them for a token" if active < total else ""
    told = (f"{total:,} parameters{of_token}", *notes)
    return ImportedFile(as_yaml(f"{path} ({kind})", told, {"model": fields}), told)


def _fitted(
    kind: str, paths: list[Path], options: ImportOptions, files: Files
) -> ImportedFile:
    from meshwright.evidence.fitted_topology import fit_files

    data, topology = _read_topology(option("onto"), str(options.onto), files)
    fields, notes, tables = fit_files(
        data, topology, kind, paths, options.op or "", options.ranks or 0
    )
    made_from = f"{', '.join(map(str, paths))} ({kind}) on {topology.name}"
    imported = Imported(fields, notes)
    made = _made(made_from, paths[0], {}, imported, topology.gpu)
    return ImportedFile(made.text, made.notes, [*tables])


def _made(
    made_from: str, path: Path, data: dict[str, Any], imported: Imported, gpu: Gpu
) -> ImportedFile:
    """Return a topology as text, after validating it."""
    fields = {**data, **imported.fields}
    validated(
        Document(fields, {(): Where(str(path))}), Topology, {**fields, "gpu": gpu}
    )
    return ImportedFile(as_yaml(made_from, imported.notes, fields), imported.notes)


def _read_topology(
    option: str, name: str, files: Files
) -> tuple[dict[str, Any], Topology]:
    """Return a topology as written, with the name of its GPU where that is bundled."""
    document = resolved(option, "topology", name, files)
    inner = document.part("topology")
    topology = validated(inner, Topology)
    return {**inner.data, "gpu": _reference(document, ("topology", "gpu"))}, topology


def _reference(document: Document, path: tuple[str, ...]) -> Any:
    """Return the name of a bundled GPU, or all fields of any other."""
    file = Path(document.where(path).file)
    is_bundled = file.parent == Path(str(catalog.folder("topologies/gpus")))
    return file.stem if is_bundled else document.value(path)
