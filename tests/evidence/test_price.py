"""Runs that name a spec: its plan is what ran, and the file as it is now counts."""

from __future__ import annotations

import os
from pathlib import Path

from meshwright.evidence.price import Priced, price_run
from meshwright.evidence.runs import read_runs

RUN = "- {id: a, source_id: ours, spec: own.yaml, measured: {step_time_s: 1}, plan: "

PLAIN = "'tp=2,pp=1,zero=1,micro_batch=1,recompute=none,offload=none'}\n"

SPEC = """\
model: gpt-1.3b
framework: FRAMEWORK
cluster: {topology: dgx-a100}
training: {seq_len: 2048, global_batch: BATCH}
"""


def priced(
    folder: Path, plan: str, framework: str = "megatron", batch: int = 64
) -> Priced:
    text = SPEC.replace("FRAMEWORK", framework).replace("BATCH", str(batch))
    (folder / "own.yaml").write_text(text)
    (folder / "runs.yaml").write_text(RUN + plan)
    (run,) = read_runs(folder / "runs.yaml")
    return price_run(run)


def test_selective_recomputation_is_that_of_a_launch_which_names_no_modules(
    tmp_path: Path,
) -> None:
    """`--recompute-granularity selective` repeats the core of attention alone."""
    selective = PLAIN.replace("none,off", "selective,off")
    fields = "{tp: 2, pp: 1, zero: 1, micro_batch: 1, recompute: selective}}\n"
    for plan in (selective, fields):
        assert priced(tmp_path, plan).plan.recompute_modules == "core_attn"
    named = selective.replace("offload", "recompute_modules=mlp,offload")
    assert priced(tmp_path, named).plan.recompute_modules == "mlp"
    other = selective.replace("tp=2", "tp=1").replace("zero=1", "zero=3")
    assert priced(tmp_path, other, "torchtitan").plan.recompute_modules == ""


def test_a_spec_that_was_changed_meanwhile_is_read_again(tmp_path: Path) -> None:
    before = priced(tmp_path, PLAIN)
    os.utime(tmp_path / "own.yaml", ns=(1, 1))
    after = priced(tmp_path, PLAIN, batch=128)
    assert (before.spec.training.global_batch, after.spec.training.global_batch) == (
        64,
        128,
    )


def test_what_a_plan_leaves_out_is_off_as_in_a_launch(tmp_path: Path) -> None:
    """Copies of what ZeRO shards would be faster, and hold four times as much."""
    plan = "'tp=1,pp=1,zero=3,micro_batch=1,recompute=none'}\n"
    found = priced(tmp_path, plan, "torchtitan").plan
    assert (found.dp_shard, found.dp_replicate, found.cp, found.vpp) == (8, 1, 1, 1)
    assert found.offload == "none"


def test_what_a_plan_or_its_spec_says_stays(tmp_path: Path) -> None:
    plan = "'tp=1,pp=1,zero=3,dp_shard=4,micro_batch=1,recompute=none,cp=2'}\n"
    found = priced(tmp_path, plan, "torchtitan").plan
    assert (found.dp_shard, found.dp_replicate, found.cp) == (4, 1, 2)
    mesh = "'zero=1,recompute=none,mesh={dp_shard: [4], dp_replicate: [2]}'}\n"
    assert priced(tmp_path, mesh).plan.dp_replicate == 2
