"""`meshwright explain`: why, and what would mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.exit_codes import FOUND, NONE_FITS, OF_STATUS, UNDECIDED
from meshwright.cli.interrupts import interruptible
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
    from meshwright.solver.options import Options
    from meshwright.spec.pins import Pins
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec


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
    with interruptible() as interrupt:
        loaded, pins = _loaded(spec, plan)
        from meshwright.cli.progress import Progress
        from meshwright.cost.profile import load_profile
        from meshwright.solver.options import Options

        with Progress() as progress:
            progress.say("solving what is asked, and what is near it")
            options = Options(
                profile=load_profile(profile),
                on_progress=progress.say,
                interrupt=interrupt,
            )
            text, code = _answer(loaded, pins, options, output_format, collectives)
        write(text, output)
    if interrupt.is_asked:
        tell(["stopped by Ctrl-C; what was not worked out is left out"])
    raise typer.Exit(UNDECIDED if interrupt.is_asked else code)


def _loaded(name: str, plan: str | None) -> tuple[Spec | ServingSpec, Pins | None]:
    from meshwright.loading.load import load_question
    from meshwright.loading.plan_text import read_plan

    notes: list[str] = []
    loaded = load_question(name, notes=notes)
    pins = read_plan(plan) if plan is not None else None
    tell(notes)
    return loaded, pins


def _answer(
    spec: Spec | ServingSpec,
    plan: Pins | None,
    options: Options,
    output_format: Format,
    has_ledger: bool,
) -> tuple[str, int]:
    """Return what to print and the exit code."""
    from meshwright.spec.serving import ServingSpec

    if isinstance(spec, ServingSpec):
        return _served(spec, plan, options, output_format)
    from meshwright.explanations.collectives import with_ledger
    from meshwright.explanations.explain import Explainer
    from meshwright.report.explain import explain_sections

    explainer = Explainer(options)
    told = explainer.plan(spec, plan) if plan else explainer.spec(spec)
    told = with_ledger(spec, told, options.profile) if has_ledger else told
    text = formatted(
        output_format,
        lambda: explain_sections(told),
        lambda: told.model_dump(mode="json"),
    )
    return text, OF_STATUS.get(told.status, FOUND if told.fits else NONE_FITS)


def _served(
    spec: ServingSpec, plan: Pins | None, options: Options, output_format: Format
) -> tuple[str, int]:
    from dataclasses import replace

    from meshwright.report.serving_explain import explanation_sections
    from meshwright.serving.explain import explain_serving

    told = explain_serving(spec, plan, replace(options, is_by_kind=plan is None))
    text = formatted(
        output_format,
        lambda: explanation_sections(told),
        lambda: told.model_dump(mode="json"),
    )
    return text, FOUND if told.fits else NONE_FITS


def _rules(framework: str | None, output_format: Format) -> str:
    from meshwright.plans.rule import ALL
    from meshwright.report.rules import rule_data, rule_sections
    from meshwright.rules.legality import rules_of

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
