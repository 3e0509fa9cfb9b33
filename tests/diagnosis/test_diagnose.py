"""A diagnosis from the text of a log to the screen."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from benchmarks.diagnose import log_of, planted
from typer.testing import CliRunner

import meshwright as mw
from meshwright.check.check import check
from meshwright.cli import app
from meshwright.cost.profile import Profile, load_profile
from meshwright.diagnosis.diagnose import diagnosis
from meshwright.diagnosis.faults import Case, Run, faults, slower_links
from meshwright.imports.logs.training_log import Steps, read_log
from meshwright.planner.options import Options
from meshwright.report.diagnose import diagnosis_sections
from meshwright.report.screen import screen_sections
from meshwright.report.tables import sections_as_text

DATA = Path(__file__).parents[1] / "data"

SLOW = DATA / "slow_run.log"
"""Llama 3 8B on 64 GPUs by Megatron-LM: passes are as modelled on DGX H100, and
gradients take three times as long."""

DEAD = DATA / "out_of_memory.log"
"""What PyTorch prints where fp32 logits of 4 x 4,096 tokens do not fit."""


@pytest.fixture(scope="module")
def told() -> mw.Diagnosis:
    return mw.diagnose(SLOW, cluster="dgx-h100")


def test_slow_gradients_are_laid_to_the_network(told: mw.Diagnosis) -> None:
    assert told.faults[0].key == "network"
    assert told.faults[0].probability > 0.5
    assert math.isclose(math.fsum(one.probability for one in told.faults), 1.0)


def test_changes_are_priced_on_the_run_itself(told: mw.Diagnosis) -> None:
    measured_s = told.log.step_s
    assert measured_s is not None
    assert measured_s == pytest.approx(0.814, rel=1e-3)
    for change in told.changes:
        assert change.saves_s == pytest.approx(measured_s - change.step_s)
    options = {change.option for change in told.changes if change.kind == "switch"}
    assert "--overlap-grad-reduce" in options
    kinds = [change.kind for change in told.changes]
    order = ["fault", "switch", "plan", "hardware"]
    assert kinds == sorted(kinds, key=order.index)


@pytest.mark.parametrize(
    "beside", [{"seq_len": -1}, {"count": -1}, {"gpu": "x"}, {"framework": "x"}]
)
def test_what_is_said_beside_a_loaded_spec_counts(beside: dict[str, Any]) -> None:
    asked = {"seq_len": 4096, "global_batch": 64}
    fields = {"model": "llama3-8b", "cluster": "dgx-h100", "training": asked}
    spec = mw.load(fields, mw.Spec)
    with pytest.raises(mw.SpecError, match=str(next(iter(beside.values())))):
        mw.diagnose(SLOW, spec=spec, **beside)


def test_a_run_is_not_doubted_beside_plans_that_nobody_ran() -> None:
    runs = {"megatron": {"tp across nodes + pp over 16": 5}}
    doubtful = Profile(run_before=runs, doubt=1.0)
    told = mw.diagnose(SLOW, cluster="dgx-h100", profile=doubtful)
    # Every other plan is doubted, the one in the log was run.
    assert "plan" not in {change.kind for change in told.changes}


def test_the_share_of_kernels_is_that_of_the_measured_step(told: mw.Diagnosis) -> None:
    """Passes of this run are as modelled: some 0.37 s of a step of 0.81 s compute."""
    assert told.compute_share == pytest.approx(0.37 / 0.814, rel=0.05)


def test_the_answer_is_read_back_from_its_json(told: mw.Diagnosis) -> None:
    again = mw.Diagnosis.from_json(told.to_json())
    assert again.to_dict() == told.to_dict()


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["diagnose", *words], env={"COLUMNS": "80"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def test_the_answer_fits_on_a_screen(told: mw.Diagnosis) -> None:
    text = sections_as_text(screen_sections(told, "run.log", 80), 80)
    lines = text.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert "the network between hosts is slow" in text
    parts = r"gradients 364 ms \(12\d ms\), gathers 59 ms \(23 ms\)"
    assert re.search(parts, " ".join(text.split()))
    assert "What to change" in text


def test_changes_stand_on_the_screen_however_much_there_is_to_say() -> None:
    """Tables get fewer rows before one of them is left out."""
    swift = DATA / "logs" / "hf_trainer_log.7.txt"
    told = mw.diagnose(swift, cluster="dgx-h100")
    text = sections_as_text(screen_sections(told, "run.log", 80), 80)
    assert told.changes
    assert len(text.splitlines()) <= 40
    assert "What to change" in text


def test_the_command_line_passes_on_the_rank_of_adapters() -> None:
    words = ["--model", "llama3-8b", "--cluster", "dgx-h100", "--framework", "fsdp"]
    words += ["--seq-len", "4096", "--batch", "64", "--plan", "zero=3,micro_batch=4"]
    code, text = run(str(DEAD), *words, "--lora", "16", "--format", "json")
    held = json.loads(text)["out_of_memory"]["memory"]
    assert code == 0
    # 42 million weights of adapters, not 8 billion, over 8 GPUs
    assert held["parts"]["optimizer"] < 0.2


def test_what_is_missing_is_asked_for_as_options() -> None:
    with pytest.raises(
        mw.SpecError, match=r"--launch FILE\), or --cluster NAME or --gpu NAME$"
    ):
        run(str(SLOW))


def test_a_run_out_of_memory_is_told_its_tensor_and_what_fits() -> None:
    plan = "tp=1,zero=3,micro_batch=4,recompute=full,offload=none"
    words = ["--model", "llama3-8b", "--cluster", "dgx-h100", "--framework", "fsdp"]
    words += ["--seq-len", "4096", "--batch", "64", "--plan", plan]
    code, text = run(str(DEAD), *words, "--format", "json")
    told = json.loads(text)["out_of_memory"]
    assert code == 0
    assert told["part"] == "logits"
    assert told["suspects"][0]["name"] == "fp32 logits of one micro-batch"
    assert told["is_fragmented"]
    assert told["needed_gib"] == pytest.approx(77.10 + 7.83)
    assert (told["line"], told["tried_gib"], told["phase"]) == (4, 7.83, "loss")
    assert (told["unused_gib"], told["others_gib"], told["step"]) == (10.0, 0.0, 0)
    assert len(told["suspects"]) == 5
    shares = [one["probability"] for one in told["suspects"]]
    assert shares == sorted(shares, reverse=True)
    first = told["repairs"][0]
    assert first["changes"] == "flag"
    assert first["edits"] == ["training.loss_chunks: 1 -> 8"]


@pytest.mark.parametrize(
    ("plan", "size", "is_told"),
    [
        ("zero=3", 4, True),  # 7.83 GiB are 4 x 4,096 x 128,256 numbers of 4 bytes
        ("zero=3,micro_batch=1", 1, False),
        ("zero=3,microbatches=8", 1, False),
    ],
)
def test_a_micro_batch_that_nothing_says_follows_from_the_size_of_logits(
    plan: str, size: int, is_told: bool
) -> None:
    told = mw.diagnose(
        DEAD,
        model="llama3-8b",
        cluster="dgx-h100",
        framework="fsdp",
        seq_len=4096,
        batch=64,
        plan=f"{plan},recompute=none",
    )
    assert told.plan.micro_batch == size
    found = [one for one in told.log.missing if one.startswith("micro-batch 4: ")]
    assert bool(found) is is_told


def test_a_text_that_is_no_log_is_refused_with_the_kinds(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("nothing of a run\n")
    with pytest.raises(mw.SpecError, match="no training log that is known"):
        run(str(path))


def test_the_fastest_rank_is_read_beside_the_slowest() -> None:
    """Of a timer Megatron-LM prints the least and the most over all ranks."""
    log = read_log(SLOW.read_text("utf-8"), SLOW.name)
    backward = next(part for part in log.parts if part.of == "backward")
    assert backward.seconds == pytest.approx(0.2582)
    assert backward.fastest_s == pytest.approx(0.2556)


def test_batches_follow_from_those_of_a_rank(tmp_path: Path) -> None:
    """2 sequences x 4 times on each of 8 GPUs, as a Hugging Face trainer logs them."""
    path, notes = tmp_path / "run.log", list[str]()
    path.write_text(
        "***** Running training *****\n"
        "  Num examples = 52,002\n"
        "  Instantaneous batch size per device = 2\n"
        "  Gradient Accumulation steps = 4\n"
        "{'loss': 1.2, 'learning_rate': 2e-05, 'epoch': 0.1}\n"
        " 10%|#         | 1/10 [00:02<00:18,  2.00s/it]\n"
        " 20%|##        | 2/10 [00:04<00:16,  2.00s/it]\n"
        " 30%|###       | 3/10 [00:06<00:14,  2.00s/it]\n"
        " 40%|####      | 4/10 [00:08<00:12,  2.00s/it]\n"
    )
    told = mw.diagnose(
        path,
        model="gpt-1.3b",
        cluster="dgx-h100",
        framework="fsdp",
        seq_len=1024,
        plan="zero=3,recompute=full",
        notes=notes,
    )
    assert told.plan.micro_batch * told.plan.microbatches * told.plan.dp == 2 * 4 * 8
    assert told.spec.endswith("batch 64")
    assert "batches of 64 sequences: 8 a rank; say --batch" in told.log.missing
    assert told.log.missing[0] in notes


def test_another_gpu_than_the_log_names_is_told() -> None:
    path = DATA / "logs/torchtitan_log.1.txt"
    told = mw.diagnose(path, model="llama3-8b", cluster="dgx-h100")
    assert "the log ran on h200-sxm-141gb, and the cluster has h100-sxm-80gb" in (
        told.log.missing
    )


def test_a_log_of_fewer_gpus_than_the_machine_says_which_line_and_what_to_type() -> (
    None
):
    words = [str(DATA / "logs/hf_trainer_log.4.txt"), "--model", "llama3-8b"]
    words += ["--framework", "fsdp", "--seq-len", "1024"]
    with pytest.raises(mw.SpecError) as refused:
        run(*words, "--cluster", "dgx-h100")
    place, told = str(refused.value).split(": ", 1)
    assert place.endswith("hf_trainer_log.4.txt:4")
    assert told.startswith("GPUs that ran: 1: expected a multiple of 8")
    assert told.endswith("; for some GPUs of one, --gpu h100-sxm-80gb in its place")
    told_of = mw.diagnose(
        words[0],
        model="llama3-8b",
        gpu="h100-sxm-80gb",
        framework="fsdp",
        seq_len=1024,
    )
    assert "1 x h100-sxm-80gb" in told_of.spec


def test_the_gpus_of_the_log_are_taken_and_said() -> None:
    told = mw.diagnose(DATA / "logs/torchtitan_log.1.txt", model="llama3-8b")
    assert "8 x h200-sxm-141gb" in told.spec
    assert "to say what joins them: --cluster NAME" in told.log.missing[0]


def test_a_run_that_nothing_explains_is_not_promised_its_speed_back(
    told: mw.Diagnosis, tmp_path: Path
) -> None:
    """At twenty times the step, a switch gains the same share and no more."""
    path = tmp_path / "run.log"
    text = SLOW.read_text("utf-8")
    path.write_text(re.sub(r"\(ms\): 8(\d\d)", r"(ms): 118\1", text))
    slower = mw.diagnose(path, cluster="dgx-h100")
    assert slower.log.step_s is not None
    assert slower.log.step_s == pytest.approx(11.871, rel=1e-2)
    assert slower.faults[0].kind == "none"
    shares = [one.saves_s / slower.log.step_s for one in slower.changes]
    assert shares
    assert max(shares) < 0.3


def test_adapters_without_a_framework_are_taken_for_those_of_peft() -> None:
    told = mw.diagnose(
        DEAD, model="llama3-8b", cluster="dgx-h100", lora=16, seq_len=4096, batch=64
    )
    assert ", fsdp, " in told.spec
    assert any("taken as fsdp" in one for one in told.log.missing)


class Exact(NamedTuple):
    """A run with a fault that was planted without noise, and what is said of it."""

    run: Run
    told: mw.Diagnosis
    calm_s: float
    """The step as it is modelled without the fault."""
    base: Case
    """The likely fault, of the size that is likely."""
    price: Callable[[mw.Spec, mw.Plan], float]


@pytest.fixture(scope="module", params=["input", "recompute"])
def exact(request: pytest.FixtureRequest) -> Exact:
    profile = load_profile("measured")
    (one,) = planted(profile, {request.param})
    run = replace(one.run, log=log_of(one, profile, None))
    told = diagnosis(run, Options(profile=profile))
    first = told.faults[0]
    assert first.key == request.param
    assert first.probability > 0.9
    bases = [
        case for fault in faults(run) if fault.key == first.key for case in fault.cases
    ]
    (base,) = (case for case in bases if case.size == first.size)

    def price(spec: mw.Spec, plan: mw.Plan) -> float:
        return check(profile.job(spec), plan).step_s

    return Exact(run, told, price(run.spec, run.plan), base, price)


def test_a_fault_undone_saves_the_share_that_it_takes_in_the_model(
    exact: Exact,
) -> None:
    told, measured_s = exact.told, exact.run.step_s
    assert told.modelled_s == pytest.approx(exact.calm_s)
    likely = [one for one in told.faults if one.probability >= 0.1]
    undone = [one for one in told.changes if one.kind == "fault"]
    assert [one.probability for one in undone] == [one.probability for one in likely]
    for fault, change in zip(likely, undone, strict=True):
        left = told.modelled_s / fault.step_s
        assert change.step_s == pytest.approx(measured_s * left)
        assert change.saves_s == pytest.approx(measured_s * (1 - left))
        size = f" ({fault.size})" if fault.size else ""
        assert change.change == f"mend: {fault.name}{size}"
        assert change.note == f"if it is so: {fault.probability:.2f}"


def test_other_changes_are_priced_beside_the_fault(exact: Exact) -> None:
    """All of the priced step is scaled to what was measured, with the fault in it."""
    run, base = exact.run, exact.base
    scale = run.step_s / exact.price(base.spec, base.plan)
    by_kind: dict[str, list[Any]] = {}
    for change in exact.told.changes:
        by_kind.setdefault(change.kind, []).append(change)
    faster = slower_links(base.spec, 2.0, is_inside=True)
    (wider,) = by_kind["hardware"]
    assert wider.change == "twice the links inside a host"
    assert wider.step_s == pytest.approx(scale * exact.price(faster, base.plan))
    (plan,) = by_kind["plan"]
    assert plan.plan is not None
    assert plan.step_s == pytest.approx(scale * exact.price(base.spec, plan.plan))
    for name in ("dp_replicate", "recompute", "zero"):
        before, after = getattr(base.plan, name), getattr(plan.plan, name)
        assert (f"{name}: {before} -> {after}" in plan.change) is (before != after)
    compiled = next(one for one in by_kind["switch"] if "compile" in one.change)
    spec = base.spec.having("training", compile=True)
    assert compiled.step_s == pytest.approx(scale * exact.price(spec, base.plan))
    for one in exact.told.changes:
        assert one.saves_s == pytest.approx(run.step_s - one.step_s)
        assert one.saves_s > 0.01 * run.step_s
    ours = [one.step_s for one in exact.told.changes if one.kind != "hardware"]
    assert exact.told.fastest_s == min(ours)


def test_changes_are_priced_without_a_fault_that_is_not_sure(exact: Exact) -> None:
    """A step that is a third longer may have many reasons."""
    step_s = 1.35 * exact.calm_s
    log = replace(
        exact.run.log, steps=Steps(step_s, step_s, step_s, 50), parts=(), peaks=()
    )
    run = replace(exact.run, log=log)
    told = diagnosis(run, Options(profile=load_profile("measured")))
    assert 0.1 < told.faults[0].probability < 0.5
    wider = next(one for one in told.changes if one.kind == "hardware")
    faster = slower_links(run.spec, 2.0, is_inside=True)
    assert wider.step_s == pytest.approx(1.35 * exact.price(faster, run.plan))


def test_kernels_take_no_more_than_the_step(exact: Exact) -> None:
    """Of a run that is five times as fast as its kernels are modelled."""
    step_s = 0.2 * exact.calm_s
    fast = replace(exact.run.log, steps=Steps(step_s, step_s, step_s, 50))
    told = diagnosis(replace(exact.run, log=fast), Options())
    assert told.compute_share == 1.0


def test_a_run_without_a_step_that_was_measured_is_not_judged(exact: Exact) -> None:
    run = replace(exact.run, log=replace(exact.run.log, steps=None))
    told = diagnosis(run, Options())
    assert (told.faults, told.changes, told.out_of_memory) == ((), (), None)
    with pytest.raises(ValueError, match="no step was measured"):
        _ = run.step_s


DPO = """\
{{'loss': 0.6931, 'grad_norm': 21.4, 'learning_rate': 0.0{}, 'epoch': 0.0}}
  1%|          | 1/100 [00:21<35:44, 21.66s/it]
