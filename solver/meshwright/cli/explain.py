"""`meshwright explain` and `meshwright compare`: why a plan, and which of several."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import FOUND, NONE_FITS, UNDECIDED
from meshwright.cli.options import (
    UNASKED,
    Words,
    asked_again,
    load_asked,
    load_training,
)
from meshwright.cli.output import (
    Format,
    answered,
    command_words,
    show,
    tell,
    write,
    write_report,
    write_trace,
)
from meshwright.cli.progress import interruptible
from meshwright.errors import SpecError

if TYPE_CHECKING:
    from meshwright.plans.plan import Plan
    from meshwright.results.explanation import Explanation
    from meshwright.results.serving import ServingExplanation
    from meshwright.spec.open_spec import OpenSpec
    from meshwright.spec.plan_fields import Pins
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec


def explain(
    spec: str | None = None,
    asked: Words = UNASKED,
    plan: str | None = None,
    rules: bool = False,
    collectives: bool = False,
    profile: str = DEFAULT_PROFILE,
    report: Path | None = None,
    trace: Path | None = None,
    verbose: bool = False,
    output_format: Format = "table",
    output: Path | None = None,
) -> None:
    """Say why a plan does not fit, what would mend it, and at what price."""
    if rules:
        _show_rules(spec, output_format, output)
        return
    with interruptible() as interrupt:
        loaded, pins = _loaded(spec, asked, plan)
        from meshwright.api.explain import explain as explain_spec
        from meshwright.api.options import (
            fixed_spec,
            refuse_beside_inference,
            refuse_beside_open,
        )
        from meshwright.cli.progress import Progress

        refuse_beside_inference(loaded, {"--trace": trace is not None})
        refuse_beside_open(loaded, {"--collectives": collectives})
        with Progress() as progress:
            progress.say("solving what is asked, and what is near it")
            told = explain_spec(
                loaded,
                pins,
                collectives=collectives,
                profile=profile,
                on_progress=progress.say,
                interrupt=interrupt,
            )
            typed = asked_again(spec, asked)
            if typed and plan is not None:
                typed += f" {command_words('--plan', plan)}"
            text = answered(output_format, told, typed, verbose)
        write(text, output)
        explained = fixed_spec(loaded, told) if told.fits else loaded
        write_report(explained, told, profile, report)
        if trace is not None:
            write_trace(explained, _plan(told), profile, trace)
    if interrupt.is_asked:
        tell(["stopped by Ctrl-C; what was not worked out is left out"])
    raise typer.Exit(UNDECIDED if interrupt.is_asked else _exit_code(told))


def _loaded(
    name: str | None, asked: Words, plan: str | None
) -> tuple[Spec | ServingSpec | OpenSpec, Pins | None]:
    notes: list[str] = []
    loaded = load_asked(name, asked, notes=notes, plan=plan)
    if plan is None:
        tell(notes)
        return loaded, None
    # Not before: errors in the spec come without the libraries that plans need.
    from meshwright.api.options import read_asked, refuse_beside_open
    from meshwright.spec.open_spec import OpenSpec

    refuse_beside_open(loaded, {"--plan": True})
    assert not isinstance(loaded, OpenSpec), "refused"
    pins = read_asked(plan, loaded, notes)
    tell(notes)
    return loaded, pins


def _plan(told: Explanation | ServingExplanation) -> Plan | None:
    """Return the plan that is explained, or the one that comes closest to fitting."""
    from meshwright.results.explanation import Explanation

    if not isinstance(told, Explanation):
        return None
    return told.plan.plan if told.plan else told.nearest


def _exit_code(told: Explanation | ServingExplanation) -> int:
    from meshwright.results.explanation import Explanation

    if isinstance(told, Explanation) and told.status == "unknown":
        return UNDECIDED
    return FOUND if told.fits else NONE_FITS


def _show_rules(
    framework: str | None, output_format: Format, output: Path | None
) -> None:
    from meshwright.report.explain import rule_data, rule_sections
    from meshwright.rules.legality import rules_of
    from meshwright.spec.spec import framework_names

    if framework is not None and framework not in framework_names():
        accepted = ", ".join(framework_names())
        raise SpecError(
            f"--rules: {framework!r}: no such framework; accepted: {accepted}"
        )
    rules = rules_of(framework)
    sections, data = partial(rule_sections, rules), partial(rule_data, rules)
    show(sections, data, output_format, output)


def compare(
    spec: str | None = None,
    asked: Words = UNASKED,
    plan: list[str] | None = None,
    vary: str | None = None,
    profile: str = DEFAULT_PROFILE,
    report: Path | None = None,
    output_format: Format = "table",
    output: Path | None = None,
) -> None:
    """Put plans side by side, part by part."""
    notes: list[str] = []
    first = plan[0] if plan else None
    loaded, source = load_training(spec, asked, notes, plan=first)

    from meshwright.api.options import read_asked
    from meshwright.loading.vary import varied

    plans = [(text, read_asked(text, loaded, notes)) for text in plan or []]
    chosen = varied(source, loaded, vary, bool(plans))
    tell(notes)
    from meshwright.api.explain import compare as compare_plans
    from meshwright.cli.progress import Progress
    from meshwright.report.compare import compare_sections

    with Progress() as progress:
        found = compare_plans(
            loaded, plans, vary=chosen, profile=profile, on_progress=progress.say
        )
    show(partial(compare_sections, found), found.to_dict, output_format, output)
    write_report(loaded, found, profile, report)
    raise typer.Exit(FOUND if found.fits else NONE_FITS)
