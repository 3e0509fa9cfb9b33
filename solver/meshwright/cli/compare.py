"""`meshwright compare`: plans side by side, and where their order turns."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli.options import (
    MEASURED,
    Format,
    FormatOption,
    OutputOption,
    ProfileOption,
    check_writable,
    formatted,
    tell,
    write,
)


def compare(
    spec: Annotated[str, typer.Argument(help="A YAML file, or a bundled spec's name.")],
    plan: Annotated[
        list[str] | None,
        typer.Option(
            help="A plan, as for explain; repeatable. Without: the best of each kind."
        ),
    ] = None,
    vary: Annotated[
        str | None,
        typer.Option(
            help="Find where the order turns: cluster.topology.levels[0].gb_s=8:900."
        ),
    ] = None,
    profile: ProfileOption = MEASURED,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Put plans side by side, part by part."""
    check_writable(output)
    from meshwright.spec.load import load_spec
    from meshwright.spec.plan_text import read_plan
    from meshwright.spec.vary import vary as read_vary

    notes: list[str] = []
    loaded = load_spec(spec, notes=notes)
    varied = read_vary(spec, vary) if vary else None
    plans = [(own, read_plan(own)) for own in plan or []]
    tell(notes)
    from dataclasses import replace

    from meshwright.explain.compare import compare as compare_plans
    from meshwright.explain.compare import flips, of_kinds
    from meshwright.options import Options
    from meshwright.profile import load_profile
    from meshwright.progress import Progress
    from meshwright.report.compare import compare_sections
    from meshwright.solve import solve

    options = Options(profile=load_profile(profile))
    with Progress() as progress:
        progress.say("solving each plan")
        if not plans:
            plans = of_kinds(solve(loaded, replace(options, is_by_kind=True)))
        found = compare_plans(loaded, plans, lambda own: solve(own, options))
        if varied:
            progress.say(f"varying {varied.name}")
            own = flips(
                varied.at, varied.low, varied.high, plans, lambda s: solve(s, options)
            )
            changed = {"vary": varied.name, "flips": tuple(own)}
            found = found.model_copy(update=changed)
    text = formatted(
        output_format,
        lambda: compare_sections(found),
        lambda: found.model_dump(mode="json"),
    )
    write(text, output)
