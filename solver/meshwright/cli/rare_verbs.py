"""The short verbs: ui, mcp, verify, simulate, topology, evidence, gemm and others."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import FOUND, NONE_FITS
from meshwright.cli.output import (
    Format,
    folded,
    section_text,
    show,
    tell,
    write,
    write_report,
)
from meshwright.errors import SpecError
from meshwright.escape import printable

if TYPE_CHECKING:
    from meshwright.spec.gpu import Gpu


def verify(
    certificate: Path, of: str | None = None, profile: str = DEFAULT_PROFILE
) -> None:
    """Check a certificate: that its groups leave no better plan out.

    `python -m meshwright_verify FILE` checks the same without Meshwright.
    """
    import meshwright_verify

    try:
        data = certificate.read_bytes()
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise SpecError(f"{printable(str(certificate))}: {reason}") from None
    try:
        lines = meshwright_verify.verify(data)
        if of is not None:
            from meshwright.api.load import load
            from meshwright.api.solve import certified_as
            from meshwright.certificates.certificate import sha256_of

            loaded = load(of)
            found = meshwright_verify.read(data)
            specs = [found["spec"], *(other["spec"] for other in found["others"])]
            stated = {*map(sha256_of, specs)}, found["profile"]["sha256"]
            names = ("spec", f"another spec than {of}"), ("profile", "another profile")
            ours = certified_as(loaded, profile=profile)
            for (place, what), *pair in zip(names, stated, ours, strict=True):
                meshwright_verify.demand(pair[0] == pair[1], place, f"it is of {what}")
    except meshwright_verify.Refused as error:
        tell([f"{printable(str(certificate))}: refused: {printable(str(error))}"])
        raise typer.Exit(NONE_FITS) from None
    for line in lines:
        print(*folded(printable(line), sys.stdout), sep="\n")
    raise typer.Exit(FOUND)


def simulate(
    spec: str,
    plan: str | None = None,
    jitter: float | None = None,
    slow_gpus: float = 0.0,
    slowdown: float | None = None,
    samples: int = 1_000,
    days: float = 30.0,
    seed: int = 0,
    profile: str = DEFAULT_PROFILE,
    output_format: Format = "table",
    output: Path | None = None,
    report: Path | None = None,
) -> None:
    """Simulate steps of a plan with jitter, slow GPUs and failures."""
    from meshwright.api.load import load
    from meshwright.spec.spec import Spec

    notes: list[str] = []
    loaded = load(spec, Spec, notes=notes)

    from meshwright.api.options import read_asked

    pins = read_asked(plan, loaded, notes) if plan is not None else None
    tell(notes)
    from meshwright.api.price import NoPlanError
    from meshwright.api.price import simulate as simulate_spec
    from meshwright.cli.output import Progress
    from meshwright.report.simulation import simulation_sections

    try:
        with Progress() as progress:
            told = simulate_spec(
                loaded,
                pins,
                jitter=jitter,
                slow_gpus=slow_gpus,
                slowdown=slowdown,
                samples=samples,
                seed=seed,
                days=days,
                profile=profile,
                on_progress=progress.say,
            )
    except NoPlanError as error:
        tell([str(error)])
        raise typer.Exit(NONE_FITS) from None
    write_report(loaded, told, profile, report)
    show(partial(simulation_sections, told), told.to_dict, output_format, output)


def topology(
    cluster: str,
    plot: Path | None = None,
    output_format: Format = "table",
    output: Path | None = None,
) -> None:
    """Show a cluster: levels, hosts, what two GPUs reach, what is broken."""
    from meshwright.loading.load import load_cluster

    notes: list[str] = []
    loaded = load_cluster(cluster, notes)
    tell(notes)

    from meshwright.report.topology import (
        draw_topology,
        topology_data,
        topology_sections,
    )

    if plot is not None:
        draw_topology(loaded, plot)
    sections, data = partial(topology_sections, loaded), partial(topology_data, loaded)
    show(sections, data, output_format, output)


def evidence(
    runs: Path,
    weak: list[str] | None = None,
    profile: str = DEFAULT_PROFILE,
    plot: Path | None = None,
    output_format: Format = "table",
    output: Path | None = None,
) -> None:
    """Compare predictions with runs that others measured."""
    from meshwright.cli.output import Progress
    from meshwright.cost.profile import load_profile
    from meshwright.evidence.runs import read_runs
    from meshwright.evidence.score import judge
    from meshwright.evidence.scoreboard import (
        evidence_data,
        evidence_sections,
        save_plot,
    )

    with Progress() as progress:
        progress.say("pricing runs")
        fitted = load_profile(profile)
        board = judge(read_runs(runs), weak or (), fitted)
        if plot:
            progress.say("drawing")
            save_plot(board.priced, plot)
    sections, data = partial(evidence_sections, board), partial(evidence_data, board)
    show(sections, data, output_format, output)


def probe(
    spec: str,
    count: int = 5,
    output: Path | None = None,
    nodes: int | None = None,
    profile: str = DEFAULT_PROFILE,
) -> None:
    """Pick the short runs that tell most about which plan is best, and what fits."""
    from meshwright.api.load import load
    from meshwright.api.options import read_profile
    from meshwright.calibration.probe import probes
    from meshwright.calibration.probe_report import probe_files, probe_sections
    from meshwright.cli.output import Progress
    from meshwright.spec.spec import Spec

    notes: list[str] = []
    loaded = load(spec, Spec, notes=notes)
    tell(notes)
    with Progress() as progress:
        found = probes(loaded, read_profile(profile), count, nodes, progress.say)
    sys.stdout.write(section_text(probe_sections(found, output), sys.stdout))
    if output is not None:
        for file in probe_files(found):
            write(file.text, output / file.name)


def compare_trace(
    modelled: Path,
    real: Path,
    stage: int | None = None,
    output_format: Format = "table",
    output: Path | None = None,
) -> None:
    """Put the modelled step beside a profiler's trace, phase by phase."""
    from meshwright.report.simulation import trace_sections
    from meshwright.traces.compare import compare_traces

    told = compare_traces(modelled, real, stage=stage)
    show(partial(trace_sections, told), told.to_dict, output_format, output)


