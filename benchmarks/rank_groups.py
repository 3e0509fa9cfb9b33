"""Records groups of ranks: `python -m benchmarks.rank_groups --python P`.

Twenty random sets of degrees go through Megatron's RankGenerator in its two orders,
torchtitan's ParallelDims, DeepSpeed's topology and Accelerate's ParallelismConfig. The
answers are kept in tests/data, where tests compare Meshwright's with them.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.launch_validators import PACKAGES, VALIDATORS

RECORD = Path(__file__).parents[1] / "tests" / "data" / "rank_groups.json"

AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")

ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
"""Megatron's own, and that of `--use-tp-pp-dp-mapping`."""

SETS = 20
MOST_RANKS = 48


def main() -> None:
    """Ask the frameworks again, and keep what they say."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--python", required=True, help=f"with {PACKAGES}")
    given = options.parse_args()
    cases = [*degree_sets(seed=1)]
    done = subprocess.run(
        [given.python, str(VALIDATORS / "groups.py")],
        input=json.dumps(cases),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    groups = json.loads(done.stdout)
    rows = [
        json.dumps({"degrees": case, "groups": group})
        for case, group in zip(cases, groups, strict=True)
    ]
    text = "[\n" + ",\n".join(rows) + "\n]\n"
    is_known = RECORD.is_file() and RECORD.read_text() == text
    RECORD.write_text(text)
    print(f"{len(rows)} sets of degrees: {'as before' if is_known else 'recorded'}")


def degree_sets(seed: int) -> Iterator[dict[str, Any]]:
    """Yield random degrees; half of them in each of Megatron's orders."""
    source = random.Random(seed)
    found = 0
    while found < SETS:
        case: dict[str, Any] = {axis: source.choice((1, 1, 2, 3, 4)) for axis in AXES}
        if not 4 <= prod(case.values()) <= MOST_RANKS:
            continue
        case["order"] = ORDERS[found % 2]
        foldable = case["tp"] * case["cp"] * case["dp_shard"]
        has_experts = case["dp_shard"] > 1 and case["order"] == ORDERS[0]
        fitting = [n for n in range(1, 9) if foldable % n == 0]
        case["ep"] = source.choice(fitting) if has_experts else 1
        found += 1
        yield case


if __name__ == "__main__":
    main()
