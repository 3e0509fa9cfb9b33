"""The rare verbs: simulate, topology, evidence, probe, compare-trace, gemm, schema."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.api.arguments import LARGEST_SEED
from meshwright.cli.errors import FOUND, NONE_FITS
from meshwright.cli.options import (
    FormatOption,
    OutputOption,
    ProfileOption,
    ReportOption,
    SpecArgument,
)
from meshwright.cli.output import (
    check_folder,
    check_plot,
    check_writable,
    folded,
    formatted,
    section_text,
    tell,
    write,
    write_report,
)
from meshwright.errors import SpecError
from meshwright.escape import printable

if TYPE_CHECKING:
    from meshwright.spec.gpu import Gpu


def verify(
    certificate: Annotated[
        Path, typer.Argument(help="A file of `meshwright solve --certificate`.")
    ],
    of: Annotated[
        str | None,
        typer.Option(
            "--spec", help="The spec that it must be about: a file, or a bundled name."
        ),
    ] = None,
    profile: ProfileOption = DEFAULT_PROFILE,
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
    spec: SpecArgument,
    plan: Annotated[
        str | None,
        typer.Option(help="A plan, as for explain. Without: the best one."),
    ] = None,
    jitter: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Standard deviation of a GPU's compute time of a task, as a share. "
            "Default: the spec's run.straggler.jitter, else 0.02.",
        ),
    ] = None,
    slow_gpus: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Share of GPUs that are slow in a step."),
    ] = 0.0,
    slowdown: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=100.0,
            help="How much slower their compute is, as a share. Default: the spec's "
            "run.straggler.slowdown, else 0.1.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, max=100_000, help="Steps to simulate.")
    ] = 1_000,
    days: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=3650.0,
            help="Useful days of the runs with failures, if the spec's run says how "
            "often GPUs fail.",
        ),
    ] = 30.0,
    seed: Annotated[
        int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the random numbers.")
    ] = 0,
    profile: ProfileOption = DEFAULT_PROFILE,
    output_format: FormatOption = "table",
    output: OutputOption = None,
    report: ReportOption = None,
) -> None:
    """Simulate steps of a plan with jitter, slow GPUs and failures."""
    check_writable(output)
    check_writable(report, "--report")
    from meshwright.api.load import load
    from meshwright.spec.spec import Spec

    notes: list[str] = []
    loaded = load(spec, Spec, notes=notes)

    from meshwright.api.options import read_asked

    pins = read_asked(plan, loaded, notes) if plan is not None else None
    tell(notes)
    from meshwright.api.price import NoPlanError
    from meshwright.api.price import simulate as simulate_spec
    from meshwright.cli.progress import Progress
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
    text = formatted(output_format, lambda: simulation_sections(told), told.to_dict)
    write(text, output)


def topology(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="SPEC_OR_TOPOLOGY",
            help="A YAML file of a spec or a topology, or the name of a bundled one.",
        ),
    ],
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the cluster: NAME.png, NAME.html."),
    ] = None,
    output_format: FormatOption = "table",
    output: OutputOption = None,
) -> None:
    """Show a cluster: levels, hosts, what two GPUs reach, what is broken."""
    check_writable(output)
    check_plot(plot)
    from meshwright.loading.load import load_cluster

    notes: list[str] = []
    loaded = load_cluster(cluster, notes)
    tell(notes)

    from meshwright.report.topology import (
        draw_topology,
        topology_data,
        topology_sections,
    )

    text = formatted(
        output_format, lambda: topology_sections(loaded), lambda: topology_data(loaded)
    )
    if plot is not None:
        draw_topology(loaded, plot)
    write(text, output)


def evidence(
    runs: Annotated[Path, typer.Argument(help="Measured runs, YAML or CSV.")],
    weak: Annotated[
        list[str] | None,
        typer.Option(help="A source_id to report apart, in no average; repeatable."),
    ] = None,
    profile: ProfileOption = DEFAULT_PROFILE,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw predicted over measured times: NAME.png, NAME.html."),
    ] = None,
    output_format: FormatOption = "table",
    output: OutputOption = None,
) -> None:
    """Compare predictions with runs that others measured."""
    check_writable(output)
    check_plot(plot)
    from meshwright.cli.progress import Progress
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
    text = formatted(
        output_format, lambda: evidence_sections(board), lambda: evidence_data(board)
    )
    write(text, output)


def probe(
    spec: SpecArgument,
    count: Annotated[
        int, typer.Option("-k", "--count", min=1, max=50, help="How many runs.")
    ] = 5,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the files here. A folder."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Run on so many nodes. Default: all.")
    ] = None,
    profile: ProfileOption = DEFAULT_PROFILE,
) -> None:
    """Pick the short runs that tell most about which plan is best, and what fits."""
    check_folder(output, "--output")
    from meshwright.api.load import load
    from meshwright.api.options import read_profile
    from meshwright.calibration.probe import probes
    from meshwright.calibration.probe_report import probe_files, probe_sections
    from meshwright.cli.progress import Progress
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
    modelled: Annotated[
        Path, typer.Argument(help="The trace that `solve --trace` wrote.")
    ],
    real: Annotated[
        Path,
        typer.Argument(help="One rank's trace of torch.profiler: .json or .json.gz."),
    ],
    stage: Annotated[
        int | None,
        typer.Option(
            min=0, help="The rank's pipeline stage, from 0. Default: the busiest."
        ),
    ] = None,
    output_format: FormatOption = "table",
    output: OutputOption = None,
) -> None:
    """Put the modelled step beside a profiler's trace, phase by phase."""
    check_writable(output)
    from meshwright.report.simulation import trace_sections
    from meshwright.traces.compare import compare_traces

    told = compare_traces(modelled, real, stage=stage)
    text = formatted(output_format, lambda: trace_sections(told), told.to_dict)
    write(text, output)