HEADROOM = 0.03
"""Default share of the memory that stays free."""


class Budget(NamedTuple):
    """The memory for a matmul, and the share of it that stays free."""

    memory_gib: float
    headroom: float


Dtype = Literal["bf16", "fp16", "fp8", "tf32", "fp32"]
"""Precisions of A and W."""


def gemm(
    m: int,
    k: int,
    n: int,
    dtype: Dtype = "bf16",
    gpu: str | None = None,
    vram: str | None = None,
    usable: str | None = None,
    headroom: float | None = None,
    gpus: int | None = None,
    split_k: int = 1,
    bias: bool = False,
    residual: bool = False,
    output_format: Format = "table",
    output: Path | None = None,
) -> None:
    """Say whether Y = A W fits a GPU, how fast it can be, and how to cut it."""
    chosen_gpu = _gemm_gpu(gpu, dtype) if gpu is not None else None
    budget = _budget(vram, usable, headroom, chosen_gpu)

    from meshwright.economics.gemm import CONTEXT, Matmul, answer
    from meshwright.report.gemm import gemm_sections

    context = CONTEXT if usable is None else 0
    matmul = Matmul(m, k, n, dtype, split_k, bias, residual, context)
    told = answer(matmul, chosen_gpu, budget.memory_gib, budget.headroom, gpus)
    data = partial(told.model_dump, mode="json")
    show(partial(gemm_sections, told), data, output_format, output)
    raise typer.Exit(FOUND if told.fits else NONE_FITS)


def _gemm_gpu(name: str, dtype: Dtype) -> Gpu:
    from meshwright.loading.load import load_gpu

    gpu = load_gpu("--gpu", name)
    known = gpu.peak_tflops.known
    if dtype not in known:
        told = f"{gpu.name} has no peak for it; accepted: {', '.join(known)}"
        raise SpecError(f"--dtype {dtype}: {told}")
    return gpu


