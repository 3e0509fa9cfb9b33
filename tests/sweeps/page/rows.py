"""Rows for the page of a search: solved, too large, failed, and full of HTML."""

from __future__ import annotations

import functools

import meshwright as mw
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.sweeps.cases import Row

MODELS = ("gpt-1.3b", "gpt2-xl", "llama3-8b")
BOXES = ("2xh100-nvlink", "2xa100-pcie", "2x3090-nvlink", "2x4090-pcie")

HOSTILE = (
    "</script><script>window.hacked = 1</script><b>bold</b>",
    "<img src=x onerror='window.hacked = 1'>",
    "--><b>bold</b> & $data \"quoted\" 'so' %{x} \u2028 <!--<script>",
    "<a href='https://example.org/'>link</a><svg/onload=window.hacked=1>",
)
"""What a page must show as it is."""

SEQ_LEN = 2_048
SEQUENCES = 64


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return twelve questions about two GPUs, six with two stages, and bad cases."""
    solved = [_solved(model, box, "") for model in MODELS for box in BOXES]
    staged = [
        _solved(model, box, "pp=2")
        for model in ("gpt-1.3b", "gpt2-xl")
        for box in BOXES[:3]
    ]
    return (*solved, *staged, *_hostile())


def planned() -> list[int]:
    """Return the places of rows with a plan."""
    return [i for i, row in enumerate(rows()) if row.plan]


def many(count: int) -> list[Row]:
    """Return so many rows, each with its own step time."""
    known = rows()
    return [
        known[i % len(known)].model_copy(
            update={
                "key": f"key-{i}",
                "name": f"case {i}",
                "axes": {"model": f"model-{i % 7}", "count": 2 ** (i % 13)},
                "step_s": 1 + (i * 7_919 % count) / count,
            }
        )
        for i in range(count)
    ]


def _solved(model: str, box: str, pin: str) -> Row:
    spec = mw.load(f"{model}-{box}", mw.Spec, pins=[pin] if pin else [])
    outcome = solve(spec)
    found = {
        "key": f"{model}-{box}-{pin}",
        "name": f"{model} on {box} {pin}".strip(),
        "axes": {"model": model, "cluster": box, "pinned": bool(pin)},
        "status": outcome.status,
    }
    answer = _plan_fields(outcome) if outcome.best else _miss_fields(outcome)
    return Row.model_validate(found | answer)


def _plan_fields(outcome: Outcome) -> dict[str, object]:
    best = outcome.best
    assert best is not None
    fullest = max(best.stages, key=lambda stage: stage.total_gib)
    per_gpu = best.tokens_per_s_per_gpu
    return {
        "gpus": outcome.gpus,
        "step_s": best.step_s,
        "tokens_per_s": per_gpu * outcome.gpus,
        "tokens_per_s_per_gpu": per_gpu,
        "mfu": best.mfu,
        "peak_gib": fullest.total_gib,
        "headroom_gib": fullest.usable_gib - fullest.total_gib,
        "plan": best.plan,
        "time_parts": best.time_parts,
        "memory": fullest,
        "certificate": outcome.certificate,
    }


def _miss_fields(outcome: Outcome) -> dict[str, object]:
    miss = outcome.near_miss
    assert miss is not None
    return {
        "conflict": tuple(rule.rule for rule in miss.broken_rules),
        "sentence": miss.broken_rules[0].sentence,
    }


def _hostile() -> list[Row]:
    """Return rows that carry HTML in each of their texts, one of them with a plan."""
    good = _solved("gpt2-xl", BOXES[0], "")
    axes = {"model": HOSTILE[2], "cluster": HOSTILE[3], "pinned": None, HOSTILE[1]: 1}
    base = {"axes": axes, "gpus": None}
    found = {"key": "h0", "name": HOSTILE[0], "axes": axes, "peak_gib": 1.0}
    return [
        good.model_copy(update=found),
        Row(key="h1", name=HOSTILE[1], status="failed", error=HOSTILE[0], **base),
        Row(key="h2", name=HOSTILE[2], status="infeasible", conflict=(HOSTILE[1],),
            sentence=HOSTILE[3], **base),
    ]  # fmt: skip
