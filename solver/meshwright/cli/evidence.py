"""`meshwright evidence`: predictions against measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.options import (
    Format,
    FormatOption,
    OutputOption,
    ProfileOption,
    check_plot,
    check_writable,
    formatted,
    make_folder_of,
    write,
)


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
    output_format: FormatOption = Format.table,
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
            make_folder_of(plot, "--plot")
            save_plot(board.priced, plot)
    text = formatted(
        output_format, lambda: evidence_sections(board), lambda: evidence_data(board)
    )
    write(text, output)
