"""`meshwright solve`: the best plan that fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import OF_STATUS, UNDECIDED
from meshwright.cli.options import (
    UNASKED,
    Words,
    asked_again,
    load_asked,
)
from meshwright.cli.output import (
    Format,
    answered,
    tell,
    write,
    write_bytes,
    write_report,
    write_trace,
)
from meshwright.cli.progress import interruptible

if TYPE_CHECKING:
    from meshwright.deadline import Interrupt
    from meshwright.plans.plan import Plan
    from meshwright.results.outcome import Outcome
    from meshwright.results.serving import ServingOutcome
    from meshwright.spec.open_spec import OpenSpec
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
        from meshwright.api.solve import check_certifiable
        from meshwright.api.solve import solve as solve_spec
        from meshwright.cli.progress import Progress

        is_fitted = profile != DEFAULT_PROFILE
        given = {"--top": top > 1, "--ranks": ranks is not None, "--profile": is_fitted}
        given |= {"--ideal": ideal, "--fastest": fastest, "--near": near != "0%"}
        given["--show-model"] = show_model
        given |= {"--export": export is not None, "--trace": trace is not None}
        refuse_beside_inference(loaded, given)
        refuse_beside_open(loaded, {"--ideal": ideal})
        if certificate is not None:
            check_certifiable(loaded)
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
            typed = asked_again(spec, asked) if not pin and save is None else ""
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
    spec: Spec | ServingSpec | OpenSpec,
    outcome: Outcome | ServingOutcome,
    to: Path,
) -> None:
    from meshwright.api.files import export
    from meshwright.cli.files import write_files

    write_files(export(spec, outcome), to, "--export")
