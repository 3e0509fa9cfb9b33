"""Logs of training runs: each is read to what a person reads in it."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.api.import_files import log_text
from meshwright.calibration.calibrate import runs_of_logs
from meshwright.errors import SpecError
from meshwright.evidence.price import price_runs
from meshwright.evidence.runs import Run, read_runs
from meshwright.imports.logs.log_text import LogLine, StepTimes, log_lines
from meshwright.imports.logs.progress import ProgressBars
from meshwright.imports.logs.training_log import TrainingLog, read_log
from meshwright.imports.registry import detect, detect_log
from tests.helpers.command import run

FOLDER = Path(__file__).parents[1] / "data" / "logs"
INDEX: dict[str, dict[str, Any]] = yaml.safe_load(
    (FOLDER / "INDEX.yaml").read_text("utf-8")
)
PEAKS = ("allocated_gib", "reserved_gib", "device_gib")
PRINTED = ("tokens_per_s_per_gpu", "tflops_per_gpu")


def text_of(name: str) -> str:
    return (FOLDER / name).read_bytes().decode("utf-8")


def told(log: TrainingLog) -> dict[str, Any]:
    """What a log tells, in the form of the index."""
    steps, error = log.steps, log.out_of_memory
    found: dict[str, Any] = {"gpu": log.gpu or None}
    if steps is not None:
        left = {reason: list(numbers) for reason, numbers in steps.left_out.items()}
        found |= {"step_s": steps.step_s, "steps": steps.count}
        found["left_out"] = left or None
    found |= {name: getattr(log.peak, name) for name in PEAKS}
    found |= {name: getattr(log, name) for name in PRINTED}
    found["parts"] = {part.name: part.seconds for part in log.parts}
    if error is not None:
        found["out_of_memory"] = {
            name: value
            for name, value in vars(error).items()
            if value is not None and name not in ("line", "frames")
        }
    return {name: value for name, value in found.items() if value is not None}


def flat(fields: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Fields with dotted names, none of them a mapping."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        inner = f"{above}{name}."
        found |= flat(value, inner) if isinstance(value, dict) else {inner[:-1]: value}
    return found


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@pytest.mark.parametrize("name", INDEX)
def test_a_log_tells_what_a_person_reads(name: str) -> None:
    row = INDEX[name]
    beside = ("layout", "about", "says", "parts")
    expected = flat({key: row[key] for key in row if key not in beside})
    log = read_log(text_of(name), name)
    found = told(log)
    parts = found.pop("parts")
    found = flat(found)
    assert found.keys() == expected.keys()
    numbers = [key for key in expected if is_number(expected[key])]
    words = [key for key in expected if key not in numbers]
    assert [found[key] for key in words] == [expected[key] for key in words]
    values = {key: expected[key] for key in numbers}
    assert {key: found[key] for key in numbers} == pytest.approx(values, rel=2e-5)
    assert log.kind == name.partition(".")[0]
    assert {field: log.launch.value(field) for field in row["says"]} == row["says"]
    named = row.get("parts", {})
    assert {part: parts[part] for part in named} == pytest.approx(named)


def test_every_log_is_in_the_index() -> None:
    names = {path.name for path in FOLDER.iterdir()} - {"INDEX.yaml"}
    assert names == {*INDEX}
    assert len(INDEX) >= 24


LOSS = re.compile(r"(loss['\"]?(?: value)?[:=] {0,2}['\"]?)[\d.]+(?:E[+-]\d+)?")


@pytest.mark.parametrize("name", INDEX)
def test_nothing_that_a_log_tells_depends_on_its_losses(name: str) -> None:
    plain, other = text_of(name), LOSS.sub(r"\g<1>0.123", text_of(name))
    log, again = read_log(plain, name), read_log(other, name)
    assert ([*again.told()], again.measured) == ([*log.told()], log.measured)


@pytest.mark.parametrize("name", INDEX)
def test_a_log_reads_the_same_behind_what_a_cluster_puts_before_lines(
    name: str,
) -> None:
    """A pod's name, a time, and Windows' line ends change nothing that is told."""
    if Path(name).suffix != ".txt" or name.startswith("nvidia_smi"):
        return
    plain, lines = read_log(text_of(name), name), text_of(name).split("\n")
    behind = [f"[pod/train-0/main] {line}" if line else line for line in lines]
    again = read_log("\r\n".join(behind), name)
    assert told(again) == told(plain)
    assert again.launch.values.keys() == plain.launch.values.keys()


def test_every_log_is_told_by_its_text_and_launches_are_none() -> None:
    for name in INDEX:
        assert detect_log(text_of(name)) == name.partition(".")[0], name
    imports = FOLDER.parent / "imports"
    for path in sorted(imports.iterdir()):
        assert detect_log(path.read_bytes().decode("utf-8")) is None, path.name
    assert detect(text_of("megatron_log.1.txt"), "launches") is None


def test_a_script_that_looks_into_its_log_is_no_log(tmp_path: Path) -> None:
    launch = (FOLDER.parent / "pretrain.sh").read_text()
    script = tmp_path / "run.sh"
    script.write_text(launch + '\ngrep "elapsed time per iteration (ms):" train.log\n')
    assert detect_log(script.read_text()) == "megatron_log"
    done = run("import", str(script))
    assert (done.code, "(megatron: Megatron-LM)" in done.stdout) == (0, True)


def step_times(*seconds: float) -> StepTimes:
    steps = StepTimes()
    for step, value in enumerate(seconds, start=1):
        steps.add(LogLine(step, ""), step, value)
    return steps


def test_warm_up_ends_where_steps_are_near_the_median() -> None:
    found = step_times(60, 9, 2, 1.05, 1, 1.02, 1, 1.01, 3, 1).result()
    assert found is not None
    assert found.left_out == {"warm-up": (1, 2, 3), "pause": (9,)}
    assert (found.step_s, found.count) == (1.005, 6)
    assert found.low_s <= found.step_s <= found.high_s


def test_steps_after_evaluations_count_where_there_are_no_others() -> None:
    steps = StepTimes()
    for step in range(1, 6):
        steps.add(LogLine(step, ""), step, 1.0)
        steps.happened("evaluation")
    found = steps.result()
    assert found is not None
    assert (found.count, found.left_out) == (4, {"warm-up": (1,)})


def test_one_step_counts_though_it_is_the_first() -> None:
    found = step_times(7.5).result()
    assert found is not None
    assert (found.step_s, found.count, found.left_out) == (7.5, 1, {})


def test_of_several_ranks_the_slowest_counts() -> None:
    steps = step_times(9, 1, 1)
    for step, value in ((4, 1.0), (4, 1.2), (3, 1.1), (5, 1.0)):
        steps.add(LogLine(9, ""), step, value)
    found = steps.result()
    assert found is not None
    assert (found.count, found.high_s, steps.restarts) == (4, 1.2, 0)


def test_prefixes_are_taken_off_and_ranks_kept() -> None:
    text = (
        "[rank3]:[titan] 2025-01-02 03:04:05,678 - a\n"
        " 12: b\r\x1b[32mc\x1b[0m\n[1,7]<stdout>:d\n\n2025-01-02T03:04:05.5Z e\n"
    )
    lines = log_lines(text, "log")
    found = [(line.number, line.rank, line.text) for line in lines]
    assert found == [
        (1, 3, "- a"), (2, 12, "b"), (2, None, "c"), (3, 7, "d"), (5, None, "e"),
    ]  # fmt: skip
    assert lines[0].time_s == pytest.approx(1735787045.678)
    assert lines[4].time_s == pytest.approx(1735787045.5)


PASTED = {
    "by Ray": lambda line: f"\x1b[36m(Worker pid=4711, ip=10.0.0.3)\x1b[0m {line}",
    "in a block of code": lambda line: f"    {line}",
    "in a mail": lambda line: f"> {line}",
    "from a page": lambda line: line.replace(" ", "\xa0"),
    "with blanks behind": lambda line: f"{line}   ",
    "from Windows": lambda line: f"{line}\r",
}


@pytest.mark.parametrize("pasted", PASTED)
@pytest.mark.parametrize(
    "name",
    ["deepspeed_log.4.txt", "hf_trainer_log.7.txt", "megatron_bridge_log.1.txt"],
)
def test_a_pasted_log_tells_the_same(name: str, pasted: str) -> None:
    lines = text_of(name).splitlines()
    plain = read_log("\n".join(lines), name)
    found = read_log("\n".join(map(PASTED[pasted], lines)), name)
    if (pasted, name) != ("by Ray", "deepspeed_log.4.txt"):  # before names of hosts
        said = {field: value.value for field, value in found.launch.values.items()}
        assert said == {f: value.value for f, value in plain.launch.values.items()}
    assert (found.steps, found.peaks, found.unknown)[:2] == (plain.steps, plain.peaks)


def test_what_a_log_says_is_off_is_off() -> None:
    """A dump says so of switches, torchtitan by what it does not print."""
    off = {
        "megatron_log.5.txt": ("overlap.gradients", "overlap.parameters"),
        "megatron_log.2.txt": ("overlap.parameters", "overlap.tp"),
        "torchtitan_log.1.txt": ("compile",),
    }
    for name, switches in off.items():
        launch = read_log(text_of(name), name).launch
        for switch in switches:
            assert launch.value(f"training.{switch}") is False, (name, switch)


def test_names_of_hosts_are_taken_off_where_many_lines_have_them() -> None:
    lines = [f"gpu-{n % 2}: [rank{n}]: loss: {n}" for n in range(50)]
    found = log_lines("\n".join([*lines, "gpu-0: ready", "gpu-7: c"]), "log")
    assert [(line.rank, line.text) for line in found[:2]] == [
        (0, "loss: 0"), (1, "loss: 1"),
    ]  # fmt: skip
    assert [line.text for line in found[-2:]] == ["ready", "gpu-7: c"]
    alone = log_lines("\n".join(f"step{n}: a" for n in range(50)), "log")
    assert alone[0].text == "step0: a"


@pytest.mark.parametrize(
    "bar",
    [
        "Loading weights:  97%|█████▋| 985/1013 [00:15<00:00, 65.56it/s]",
        "Map (num_proc=4):  12%|█▎| 800/6400 [00:10<02:07, 141.08 examples/s]",
        "Downloading shards:  50%|█████| 2/4 [00:31<00:31, 15.5s/it]",
        "100%|█████| 90/90 [00:30<00:00, 3.1MB/s]",
    ],
)
def test_bars_of_other_work_than_steps_are_none_of_training(bar: str) -> None:
    bars = ProgressBars()
    bars.read(LogLine(1, bar))
    assert (bars.total, bars.steps.samples) == (0, [])


def test_the_bar_of_as_many_steps_as_the_log_says_counts() -> None:
    """An evaluation may have more batches than the run has steps."""
    bars = ProgressBars()
    bars.said = 100
    clock = 0
    for step in range(1, 60):
        clock += 5
        if step == 40:
            bars.read(LogLine(step, " 50%|██| 250/500 [00:30<00:30, 8.2it/s]"))
            clock += 60
        at = f"{clock // 60:02d}:{clock % 60:02d}"
        bars.read(LogLine(step, f" 9%|█| {step}/100 [{at}<10:00, 5.0s/it]"))
    found = bars.steps.result()
    assert found is not None
    assert (bars.total, found.step_s) == (100, 5.0)
    assert found.left_out["evaluation"] == (40,)


def test_a_value_that_is_not_known_is_left_open_with_a_note() -> None:
    text = text_of("megatron_log.2.txt").replace("........ rope", "........ spiral")
    log = read_log(text, "log")
    assert log.launch.value("tp") == 4
    assert [note for note in log.notes if "spiral" in note and "left open" in note]


def test_the_command_that_a_shell_prints_is_read_where_the_log_has_no_more() -> None:
    command = (
        "+ torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers 32 "
        "--hidden-size 4096 --num-attention-heads 32 --seq-length 4096 "
        "--tensor-model-parallel-size 4 --micro-batch-size 2 --global-batch-size 64\n"
    )
    lines = "".join(
        f" iteration {step}/ 9 | elapsed time per iteration (ms): {ms} | "
        "global batch size:    64 | lm loss: 1.0 |\n"
        for step, ms in ((1, 9000), (2, 2000), (3, 2000), (4, 2000))
    )
    log = read_log(command + lines, "log")
    values = {name: log.launch.value(name) for name in ("tp", "gpus", "micro_batch")}
    assert values == {"tp": 4, "gpus": 16, "micro_batch": 2}


def test_what_is_no_log_is_refused_with_the_kinds() -> None:
    with pytest.raises(SpecError, match="no training log that is known; kinds: torch"):
        read_log("hello\n", "log")
    with pytest.raises(SpecError, match="log: tells nothing of a run: expected"):
        read_log("CUDA out of memory\n", "log", "torch_error")


MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has "
    "a total capacity of 79.11 GiB of which 1.00 GiB is free.\n"
)

PHASES: dict[str, list[str]] = {
    "loading": [
        "train.py:3 main: model = AutoModelForCausalLM.from_pretrained(name)",
        "torch/nn/modules/module.py:1340 to: return self._apply(convert)",
    ],
    "forward": [
        "transformers/trainer.py:3698 training_step: loss = self.compute_loss(model)",
        "models/llama/modeling_llama.py:180 forward: return down_proj(act_fn(gate))",
    ],
    "loss": [
        "transformers/trainer.py:3698 training_step: loss = self.compute_loss(model)",
        "models/llama/modeling_llama.py:850 forward: logits = self.lm_head(hidden)",
    ],
    "backward": [
        "transformers/trainer.py:3740 training_step: self.accelerator.backward(loss)",
        "torch/autograd/graph.py:824 _engine_run_backward: return run_backward(",
        "torch/utils/checkpoint.py:1120 unpack_hook: frame.recompute_fn(*args)",
        "models/llama/modeling_llama.py:180 forward: return down_proj(act_fn(gate))",
    ],
    "optimizer step": [
        "transformers/trainer.py:2500 _inner_training_loop: self.optimizer.step()",
        "torch/optim/adamw.py:175 _init_group: state['exp_avg'] = zeros_like(p)",
    ],
    "evaluation": [
        "transformers/trainer.py:4100 evaluation_loop: self.prediction_step(model)",
        "transformers/trainer_pt_utils.py:100 nested_concat: logits = torch.cat(all)",
    ],
    "generation": [
        "trl/trainer/grpo_trainer.py:900 _generate: ids = unwrapped.generate(prompt)",
        "models/qwen2/modeling_qwen2.py:400 forward: logits = self.lm_head(hidden)",
    ],
    "log-probabilities": [
        "verl/workers/fsdp_workers.py:700 compute_log_prob: out = actor(data)",
        "verl/utils/torch_functional.py:90 logprobs_from_logits: logits.logsumexp(-1)",
    ],
    "checkpoint": [
        "train.py:9 main: engine.save_checkpoint(folder)",
        "deepspeed/runtime/engine.py:3100 save: full = gather(weights)",
    ],
}


@pytest.mark.parametrize("phase", PHASES)
def test_the_traceback_tells_what_the_rank_did(phase: str) -> None:
    rows = ["Traceback (most recent call last):"]
    for frame in PHASES[phase]:
        place, _, code = frame.partition(": ")
        path, _, rest = place.partition(":")
        number, function = rest.split()
        rows += [f'  File "/usr/{path}", line {number}, in {function}', f"    {code}"]
    log = read_log("\n".join([*rows, MESSAGE]), "log", "torch_error")
    assert log.out_of_memory is not None
    assert log.out_of_memory.phase == phase
    assert len(log.out_of_memory.frames) == len(PHASES[phase])


def test_a_traceback_in_a_box_is_read() -> None:
    text = """\
