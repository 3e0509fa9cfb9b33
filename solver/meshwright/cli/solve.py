"""`meshwright solve`: the fastest plan that fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import (
    EXIT_CODES,
    MEASURED,
    Format,
    FormatOption,
    OutputOption,
    ProfileOption,
    check_writable,
    tell,
    write,
)
from meshwright.errors import SpecError

if TYPE_CHECKING:
    from meshwright.plan import Outcome

MOST_GPUS_BY_KIND = 8
"""Clusters up to this size show the best plan of every kind unasked."""


def solve(
    spec: Annotated[str, typer.Argument(help="A YAML file, or a bundled spec's name.")],
    pin: Annotated[
        list[str] | None,
        typer.Option(help="Fix a plan field, such as tp=4 or 'pp={max: 8}'."),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, max=100, help="Show the K best plans.")
    ] = 1,
    by_kind: Annotated[
        bool | None,
        typer.Option(
            "--by-kind/--no-by-kind",
            help="Prove the best plan of each kind: TP, PP, DP/ZeRO and mixtures. "
            "Default: up to 8 GPUs.",
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.0, help="Stop after so many seconds with bound and gap."),
    ] = None,
    profile: ProfileOption = MEASURED,
    seed: Annotated[int, typer.Option(min=0, help="Seed of CP-SAT.")] = 0,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Threads of CP-SAT; same answer for any.")
    ] = 1,
    ranks: Annotated[
        Path | None,
        typer.Option(
            help="Write here where each rank runs: ranks.csv, rankfile, hostfile, "
            "visible_devices. A folder."
        ),
    ] = None,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Find the fastest plan that fits, and prove it."""
    from meshwright.spec.load import load_spec

    check_writable(output)
    if ranks is not None and not ranks.is_dir():
        raise SpecError(f"--ranks {ranks}: no such folder")
    notes: list[str] = []
    loaded = load_spec(spec, pin, notes)
    tell(notes)
    is_small = loaded.cluster.gpus <= MOST_GPUS_BY_KIND

    from meshwright.options import Options
    from meshwright.profile import load_profile
    from meshwright.progress import Progress
    from meshwright.solve import solve as solve_spec

    with Progress() as progress:
        options = Options(
            time_limit_s=float("inf") if time_limit is None else time_limit,
            seed=seed,
            workers=workers,
            top=top,
            is_by_kind=is_small if by_kind is None else by_kind,
            profile=load_profile(profile),
            on_progress=progress.say,
        )
        outcome = solve_spec(loaded, options)
    from meshwright.report import render

    text = {
        Format.table: render.as_text,
        Format.markdown: render.as_markdown,
        Format.json: render.as_json,
    }[output_format](loaded.title, outcome)
    write(text, output)
    if ranks is not None:
        _write_ranks(outcome, ranks)
    raise typer.Exit(EXIT_CODES[outcome.status])


def _write_ranks(outcome: Outcome, folder: Path) -> None:
    from meshwright.ranks import FILES, rank_map

    if outcome.best is None or outcome.cluster is None:
        return
    ranks = rank_map(outcome.cluster, outcome.best.plan)
    for name, content in FILES.items():
        write(content(ranks), folder / name, "--ranks")
