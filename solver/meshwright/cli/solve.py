"""`meshwright solve`, `explain` and `compare`: the best plan, and why not another."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import FOUND, NONE_FITS, OF_STATUS, UNDECIDED
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
    interruptible,
    show,
    tell,
    write,
    write_bytes,
    write_report,
    write_trace,
)
from meshwright.errors import SpecError

if TYPE_CHECKING:
    from meshwright.deadline import Interrupt
    from meshwright.plans.plan import Plan
    from meshwright.results.explanation import Explanation
    from meshwright.results.outcome import Outcome
    from meshwright.results.serving import ServingExplanation, ServingOutcome
    from meshwright.spec.open_spec import OpenSpec
    from meshwright.spec.plan_fields import Pins
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec


def solve(
    spec: str | None = None,
    asked: Words = UNASKED,
    save: Path | None = None,
    pin: list[str] | None = None,
    top: int = 1,
    fastest: bool = False,
    near: str = "0%",
    by_kind: bool | None = None,
    ideal: bool = False,
    show_model: bool = False,
    time_limit: float | None = None,
    profile: str = DEFAULT_PROFILE,
    seed: int = 0,
    workers: int = 1,
    ranks: Path | None = None,
    export: Path | None = None,
    certificate: Path | None = None,
    report: Path | None = None,
    trace: Path | None = None,
    verbose: bool = False,
    output_format: Format = "table",
    output: Path | None = None,
) -> None:
    """Find the plan to run and the fastest plan that fits, with a proof."""
    with interruptible() as interrupt:
        loaded = load_asked(spec, asked, pin, save)
        from meshwright.api.options import (
            fixed_spec,
            refuse_beside_inference,
            refuse_beside_open,
        )
        from meshwright.api.solve import solve as solve_spec
        from meshwright.cli.output import Progress

        is_fitted = profile != DEFAULT_PROFILE
        given = {"--top": top > 1, "--ranks": ranks is not None, "--profile": is_fitted}
        given |= {"--ideal": ideal, "--fastest": fastest, "--near": near != "0%"}
        given["--show-model"] = show_model
        given |= {"--export": export is not None, "--trace": trace is not None}
        refuse_beside_inference(loaded, given)
        refuse_beside_open(loaded, {"--ideal": ideal})
        if certificate is not None:
            from meshwright.certificates.certificate import refuse_uncertified

            refuse_uncertified(loaded)
        with Progress() as progress:
            outcome = solve_spec(
                loaded,
                time_limit_s=time_limit,
                seed=seed,
                workers=workers,
                top=top,
                fastest=fastest,
                near=_share(near),
                by_kind=by_kind,
                framework_limits=ideal,
                show_model=show_model,
                profile=profile,
                on_progress=progress.say,
                interrupt=interrupt,
            )
            typed = ""
            if not pin and save is None:
                typed = asked_again(spec, asked, profile=profile)
            text = answered(output_format, outcome, typed, verbose)
        write(text, output)
        has_plan = outcome.best is not None
        resolved = fixed_spec(loaded, outcome) if has_plan else loaded
        for option, folder in (("--ranks", ranks), ("--export", export)):
            if folder is not None and not has_plan:
                tell([f"{option}: nothing is written: there is no whole plan"])
        if ranks is not None:
            _write_ranks(outcome, ranks)
        if export is not None and has_plan:
            _export(resolved, outcome, export)
        if certificate is not None:
            _certify(loaded, outcome, profile, certificate)
        write_report(resolved, outcome, profile, report)
        if trace is not None:
            write_trace(resolved, _plan(outcome), profile, trace)
    raise typer.Exit(_exit_code(outcome, interrupt))


def _share(near: str) -> float:
    """Return the share in the text of `--near`.

    Raises:
        SpecError: the text is no share.
    """
    from meshwright.errors import SpecError
    from meshwright.escape import printable
    from meshwright.spec.goals import to_share

    share = to_share(near)
    if share is None:
        raise SpecError(f"--near {printable(near)}: expected a share, such as 2%")
    return share


def _exit_code(outcome: Outcome | ServingOutcome, interrupt: Interrupt) -> int:
    """Return the exit code; the best plan so far leaves the fastest undecided."""
    if interrupt.is_asked:
        tell(["stopped by Ctrl-C"])
        return UNDECIDED
    if outcome.status == "feasible" and outcome.is_stopped:
        return UNDECIDED
    return OF_STATUS[outcome.status]


def _plan(outcome: Outcome | ServingOutcome) -> Plan | None:
    from meshwright.results.outcome import Outcome

    if not isinstance(outcome, Outcome) or outcome.best is None:
        return None
    return outcome.best.plan


def _certify(
    spec: Spec | ServingSpec | OpenSpec,
    outcome: Outcome | ServingOutcome,
    profile: str,
    path: Path,
) -> None:
    from meshwright.api.solve import certificate

    if outcome.status in ("feasible", "unknown"):
        tell(["--certificate: nothing is written: the answer is not proven"])
        return
    write_bytes(certificate(spec, outcome, profile=profile), path, "--certificate")


def _write_ranks(outcome: Outcome | ServingOutcome, folder: Path) -> None:
    from meshwright.plans.ranks import FILES, rank_map
    from meshwright.results.outcome import Outcome

    if not isinstance(outcome, Outcome):
        return
    if outcome.best is None or outcome.cluster is None:
        return
    ranks = rank_map(outcome.cluster, outcome.best.plan)
    for name, content in FILES.items():
        write(content(ranks), folder / name, "--ranks")


def _export(
    spec: Spec | ServingSpec | OpenSpec, outcome: Outcome | ServingOutcome, to: Path
) -> None:
    from meshwright.api.files import export
    from meshwright.cli.files import write_files

    write_files(export(spec, outcome), to, "--export")


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
        from meshwright.cli.output import Progress

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
            typed = asked_again(spec, asked, plan=plan, profile=profile)
            text = answered(output_format, told, typed, verbose)
        write(text, output)
        explained = fixed_spec(loaded, told) if told.fits else loaded
        write_report(explained, told, profile, report)
        if trace is not None:
            write_trace(explained, _judged_plan(told), profile, trace)
    if interrupt.is_asked:
        tell(["stopped by Ctrl-C; what was not worked out is left out"])
    raise typer.Exit(UNDECIDED if interrupt.is_asked else _explained_code(told))


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


def _judged_plan(told: Explanation | ServingExplanation) -> Plan | None:
    """Return the plan that is explained, or the one that comes closest to fitting."""
    from meshwright.results.explanation import Explanation

    if not isinstance(told, Explanation):
        return None
    return told.plan.plan if told.plan else told.nearest


def _explained_code(told: Explanation | ServingExplanation) -> int:
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
    from meshwright.cli.output import Progress
    from meshwright.report.compare import compare_sections

    with Progress() as progress:
        found = compare_plans(
            loaded, plans, vary=chosen, profile=profile, on_progress=progress.say
        )
    show(partial(compare_sections, found), found.to_dict, output_format, output)
    write_report(loaded, found, profile, report)
    raise typer.Exit(FOUND if found.fits else NONE_FITS)
