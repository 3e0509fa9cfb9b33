"""`meshwright compare`: plans side by side, and where their order turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.exit_codes import FOUND, NONE_FITS
from meshwright.cli.options import (
    Format,
    FormatOption,
    OutputOption,
    ProfileOption,
    check_writable,
    formatted,
    tell,
    write,
)

if TYPE_CHECKING:
    from meshwright.explanations.compare import NamedPins
    from meshwright.loading.vary import Varied
    from meshwright.results.comparison import Comparison
    from meshwright.solver.options import Options
    from meshwright.spec.spec import Spec

PAIR = 2
"""GPUs whose kinds are told in full, with what decides between them."""

NO_LEVEL = "No level joins the two GPUs; --vary takes the path of another number."


def compare(
    spec: Annotated[str, typer.Argument(help="A YAML file, or a bundled spec's name.")],
    plan: Annotated[
        list[str] | None,
        typer.Option(
            help="A plan, as for explain; repeatable. Without: the best of each kind, "
            "in full on two GPUs."
        ),
    ] = None,
    vary: Annotated[
        str | None,
        typer.Option(
            help="Find where the order turns: topology.levels[0].gb_s=8:900. On two "
            "GPUs without plans that is their link."
        ),
    ] = None,
    profile: ProfileOption = DEFAULT_PROFILE,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Put plans side by side, part by part."""
    check_writable(output)
    from meshwright.cli.progress import Progress
    from meshwright.cost.profile import load_profile
    from meshwright.loading.load import load_spec
    from meshwright.loading.plan_text import read_plan
    from meshwright.report.compare import compare_sections
    from meshwright.solver.options import Options

    notes: list[str] = []
    loaded = load_spec(spec, notes=notes)
    plans = [(own, read_plan(own)) for own in plan or []]
    varied = _varied(spec, loaded, vary, bool(plans))
    tell(notes)
    options = Options(profile=load_profile(profile))
    with Progress() as progress:
        progress.say("solving each plan")
        found = _found(loaded, plans, options)
        if varied and found.fits:
            progress.say(f"varying {varied.name}")
            found = _turned(loaded, found, plans, varied, options)
        elif varied is None and not plans and loaded.cluster.gpus == PAIR:
            found = found.model_copy(update={"note": NO_LEVEL})
    text = formatted(
        output_format,
        lambda: compare_sections(found),
        lambda: found.model_dump(mode="json"),
    )
    write(text, output)
    raise typer.Exit(FOUND if found.fits else NONE_FITS)


def _varied(name: str, spec: Spec, text: str | None, has_plans: bool) -> Varied | None:
    """Return what to vary: what is asked for, or the link of two GPUs."""
    from meshwright.loading.vary import innermost_link, vary

    if text is None and not has_plans and spec.cluster.gpus == PAIR:
        text = innermost_link(spec)
    return vary(name, text) if text is not None else None


def _found(spec: Spec, plans: NamedPins, options: Options) -> Comparison:
    """Return the plans, or the best of each kind, those of two GPUs in full."""
    from dataclasses import replace

    from meshwright.explanations.compare import compare as compare_plans
    from meshwright.explanations.compare import compare_kinds, in_full
    from meshwright.solver.pipeline import solve

    if plans:
        found = compare_plans(spec, plans, lambda own: solve(own, options))
    else:
        found = compare_kinds(spec, solve(spec, replace(options, is_by_kind=True)))
    is_full = plans or spec.cluster.gpus == PAIR
    return in_full(spec, found, options.profile) if is_full else found


def _turned(
    spec: Spec, found: Comparison, plans: NamedPins, varied: Varied, options: Options
) -> Comparison:
    """Return a comparison with the turns of its plans, or of their kinds."""
    from meshwright.explanations.compare import kind_pins
    from meshwright.explanations.head_to_head import with_crossovers
    from meshwright.solver.pipeline import solve

    kinds = [own.name for own in found.plans if own.plan]
    named = plans or [(kind, kind_pins(spec, kind)) for kind in kinds]
    return with_crossovers(found, varied, named, lambda own: solve(own, options))
