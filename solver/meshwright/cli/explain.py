"""`meshwright explain`: why, and what would mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright import DEFAULT_PROFILE
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
from meshwright.errors import SpecError

if TYPE_CHECKING:
    from meshwright.spec.pins import Pins
    from meshwright.spec.serving import ServingSpec

EXIT_NONE_FITS = 1


def explain(
    spec: Annotated[
        str | None,
        typer.Argument(help="A YAML file, or a bundled spec's name; see --rules."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            help="A plan to judge: 'tp=8,pp=2,zero=1', a YAML file of such fields, or "
            "the JSON of an answer. What it leaves open is chosen for it."
        ),
    ] = None,
    rules: Annotated[
        bool,
        typer.Option(
            "--rules", help="Print the rules of frameworks; SPEC names one, or none."
        ),
    ] = False,
    collectives: Annotated[
        bool,
        typer.Option("--collectives", help="Add the ledger of the plan's collectives."),
    ] = False,
    profile: ProfileOption = DEFAULT_PROFILE,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Say why a plan does not fit, what would mend it, and at what price."""
    check_writable(output)
    if rules:
        write(_rules(spec, output_format), output)
        return
    if spec is None:
        raise SpecError("SPEC: missing; expected a YAML file or a bundled spec's name")
    from meshwright.spec.load import load_question
    from meshwright.spec.plan_text import read_plan
    from meshwright.spec.serving import ServingSpec

    notes: list[str] = []
    loaded = load_question(spec, notes=notes)
    pins = read_plan(plan) if plan is not None else None
    tell(notes)
    if isinstance(loaded, ServingSpec):
        text, fits = _served(loaded, pins, output_format)
        write(text, output)
        raise typer.Exit(0 if fits else EXIT_NONE_FITS)
    from meshwright.explain.explain import Explainer
    from meshwright.explain.ledger import with_ledger
    from meshwright.options import Options
    from meshwright.profile import load_profile
    from meshwright.progress import Progress
    from meshwright.report.explain import explain_sections

    with Progress() as progress:
        progress.say("solving what is asked, and what is near it")
        fitted = load_profile(profile)
        explainer = Explainer(Options(profile=fitted, on_progress=progress.say))
        told = explainer.plan(loaded, pins) if pins else explainer.spec(loaded)
        told = with_ledger(loaded, told, fitted) if collectives else told
    text = formatted(
        output_format,
        lambda: explain_sections(told),
        lambda: told.model_dump(mode="json"),
    )
    write(text, output)
    raise typer.Exit(0 if told.fits else EXIT_NONE_FITS)


def _served(
    spec: ServingSpec, plan: Pins | None, output_format: Format
) -> tuple[str, bool]:
    from meshwright.options import Options
    from meshwright.progress import Progress
    from meshwright.report.serving_explain import explanation_sections
    from meshwright.serving.explain import explain_serving

    with Progress() as progress:
        progress.say("solving what is asked, and what is near it")
        told = explain_serving(spec, plan, Options(is_by_kind=plan is None))
    text = formatted(
        output_format,
        lambda: explanation_sections(told),
        lambda: told.model_dump(mode="json"),
    )
    return text, told.fits


def _rules(framework: str | None, output_format: Format) -> str:
    from meshwright.legality import rules_of
    from meshwright.report.rules import rule_data, rule_sections
    from meshwright.rule import ALL

    known = next((own for own in ALL if own == framework), None)
    if framework is not None and known is None:
        accepted = ", ".join(ALL)
        raise SpecError(
            f"--rules: {framework!r}: no such framework; accepted: {accepted}"
        )
    rules = rules_of(known)
    return formatted(
        output_format, lambda: rule_sections(rules), lambda: rule_data(rules)
    )
