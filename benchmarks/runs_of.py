"""The measured runs that benchmarks fit and judge."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from joblib import Parallel, delayed

from meshwright.cost.profile import Profile
from meshwright.evidence.price import Priced, price_runs
from meshwright.evidence.runs import read_runs

STRONG = Path(__file__).parent / "runs"
"""Runs of sources that count; runs/weak holds those that do not."""

UNFITTED = STRONG / "unfitted"
"""Runs that count, and that no fit sees."""

PART = 100
"""Runs that are priced by one process at a time."""

SINGLE_NODE = "vtrain_single"

TAKEN_FROM = {
    "rate": (
        "deepspeed_examples",
        "fsdp_qlora",
        "optimum_benchmark",
        "qwen_finetune",
        "universal_llm_trainer",
    ),
    "share of memory": ("fms_acceleration", "fms_acceleration_liger"),
}
"""Sources of runs/unfitted from which numbers were read off, for want of others that
have them: rates of attention beside a mask, of hooks of ZeRO-3 and of unpacking on the
host, of the lanes of an old board, and what PyTorch's allocator reserves beyond what is
allocated."""

LAUNCHED_BY = {"automodel": "torchtitan"}
"""Frameworks like which sources launch plans, where the kernels of another one price
their runs better: NeMo AutoModel has FSDP2, PyTorch's pipelines and DTensor, and
Transformer Engine."""


@dataclass(frozen=True)
class Priceable:
    """The runs of a folder: those that are priced, and how many there are."""

    priced: list[Priced]
    rows: dict[str, int]
    """Published runs of each source."""


def all_runs(folder: Path, profile: Profile | None = None) -> Priceable:
    """Return the runs of a folder, priced at a profile if one is given."""
    runs = read_runs(folder)
    parts = [runs[i : i + PART] for i in range(0, len(runs), PART)]
    done = Parallel(n_jobs=-1)(delayed(price_runs)(part, profile) for part in parts)
    priced = [one for found, _ in done for one in found]
    return Priceable(priced, dict(Counter(run.source_id for run in runs)))


def launched_by(one: Priced) -> str:
    """Return the framework that launches plans like that of a run."""
    return LAUNCHED_BY.get(one.run.source_id, one.spec.framework)


def timed(priced: list[Priced]) -> list[Priced]:
    """Return the runs that have a sound step time."""
    return [p for p in priced if p.run.step_s and not p.run.is_contradictory]


def priced_runs(folder: Path) -> list[Priced]:
    """Return the priced runs of a folder that have a sound step time."""
    return timed(all_runs(folder).priced)