Traceback (most recent call last):
  File "/usr/lib/transformers/trainer.py", line 4071, in training_step
    self.accelerator.backward(loss, **kwargs)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB. \
GPU 0 has a total capacity of 79.11 GiB of which 3.27 GiB is free.
"""

TRAINER = """\
from trl import {0}Config, {0}Trainer
args = {0}Config(max_length=2048, per_device_train_batch_size=4, bf16=True)
{0}Trainer("meta-llama/Llama-3.1-8B-Instruct", args=args).train()
"""


@pytest.mark.parametrize(("kind", "is_pair"), [("DPO", True), ("KTO", False)])
def test_logits_of_a_pair_of_answers_are_known(
    tmp_path: Path, kind: str, is_pair: bool
) -> None:
    """2 x 4 sequences x 2,048 tokens x 128,256 words x 4 bytes are 7.83 GiB.

    The one step that is timed is the first, from which nothing follows.
    """
    log, script = tmp_path / "run.log", tmp_path / "train.py"
    log.write_text(DPO.format(", 'rewards/chosen': 0.0" if is_pair else ""))
    script.write_text(TRAINER.format(kind))
    told = mw.diagnose(log, launch=script, gpu="h100", count=8)
    assert told.out_of_memory is not None
    assert told.log.step_s is None
    assert not told.faults
    name = told.out_of_memory.suspects[0].name
    assert (name == "fp32 logits of one micro-batch of pairs") == is_pair
    assert any("assumed the framework fsdp" in line for line in told.log.missing)
    note = "pairs of sequences, so 8 are priced" if is_pair else "a second model"
    assert any(note in line for line in told.log.missing)
    lines = sections_as_text(diagnosis_sections(told))
    assert ("Part that does not fit: none that is modelled" in lines) != is_pair


@pytest.mark.parametrize(("gpu", "is_told"), [("h100", False), ("mi300x", True)])
def test_a_gpu_of_another_size_than_ran_out_is_told(
    tmp_path: Path, gpu: str, is_told: bool
) -> None:
    log, script = tmp_path / "run.log", tmp_path / "train.py"
    log.write_text(DPO.format(""))
    script.write_text(TRAINER.format("SFT"))
    told = mw.diagnose(log, launch=script, gpu=gpu, count=2)
    note = "has 79.1 GiB, and mi300x-192gb of the cluster 192.0"
    assert any(note in line for line in told.log.missing) == is_told


def test_a_step_that_no_gpu_is_fast_enough_for_is_told(tmp_path: Path) -> None:
    """8e9 parameters x 6 x 262,144 tokens are 1.6 s of eight H100 at 989 TFLOP/s."""
    log, script = tmp_path / "run.log", tmp_path / "train.py"
    script.write_text(TRAINER.format("SFT").replace("bf16=True", "bf16=True, " + MORE))
    for pace, is_told in ((1, True), (5, False)):
        bars = (
            "{'loss': 1.23, 'grad_norm': 1.0, 'learning_rate': 2e-05, 'epoch': 0.01}\n"
            f"  {i}%|#  | {i}/99 [00:{i * pace:02d}<09:00, {pace:.2f}s/it]\n"
            for i in range(1, 7)
        )
        log.write_text("".join(bars))
        told = mw.diagnose(log, launch=script, gpu="h100", count=8)
        assert told.log.step_s == pytest.approx(pace)
        lines = [one for one in told.log.missing if "at the peak of all GPUs" in one]
        assert bool(lines) == is_told


MORE = "gradient_accumulation_steps=4"

TWO_STAGES = (
    "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --bf16 "
    "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 "
    "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 "
    "--ffn-hidden-size 28672 --seq-length 4096 --micro-batch-size 1 "
    "--global-batch-size 64 --vocab-size 128256 --swiglu\n"
)

LOGITS = """\
[{0}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 250.50 MiB. \
GPU 3 has a total capacity of 79.11 GiB of which 13.27 MiB is free.
"""
"""4,096 tokens x 128,256 words / 8 x 4 bytes."""


@pytest.mark.parametrize(
    ("rank", "stage"), [("rank3", 0), ("rank11", 1), ("default3", None)]
)
def test_the_stage_of_the_rank_is_judged(
    rank: str, stage: int | None, tmp_path: Path
) -> None:
    """The first stage has no logits; torchrun's ranks are those of a host."""
    launch, log = tmp_path / "train.sh", tmp_path / "run.log"
    launch.write_text(TWO_STAGES)
    log.write_text(LOGITS.format(rank))
    told = mw.diagnose(log, launch=launch, gpu="a100-sxm-80gb").out_of_memory
    assert told is not None
    assert told.stage == stage
    assert (told.part == "logits") == (stage != 0)
    assert (told.memory.parts["logits"] > 0) == (stage == 1)
    text = run(str(log), "--launch", str(launch), "--gpu", "a100-sxm-80gb", "-v")[1]
    where = "the fullest stage" if stage is None else f"stage {stage}"
    assert f"Modelled memory of {where}" in text
    assert (f"of stage {stage}, needs" in text) == (stage is not None)


def test_what_would_fit_changes_nothing_that_it_does_not_say(tmp_path: Path) -> None:
    """A repair had sequence parallelism, which the run had not, in its step."""
    launch = tmp_path / "train.sh"
    launch.write_text(TWO_STAGES)
    words = ["--launch", str(launch), "--gpu", "a100-sxm-80gb"]
    found = run(str(DEAD), *words, "--format", "json")
    told = json.loads(found[1])["out_of_memory"]["repairs"]
    asked = ["--plan", str(launch), "--gpu", "a100-sxm-80gb", "--format", "json"]
    explained = json.loads(CliRunner().invoke(app, ["explain", *asked]).stdout)[
        "repairs"
    ]
    alike = {one["edits"][-1]: one["step_s"] for one in explained}
    steps = {one["edits"][-1]: one["step_s"] for one in told}
    assert "offload: none -> optimizer" in steps.keys() & alike.keys()
    for edit in steps.keys() & alike.keys():
        assert steps[edit] == pytest.approx(alike[edit], rel=1e-3), edit


def test_the_command_for_all_of_it_asks_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["--model", "llama3-8b", "--cluster", "dgx-h100", "--framework", "fsdp"]
    words += ["--seq-len", "4096", "--batch", "64", "--plan", "zero=3,micro_batch=4"]
    # Lines of 80 columns break a path that is longer.
    monkeypatch.chdir(DATA)
    _, _, again_text = run(DEAD.name, *words)[1].partition("meshwright diagnose ")
    again = shlex.split(again_text)
    assert run(*again)[0] == 0


@pytest.mark.parametrize(("printed", "is_told"), [("260.0", False), ("600.0", True)])
def test_rates_that_no_model_and_gpus_make_are_told(
    printed: str, is_told: bool, tmp_path: Path
) -> None:
    """6 x 8e9 x 262,144 over 64 GPUs and 0.814 s are 242 TFLOP/s, beside attention."""
    rate = f"throughput per GPU (TFLOP/s/GPU): {printed} | global batch size"
    log = tmp_path / "run.log"
    log.write_text(SLOW.read_text("utf-8").replace("global batch size", rate))
    code, text = run(str(log), "--cluster", "dgx-h100")
    assert code == 0
    assert ("prints 600 TFLOP/s of a GPU" in text) == is_told