╭───────────────── Traceback (most recent call last) ─────────────────╮
│ /home/me/axolotl/scripts/finetune.py:352 in <module>                │
│                                                                     │
│   351 │   )                                                         │
│ ❱ 352 │   fire.Fire(train)                                          │
│ /usr/lib/python3.10/site-packages/torch/_tensor.py:487 in backward  │
│                                                                     │
│ ❱ 487 │   │   torch.autograd.backward(                              │
╰─────────────────────────────────────────────────────────────────────╯
OutOfMemoryError: HIP out of memory. Tried to allocate 172.00 MiB (GPU 2; 63.98
GiB total capacity; 61.50 GiB already allocated; 1.25 GiB free; 62.00 GiB
reserved in total by PyTorch)
"""
    found = read_log(text, "log").out_of_memory
    assert found is not None
    assert (found.phase, found.gpu, found.capacity_gib) == ("backward", 2, 63.98)
    assert found.unallocated_gib == 0.5
    assert found.frames == (
        "axolotl/scripts/finetune.py:352 <module>: fire.Fire(train)",
        "site-packages/torch/_tensor.py:487 backward: torch.autograd.backward(",
    )


def test_degrees_are_read_where_the_dump_is_cut_off() -> None:
    text = (
        "using world size: 16, data-parallel size: 2, context-parallel size: 1, "
        "tensor-model-parallel size: 4, pipeline-model-parallel size: 2\n"
        " iteration 5/ 9 | elapsed time per iteration (ms): 2000.0 | "
        "global batch size:    64 |\n"
    )
    log = read_log(text, "log")
    values = {name: said.value for name, said in log.launch.values.items()}
    assert values == {"tp": 4, "pp": 2, "gpus": 16, "training.global_batch": 64}


def test_lines_of_ranks_without_labels_are_one_step() -> None:
    rows = [
        f"[titan] 2026-02-24 19:46:{10 + 2 * step:02d},5{late}0 - root - INFO - "
        f"step:  {step}  loss:  7.6  memory: 66.91GiB(37.51%)  tps: 10,050"
        for step in range(1, 7)
        for late in range(3)
    ]
    rows[8], rows[9] = rows[9], rows[8]  # a line of step 3 behind one of step 4
    log = read_log("\n".join(rows), "log")
    assert log.steps is not None
    assert (log.steps.count, log.notes) == (4, ())
    assert log.steps.step_s == pytest.approx(2.0, abs=0.03)


def test_iterations_number_the_steps_of_a_log_without_global_steps() -> None:
    """The lines of two ranks are of one step, as they are where both are counted."""
    text = text_of("lightning_log.1.txt")
    lines = [
        copy
        for line in text.splitlines()
        for copy in dict.fromkeys((line, line.replace("0: ", "1: ", 1)))
    ]
    both = "\n".join(lines)
    assert (
        told(read_log(both, "a.log"))["steps"] == told(read_log(text, "a.log"))["steps"]
    )
    without = re.sub(r"global_step: \d+ \| ", "", both)
    assert told(read_log(without, "a.log")) == told(read_log(both, "a.log"))


def test_steps_before_memory_ran_out_are_those_of_the_newest_bar() -> None:
    bars = "".join(f"\r 1%|# | {n}/99 [00:{n:02d}<01:00, 1.00s/it]" for n in range(48))
    error = read_log(f"{bars}\n{{'loss': 1.0, 'epoch': 0}}\n{MESSAGE}", "log")
    assert error.out_of_memory is not None
    assert error.out_of_memory.step == 47


def test_memory_that_a_library_lacks_is_told() -> None:
    text = (
        " iteration 5/ 9 | elapsed time per iteration (ms): 2000.0 |\n"
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`\n"
    )
    log = read_log(text, "log")
    assert log.out_of_memory is None
    assert log.died.startswith("line 2: CUBLAS_STATUS_ALLOC_FAILED: a library found")


def test_a_number_beyond_all_measurements_is_none() -> None:
    text = "{'train_runtime': 9e999, 'train_steps_per_second': 2.0, 'loss': 1.0}\n"
    with pytest.raises(SpecError, match="tells nothing of a run"):
        read_log(text, "log")


SNAPSHOT = "torch_snapshot.1.json"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (text_of(SNAPSHOT)[:-40], "as JSON, not cut off"),
        ('{"segments": 1, "device_traces": {}}', "tells nothing of a run"),
        (
            '{"segments": [{"device": true, "total_size": -1}]}',
            "tells nothing of a run",
        ),
        ('{"segments": ' + "[" * 100_000, "as JSON, not cut off"),
    ],
)
def test_what_is_no_snapshot_is_refused(text: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        read_log(text, "memory.json")


def test_a_pickled_snapshot_is_never_read(tmp_path: Path) -> None:
    path = tmp_path / "memory.pickle"
    path.write_bytes(pickle.dumps(json.loads(text_of(SNAPSHOT))))
    done = run("diagnose", str(path))
    assert done.code == 2
    assert "a pickle, which is never read" in done.stderr


def test_the_first_allocation_that_failed_counts() -> None:
    data = json.loads(text_of(SNAPSHOT))
    trace = data["device_traces"][0]
    trace.append({"action": "oom", "size": 5, "device_free": 0, "frames": []})
    found = read_log(json.dumps(data), "memory.json").out_of_memory
    assert found is not None
    assert (found.tried_gib, found.phase) == (17.5, "loss")
    assert [frame.split(" ")[1] for frame in found.frames] == [
        "main:", "fixed_cross_entropy:", "cross_entropy:",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "digits"),
    [
        ("deepspeed_log.2.txt", r"(?<=: )\d+\.\d+"),
        ("deepspeed_log.3.txt", r"\d+\.\d+(?= m?s)"),
        ("hf_trainer_log.1.txt", r"\d\.\d\d(?=s/it)"),
        ("megatron_log.2.txt", r"(?<=: )\d+\.\d+|\d+\.\d+(?=[,)])"),
        ("torchtitan_log.2.txt", r"(?<=: )\d[\d,]*\.?\d*"),
        ("megatron_bridge_log.1.txt", r"(?<=: )\d+\.?\d*"),
        ("lightning_log.1.txt", r"(?<=: )\d+\.?\d*(?:e\+\d\d)?"),
    ],
)
@pytest.mark.parametrize("broken", ["1.2.3", ".", "1" * 19, "9e999", "-1", "1,,2"])
def test_numbers_that_are_none_are_left_out(
    name: str, digits: str, broken: str
) -> None:
    with contextlib.suppress(SpecError):
        read_log(re.sub(digits, broken, text_of(name)), name, name.partition(".")[0])


REPEATED = {
    "torchtitan_log": "Building a b with {\nRunning with configs: {\n",
    "hf_trainer_log": "config: {\nTrainingArguments(\na='b\n",
    "deepspeed_log": 'json = {\n"a": {\nfwd latency: 1 s\n',
    "megatron_bridge_log": "------- Task Configuration -------\na: {\n",
    "megatron_log": "a ...... b\n torchrun --a --b --c --tensor-model-parallel-size\n",
    "lightning_log": "|1/9 [00:01<00:01|2/8 [00:01<00:01\nval_loss .ckpt\n",
    "torch_error": 'out of memory\n  File "a", line 1, in b\n',
}


def read_s(kind: str, times: int) -> float:
    """Return how long the processor reads a log that repeats a few lines."""
    start = time.process_time()
    with contextlib.suppress(SpecError):
        read_log(REPEATED[kind] * times, "log", kind)
    return time.process_time() - start


@pytest.mark.parametrize("kind", REPEATED)
def test_time_grows_with_a_log_and_not_with_its_square(kind: str) -> None:
    """Eight times the lines take 8 times as long, and 64 times by their square."""
    short_s, long_s = read_s(kind, 1_000), read_s(kind, 8_000)
    assert long_s < 16 * short_s + 0.5


MUTANTS_S = 0.5
"""Of the processor, for one mutant of a log of some kilobytes."""


@pytest.mark.parametrize("name", INDEX)
def test_lines_in_any_order_are_read_or_refused(name: str) -> None:
    """Interleaving, cuts and repeats of lines, beside the bytes that fuzzing breaks."""
    draw, lines = random.Random(7), text_of(name).split("\n")
    for _ in range(6):
        some = draw.choices(lines, k=max(1, len(lines)))
        at = draw.randrange(len(lines))
        for mixed in (some, lines[at:] + lines[:at], lines[: at + 1] * 2):
            start = time.process_time()
            with contextlib.suppress(SpecError):
                read_log("\n".join(mixed), "log", name.partition(".")[0])
            assert time.process_time() - start < MUTANTS_S


@pytest.mark.parametrize("name", INDEX)
def test_every_log_is_imported_as_the_beginning_of_a_spec(name: str) -> None:
    text, notes = log_text(FOLDER / name, None)
    spec = yaml.safe_load(text) or {}
    assert spec.keys() <= {"model", "framework", "training", "pins"}
    assert "a spec needs: cluster" in notes[-1]
    assert ("takes it beside SPEC.yaml" in text) == bool(
        read_log(text_of(name), name).measured
    )


def test_import_prints_the_spec_and_the_run_of_a_log(tmp_path: Path) -> None:
    path = FOLDER / "torchtitan_log.1.txt"
    done = run("import", str(path))
    assert done.code == 0, done.stderr
    spec = yaml.safe_load(done.stdout)
    assert spec["training"] == {
        "seq_len": 8192, "global_batch": 8, "compile": False, "precision": "bf16",
    }  # fmt: skip
    assert spec["pins"]["dp_shard"] == 8
    assert done.stdout == run("import", "torchtitan_log", str(path)).stdout
    assert "cluster (8 x NVIDIA H200)" in done.stderr
    head, _, rows = done.stdout.partition("as `meshwright calibrate RUNS` takes it")
    assert "measured: 1.1586 s a step, the median of 49 steps" in head
    entry = yaml.safe_load("\n".join(row[2:] for row in rows.splitlines()[1:]))
    (tmp_path / "SPEC.yaml").write_text(head + CLUSTER)
    (tmp_path / "runs.yaml").write_text(yaml.safe_dump(entry))
    priced, unpriced = price_runs(read_runs(tmp_path / "runs.yaml"))
    assert not unpriced
    assert (priced[0].run.step_s, priced[0].plan.dp_shard) == (1.1586, 8)


def test_a_step_is_written_with_the_digits_of_its_log() -> None:
    log = read_log(text_of("torchtitan_log.1.txt"), "log")
    assert log.steps is not None
    log = replace(log, steps=replace(log.steps, step_s=6.0809999999999995))
    assert log.measured["step_time_s"] == 6.081


CLUSTER = "\ncluster: {topology: {preset: dgx-h100, gpu: h200-sxm-141gb}}\n"


def test_memory_that_ran_out_under_no_plan_is_no_run(tmp_path: Path) -> None:
    """Else it was a run of the best plan, which fits."""
    path = FOLDER / "torch_error.1.txt"
    spec = (
        "model: llama3-8b\ncluster: 8xH100\ntraining: {seq_len: 64, global_batch: 8}\n"
    )
    (tmp_path / "spec.yaml").write_text(spec)
    with pytest.raises(SpecError, match=r"says no plan, and memory ran out; pin what"):
        runs_of_logs(str(tmp_path / "spec.yaml"), [path])
    (tmp_path / "spec.yaml").write_text(f"{spec}pins: {{tp: 1}}\n")
    ((found,), _) = runs_of_logs(str(tmp_path / "spec.yaml"), [path])
    assert found.measured.fits is False


def test_a_log_is_a_run_of_a_spec(tmp_path: Path) -> None:
    path, smi = FOLDER / "torchtitan_log.1.txt", FOLDER / "nvidia_smi_dmon.1.txt"
    spec = tmp_path / "spec.yaml"
    spec.write_text(run("import", str(path)).stdout + CLUSTER)
    runs, notes = runs_of_logs(str(spec), [path, smi])
    assert runs[0].measured.step_time_s == 1.1586
    assert runs[0].measured.peak_memory_kind == "reserved"
    assert any(
        "70.00 GiB device at the peak of the fullest of 3" in note for note in notes
    )
    priced, unpriced = price_runs(runs)
    assert not unpriced
    assert priced[0].plan.recompute == "selective"
    out = str(tmp_path / "profile.yaml")
    alone = run("calibrate", str(path), "-o", out)
    assert (alone.code, "expected the spec of its run" in alone.stderr) == (2, True)
    spec.write_text(spec.read_text().replace("seq_len: 8192", "seq_len: 4096"))
    other = run("calibrate", str(spec), str(path), "-o", out)
    assert other.code == 2
    assert "torchtitan_log.1.txt:10: training.seq_len: 8192" in other.stderr


def test_calibrate_takes_a_spec_and_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Run] = []

    def stop(runs: list[Run], *_: object) -> None:
        seen.extend(runs)
        raise SpecError("that is enough")

    monkeypatch.setattr("meshwright.calibration.calibrate.calibrate", stop)
    path, spec = FOLDER / "torchtitan_log.1.txt", tmp_path / "spec.yaml"
    spec.write_text(run("import", str(path)).stdout + CLUSTER)
    done = run("calibrate", str(spec), str(path), "-o", str(tmp_path / "profile.yaml"))
    assert "that is enough" in done.stderr
    assert [one.measured.peak_memory_gb for one in seen] == [49.59]
