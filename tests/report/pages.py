"""Answers, and the pages that are written of them."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import meshwright as mw
from meshwright import html_report

PIPELINE = "gpt-1.3b-2xh100-nvlink"
POD = "llama3-405b-16384xh100"
POD_PINS = (
    *("tp=4", "pp=16", "vpp=4", "cp=8", "dp_replicate=2", "dp_shard=16"),
    *("micro_batch=1", "zero=1", "recompute=none", "offload=none"),
)


@cache
def page(name: str) -> str:
    """Return the page of an answer that is told apart by its name."""
    kind, _, what = name.partition(" ")
    if kind == "pod":
        spec = mw.load(POD, mw.Spec, pins=list(POD_PINS))
        return html_report(spec, mw.solve(spec))
    if kind == "pipeline":
        spec = mw.load(PIPELINE, mw.Spec, pins=["pp=2"])
        return html_report(spec, mw.solve(spec, top=3))
    if kind == "simulate":
        spec = mw.load(PIPELINE, mw.Spec)
        told = mw.simulate(spec, "pp=2", jitter=0.1, samples=200)
        return html_report(spec, told)
    if kind == "compare":
        spec = mw.load("llama2-13b-8xa100", mw.Spec)
        plans = ["tp=8", "tp=4,pp=2", "zero=3,tp=1,pp=1"]
        return html_report(spec, mw.compare(spec, plans))
    spec = mw.load(what, mw.Spec)
    return html_report(spec, mw.explain(spec) if kind == "explain" else mw.solve(spec))


SOLVED = "solve gpt-1.3b-2xh100-nvlink"
MIXED = "solve gpt2-xl-2x3090-2x4090"
RINGS = "solve gpt-1.3b-dgx-1v"
EXPLAINED = "explain gpt-1.3b-2xh100-nvlink"
NONE_FITS = "explain llama3-8b-2x4090-pcie"
COMPARED = "compare"
SIMULATED = "simulate"
SPECS = (SOLVED, MIXED, RINGS, EXPLAINED, NONE_FITS)
PAGES = (*SPECS, COMPARED, SIMULATED, "pipeline", "pod")


def written(name: str, folder: Path) -> Path:
    """Write the page of an answer."""
    file = folder / "report.html"
    file.write_text(page(name), encoding="utf-8")
    return file


def data_of(text: str) -> dict[str, Any]:
    """Return the data of a page."""
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data
