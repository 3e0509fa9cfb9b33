"""Brute force for the simplest plan, and for all plans near the fastest.

It counts techniques, looks at splits and compares decisions with its own loops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.frameworks.base.registry import offered_sets
from meshwright.spec.plan_fields import OFFLOADS, RECOMPUTE_MODES, SELECTIVE
from meshwright.spec.run_before import PLAIN
from meshwright.spec.spec import Spec
from tests.helpers.oracle import NAMES, Splits, every_split

DECISIONS = (*(name for name in NAMES if name != "mesh"), "sequence_parallel")

Key = tuple[int, ...]


@dataclass(frozen=True)
class Everything:
    """Every plan of a spec: skeletons without meshes, simplicity and step times."""

    decisions: list[Key]
    simplicity: list[Key]
    step_s: list[float]
    doubted_s: list[float]
    """The steps with what is doubted of them."""

    @property
    def fastest_s(self) -> float:
        """Return the least step time; infinite without a plan."""
        return min(self.step_s, default=math.inf)

    @property
    def least_doubted_s(self) -> float:
        """Return the least step time with what is doubted of it."""
        return min(self.doubted_s, default=math.inf)

    def simplest(self, most_s: float) -> tuple[Key, float]:
        """Return the simplest of all plans within a doubted step time, and its time."""
        pairs = zip(self.simplicity, self.doubted_s, strict=True)
        return min(pair for pair in pairs if pair[1] <= most_s)

    def near(self, most_s: float) -> set[Key]:
        """Return the decisions of all plans within a step time."""
        pairs = zip(self.decisions, self.step_s, strict=True)
        return {key for key, step_s in pairs if step_s <= most_s}

    def fastest_with(self, name: str) -> dict[int, float]:
        """Return the step time of the fastest plan with each value of a decision."""
        index, fastest = DECISIONS.index(name), dict[int, float]()
        for key, step_s in zip(self.decisions, self.step_s, strict=True):
            fastest[key[index]] = min(step_s, fastest.get(key[index], math.inf))
        return fastest


def everything(spec: Spec, most_s: float = math.inf) -> Everything:
    """Return every plan of a spec on a tree that takes no longer than `most_s`.

    Plans are left out that recompute modules which free no memory: a framework takes
    them, but nobody runs them, and Meshwright does not offer them.
    """
    result, offered = Everything([], [], [], []), {*offered_sets(spec)}
    share = spec.run_before.percent / 100
    for one in every_split(spec, most_s):
        is_selective = one.rows.recompute[0] == SELECTIVE
        if is_selective and int(one.rows.recompute_modules[0]) not in offered:
            continue
        decisions = tuple(int(getattr(one.rows, name)[0]) for name in DECISIONS)
        for index in range(len(one.step_s)):
            result.decisions.append(decisions)
            result.simplicity.append(simplicity(spec, one, index))
            step_s = float(one.step_s[index])
            row = dict(zip(DECISIONS, decisions, strict=True))
            result.step_s.append(step_s)
            result.doubted_s.append(step_s * (1 + share * beyond_runs(spec, row)))
    return result


def beyond_runs(spec: Spec, row: Mapping[str, int]) -> int:
    """Return in how many decisions a plan differs from the nearest that was run."""
    ours = words(spec, row)
    known = [
        {word for word in text.split(" + ") if word != PLAIN}
        for text in spec.run_before.combinations
    ]
    nearest = min((beyond(ours, other) for other in known), default=0)
    return nearest + is_unlike_the_very_job(spec, row)


def is_unlike_the_very_job(spec: Spec, row: Mapping[str, int]) -> int:
    """Return 1 if a maker has other degrees or another ZeRO stage for this very job."""
    published, cluster = spec.run_before.published, spec.cluster
    if published is None or not (
        cluster.gpus <= 2 * published.gpus <= 4 * cluster.gpus
    ):
        return 0
    ours = spec.training.global_batch * published.gpus
    theirs = published.global_batch * cluster.gpus
    if ours > 2 * theirs or theirs > 2 * ours:
        return 0
    for name in {"tp", "pp", "cp", "ep", "zero"} & published.plan.keys():
        if (
            row[name] != published.plan[name]
            and max(row[name], published.plan[name]) > 1
        ):
            return 1
    return 0


def beyond(ours: set[str], other: set[str]) -> int:
    """Return how many decisions of a plan a combination does not have.

    Of degrees it must have the same, of all else as much.
    """
    degrees = {kind(word) for word in ours ^ other} & {"tp", "pp", "cp", "ep"}
    more = {word for word in ours - other if kind(word) not in ("tp", "pp", "cp", "ep")}
    if "ZeRO-3" in other:
        more.discard("ZeRO-2")
    return len(degrees) + len(more)


def words(spec: Spec, row: Mapping[str, int]) -> set[str]:
    """Return the decisions of a plan that are not plain, as they are written."""
    cluster, seq_len, cp = spec.cluster, spec.training.seq_len, row["cp"]
    rated = cluster.gpus_per_host if cluster.is_tree else 1
    node = max(rated, cluster.fan_outs[0])
    is_hybrid = row["dp_shard"] > 1 and row["dp_replicate"] > 1
    shards = row["tp"] * cp * row["dp_shard"]
    is_true = {
        "tp inside a node": row["tp"] > 1 and node % row["tp"] == 0,
        "tp across nodes": node % row["tp"] > 0,
        "pp to 8": 1 < row["pp"] <= 8,
        "pp to 16": 8 < row["pp"] <= 16,
        "pp over 16": row["pp"] > 16,
        "adapters of a split model": row["tp"] * row["pp"] > 1
        and spec.training.lora is not None,
        "interleaved": row["vpp"] > 1,
        "cp 2": cp == 2,
        "cp over 2 on long": cp > 2 and seq_len >= 16_384,
        "cp over 2 on short": cp > 2 and seq_len < 16_384,
        "cp on a short sequence": cp > 1 and seq_len < 8_192,
        "few tokens a GPU": cp > 1 and seq_len / cp < 4_096,
        "ep inside a node": 1 < row["ep"] <= 64 and row["ep"] * row["tp"] <= node,
        "ep across nodes": 1 < row["ep"] <= 64 and row["ep"] * row["tp"] > node,
        "ep over 64": row["ep"] > 64,
        "experts without ep": spec.model.moe is not None and row["ep"] == 1,
        "ZeRO-2": row["zero"] == 2,
        "ZeRO-3": row["zero"] == 3,
        "hsdp inside a node": is_hybrid and shards < node,
        "offload": row["offload"] > 0,
        "inputs on the host": row["recompute"] == 3,
        "zero-bubble or GPipe": row["schedule"] > 0,
    }
    return {word for word, holds in is_true.items() if holds}


def kind(word: str) -> str:
    """Return the decision that a word is about: mostly its first two letters tell."""
    if word in ("experts without ep", "cp on a short sequence"):
        return "ep" if word[0] == "e" else word
    return word[:2].lower() if word[:4] != "zero" else word


def is_rarely_run(spec: Spec, row: Mapping[str, int]) -> int:
    """Return 1 if fewer than ten ran just these decisions, though ten ran others."""
    counts = spec.run_before.combinations
    common = [{*text.split(" + ")} - {PLAIN} for text, n in counts.items() if n > 9]
    return int(common != [] and words(spec, row) not in common)


def is_unlike_published(spec: Spec, row: Mapping[str, int]) -> int:
    """Return 1 if another plan than this one is published for the job."""
    published = spec.run_before.published
    if published is None:
        return 0
    codes = {"recompute": RECOMPUTE_MODES, "offload": OFFLOADS}
    for name, value in published.plan.items():
        code = codes[name].index(value) if name in codes else value
        if row[name] != code:
            return 1
    return 0


def simplicity(spec: Spec, splits: Splits, index: int) -> Key:
    """Return how simple a split is, in the order of the spec's criteria."""
    row: dict[str, Any] = {
        name: int(getattr(splits.rows, name)[0]) for name in DECISIONS
    }
    degrees = sum(row[name] > 1 for name in ("tp", "pp", "vpp", "cp", "ep", "zero"))
    many = sum(row[name] != 0 for name in ("schedule", "recompute", "offload"))
    layers, recomputed = splits.layers[index], splits.recomputed[index]
    some = 0 < recomputed.sum() < layers.sum()
    known = {
        "beyond_runs": beyond_runs(spec, row),
        "unlike_published": is_unlike_published(spec, row),
        "rarely_run": is_rarely_run(spec, row),
        "deep_pipeline": int(row["pp"] > 16),
        "techniques": degrees + many,
        "replicated_shards": int(min(row["dp_shard"], row["dp_replicate"]) > 1),
        "offload": int(row["offload"] != 0 or row["recompute"] == 3),
        "short_context_parallel": int(row["cp"] > 1 and spec.training.seq_len < 32_768),
        "zero3_in_pipeline": int(row["zero"] == 3 and row["pp"] > 1),
        "uneven_stages": int(np.ptp(layers) > 0),
        "partial_recompute": int(some),
        "odd_micro_batch": int(not math.log2(row["micro_batch"]).is_integer()),
    }
    return tuple(known[name] for name in spec.objective.criteria)