def _budget(
    vram: str | None, usable: str | None, headroom: float | None, gpu: Gpu | None
) -> Budget:
    """Return the memory: of all memory a share stays free, of usable memory none.

    Raises:
        SpecError: no option gives the memory, or two do.
    """
    if usable is not None:
        for name, other in {"vram": vram, "headroom": headroom}.items():
            if other is not None:
                raise SpecError(f"--usable: given beside --{name}; accepted: either")
        return Budget(_gib("--usable", usable), 0.0)
    share = HEADROOM if headroom is None else headroom
    if vram is not None:
        return Budget(_gib("--vram", vram), share)
    if gpu is None:
        raise SpecError(
            "--gpu: missing; expected --gpu NAME, --vram 40GiB or --usable 38GiB"
        )
    return Budget(gpu.memory_gib, share)


def _gib(option: str, text: str) -> float:
    from pydantic import TypeAdapter, ValidationError

    from meshwright.reading.document import shown
    from meshwright.spec.units import GiB

    try:
        return float(TypeAdapter(GiB).validate_python(text))
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise SpecError(f"{option} {shown(text)}: {reason}") from None


Kind = Literal[
    "spec", "topology", "model", "gpu", "sweep", "runs", "profile", "prices", "result"
]
"""Kinds of files."""


def schema(
    kind: Kind | None = None, output: Path | None = None, folder: Path | None = None
) -> None:
    """Print the JSON Schema of a kind of file."""
    if (kind is None) == (folder is None) or (folder and output):
        raise SpecError("schema: expected KIND, perhaps with -o, or --all FOLDER")
    from meshwright.api.file_schemas import schema_text

    if kind is not None:
        write(schema_text(kind), output)
    if folder is not None:
        for each in get_args(Kind):
            write(schema_text(each), folder / f"{each}.json", "--all")


LOCAL = "127.0.0.1"


def ui(host: str = LOCAL, port: int = 8321, workers: int = 2, queue: int = 64) -> None:
    """Serve a page on which to try models, clusters and limits."""
    try:
        from meshwright.ui.app import Settings, serve
    except ModuleNotFoundError as error:
        raise _missing("ui", error) from error
    if host != LOCAL:
        typer.echo("note: whoever reaches this address can ask for solves", err=True)
    serve(Settings(host, workers, queue), port)


def mcp(
    http: int | None = None,
    root: Path | None = None,
    workers: int = 1,
    skill: bool = False,
) -> None:
    """Serve the commands as tools of an agent (MCP)."""
    if skill:
        from meshwright import catalog

        typer.echo(str(catalog.folder("skills") / "meshwright" / "SKILL.md"))
        return
    try:
        from meshwright.agents.server import Settings, serve_http, serve_stdio
    except ModuleNotFoundError as error:
        raise _missing("mcp", error) from error
    settings = Settings(None if root is None else _folder(root), workers)
    if http is None:
        serve_stdio(settings)
    else:
        serve_http(settings, http)


def _folder(root: Path) -> Path:
    """Return the real path of a folder.

    Raises:
        SpecError: there is no such folder.
    """
    real = os.path.realpath(root)
    if not os.path.isdir(real):
        raise SpecError(f"--root {printable(str(root))}: no such folder")
    return Path(real)


NEEDED = {
    "ui": ("starlette", "uvicorn", "anyio"),
    "mcp": ("mcp", "mcp_types", "starlette", "uvicorn", "anyio"),
}
"""By extra, the libraries that it brings."""


def _missing(extra: str, error: ModuleNotFoundError) -> Exception:
    """Return the error that says what to install; other errors as they are."""
    if error.name not in NEEDED[extra]:
        return error
    told = f"needs the extra [{extra}]; pip install 'meshwright[{extra}]'"
    return SpecError(f"{extra}: {told} ({error.name} is missing)")