LARGEST_SIDE = 10_000_000

HEADROOM = 0.03
"""Default share of the memory that stays free."""


class Budget(NamedTuple):
    """The memory for a matmul, and the share of it that stays free."""

    memory_gib: float
    headroom: float


Dtype = Literal["bf16", "fp16", "fp8", "tf32", "fp32"]
"""Precisions of A and W."""


def gemm(
    m: Annotated[int, typer.Argument(min=1, max=LARGEST_SIDE, help="Rows of A and Y.")],
    k: Annotated[
        int, typer.Argument(min=1, max=LARGEST_SIDE, help="Columns of A, rows of W.")
    ],
    n: Annotated[
        int, typer.Argument(min=1, max=LARGEST_SIDE, help="Columns of W and Y.")
    ],
    dtype: Annotated[Dtype, typer.Option(help="Precision of A and W.")] = "bf16",
    gpu: Annotated[
        str | None, typer.Option(help="A bundled GPU, or a YAML file of one.")
    ] = None,
    vram: Annotated[
        str | None,
        typer.Option(help="Memory, such as 40GiB; replaces that of the GPU."),
    ] = None,
    usable: Annotated[
        str | None,
        typer.Option(
            help="What is left of the memory, such as 1GiB, once the CUDA context and "
            "all reserves are taken off; instead of --vram and --headroom."
        ),
    ] = None,
    headroom: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=0.99, help="Share of the memory that stays free; default 0.03."
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=2, max=65_536, help="Split over so many, fit or not."),
    ] = None,
    split_k: Annotated[
        int, typer.Option(min=1, max=1_024, help="Parts of K, added up at the end.")
    ] = 1,
    bias: Annotated[bool, typer.Option("--bias", help="Count a bias.")] = False,
    residual: Annotated[
        bool, typer.Option("--residual", help="Count a residual, shaped as Y.")
    ] = False,
    output_format: FormatOption = "table",
    output: OutputOption = None,
) -> None:
    """Say whether Y = A W fits a GPU, how fast it can be, and how to cut it."""
    check_writable(output)
    chosen_gpu = _gemm_gpu(gpu, dtype) if gpu is not None else None
    budget = _budget(vram, usable, headroom, chosen_gpu)

    from meshwright.economics.gemm import CONTEXT, Matmul, answer
    from meshwright.report.gemm import gemm_sections

    context = CONTEXT if usable is None else 0
    matmul = Matmul(m, k, n, dtype, split_k, bias, residual, context)
    told = answer(matmul, chosen_gpu, budget.memory_gib, budget.headroom, gpus)
    text = formatted(
        output_format,
        lambda: gemm_sections(told),
        lambda: told.model_dump(mode="json"),
    )
    write(text, output)
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
    kind: Annotated[
        Kind | None, typer.Argument(help="The kind of file.", show_default=False)
    ] = None,
    output: OutputOption = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--all",
            help="Write the schema of every kind into this folder, as KIND.json.",
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of a kind of file."""
    if (kind is None) == (folder is None) or (folder and output):
        raise SpecError("schema: expected KIND, perhaps with -o, or --all FOLDER")
    check_writable(output)
    check_folder(folder, "--all")
    from meshwright.api.file_schemas import schema_text

    if kind is not None:
        write(schema_text(kind), output)
    if folder is not None:
        for each in get_args(Kind):
            write(schema_text(each), folder / f"{each}.json", "--all")
