"""Questions about what starts a training, without a spec beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command import run, unwrapped

AUTOMODEL = """\
step_scheduler: {global_batch_size: 64, local_batch_size: 2}
model: {pretrained_model_name_or_path: Qwen/Qwen3-8B, torch_dtype: bfloat16}
packed_sequence: {packed_sequence_size: 4096}
distributed: {tp_size: 2, activation_checkpointing: true}
"""

TRAINER = """\
from trl import SFTConfig, SFTTrainer
args = SFTConfig(max_length=2048, per_device_train_batch_size=2)
SFTTrainer("Qwen/Qwen3-8B", args=args).train()
"""

LLAMA_FACTORY = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
finetuning_type: lora
cutoff_len: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
"""

TORCHTITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
[parallelism]
tensor_parallel_degree = 2
"""

OSS = """\
torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py \\
  --hf-checkpoint openai/gpt-oss-20b \\
  --pipeline-model-parallel-size {} --expert-model-parallel-size 2 --bf16 \\
  --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 64 \\
  --seq-length 2048 --recompute-granularity full --recompute-method uniform \\
  --recompute-num-layers 1
"""

VLLM = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2\n"


def refused(*words: str) -> str:
    told = run(*words)
    assert (told.code, told.stdout) == (2, ""), told
    assert told.stderr.count("error: ") == 1
    return unwrapped(told.stderr)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(AUTOMODEL)
    (tmp_path / "lora.yaml").write_text(LLAMA_FACTORY)
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "titan.toml").write_text(TORCHTITAN)
    (tmp_path / "serve.sh").write_text(VLLM)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "gpus", "title"),
    [
        ("recipe.yaml", "8", "qwen3-8b on 8 x h100-sxm-80gb (dgx-h100), fsdp, bf16, "
         "sequence 4,096, batch 64"),
        # 2 x 4 sequences a rank, and 2 a rank on 8 / 2 ranks.
        ("lora.yaml", "4", "llama3-8b on 4 x h100-sxm-80gb (dgx-h100), fsdp, "
         "bf16, sequence 2,048, batch 32"),
        ("train.py", "8", "qwen3-8b on 8 x h100-sxm-80gb (dgx-h100), fsdp, bf16, "
         "sequence 2,048, batch 16"),
        ("titan.toml", "8", "llama3-8b on 8 x h100-sxm-80gb (dgx-h100), torchtitan, "
         "bf16, sequence 4,096, batch 8"),
    ],
)  # fmt: skip
def test_a_file_that_starts_training_says_model_and_job(
    folder: Path, file: str, gpus: str, title: str
) -> None:
    told = run("explain", "--plan", file, "--gpu", "h100", "--count", gpus)
    assert told.code == 0, told.stderr
    assert unwrapped(told.stdout).startswith(title)
    assert "taken as the bundled" in told.stderr or file == "titan.toml"
    assert f"explain --gpu h100 --count {gpus} --plan {file}" in unwrapped(told.stdout)


def test_an_option_that_contradicts_the_file_is_refused(folder: Path) -> None:
    words = ("--cluster", "dgx-h100", "--seq-len", "1k")
    told = refused("explain", "--plan", "lora.yaml", *words)
    assert "lora.yaml:3: cutoff_len: 2048: the spec's training.seq_len is 1024" in told


def test_the_first_plan_says_model_and_job_of_a_comparison(folder: Path) -> None:
    told = run("compare", "--plan", "recipe.yaml", "--plan", "tp=1", "--gpu", "h100")
    assert unwrapped(told.stdout).startswith("qwen3-8b on 1 x h100-sxm-80gb")


def test_what_starts_a_training_is_exported_to_another_program(folder: Path) -> None:
    asked = ("--plan", "lora.yaml", "--gpu", "h100", "--count", "4")
    told = run("export", *asked, "--to", "axolotl", "-o", "written")
    assert told.code == 0, told.stderr
    again = run(
        "explain", "--plan", "written/axolotl.yaml", *asked[2:], "--batch", "32"
    )
    first = run("explain", *asked)
    assert (
        unwrapped(again.stdout).partition("Distance")[0]
        == (unwrapped(first.stdout).partition("Distance")[0])
    )


def test_what_the_file_lacks_is_asked_for(folder: Path) -> None:
    told = refused("explain", "--plan", "lora.yaml")
    assert "--cluster: missing, and not in lora.yaml; expected" in told
    told = refused("explain", "--plan", "lora.yaml", "--cluster", "nonsense")
    assert "--cluster: cluster.topology: 'nonsense' is neither" in told


@pytest.mark.parametrize(("stages", "is_cut"), [("8", True), ("4", False)])
def test_stages_that_cut_patterns_are_priced_whole(
    folder: Path, stages: str, is_cut: bool
) -> None:
    """24 layers alternate by two: 8 stages have three, which no price is for."""
    (folder / "oss.sh").write_text(OSS.format(stages))
    told = run("explain", "--plan", "oss.sh", "--gpu", "b200")
    assert "pins.layers" not in told.stdout
    assert ("3, 3 layers cut patterns of 2; whole ones" in told.stderr) == is_cut
    assert told.code == 0, told.stdout + told.stderr


@pytest.mark.parametrize("command", ["solve", "explain", "compare", "export"])
@pytest.mark.parametrize("file", ["recipe.yaml", "titan.toml"])
def test_no_spec_is_expected_of_a_file_that_starts_training(
    folder: Path, command: str, file: str
) -> None:
    more = ("-o", "out") if command == "export" else ()
    told = refused(command, file, *more)
    assert f"{file}: is no spec; it starts training (" in told
    assert f"explain --plan {file}" in told
    assert f"import {file} -o SPEC.yaml" in told


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("run.log", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.2 "
         "GiB. GPU 0 has a total capacity of 79.1 GiB\n",
         "it is the log of a run (torch_error): meshwright diagnose run.log"),
        ("topo.txt", "\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n",
         "it describes a cluster (nvidia_smi): --cluster topo.txt"),
        ("config.json", '{"model_type": "llama", "hidden_size": 512}',
         "it describes a model (hf): --model config.json --cluster NAME"),
    ],
)  # fmt: skip
def test_no_spec_is_expected_of_other_files(
    folder: Path, file: str, text: str, told: str
) -> None:
    (folder / file).write_text(text)
    assert f"{file}: is no spec; {told}" in refused("solve", file)


@pytest.mark.parametrize(
    ("word", "meant"), [("estimate", "explain"), ("plan", "solve"), ("oom", "diagnose")]
)
def test_words_of_other_tools_name_the_command(word: str, meant: str) -> None:
    told = run(word, "x.yaml")
    assert told.code == 2
    assert f"Did you mean '{meant}'?" in unwrapped(told.stderr)


def test_an_engine_is_asked_about_without_a_spec() -> None:
    words = "inference={batch: 8, prompt_len: 1024, output_len: 256}"
    told = run("solve", "--model", "llama3-8b", "--gpu", "h100", "--set", words)
    assert told.code == 0, told.stderr
    assert "inference, bf16, prompt 1,024, output 256, batch 8" in unwrapped(
        told.stdout
    )


def test_a_log_is_not_asked_for_what_was_given(folder: Path) -> None:
    (folder / "run.log").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.21 GiB.\n"
    )
    told = refused("diagnose", "run.log")
    assert "add what started it (--launch FILE), or --model NAME" in told
    told = refused("diagnose", "run.log", "--launch", "recipe.yaml")
    assert told.endswith(
        "does not say all of the run; add --cluster NAME or --gpu NAME"
    )


def test_a_script_that_starts_another_names_it(folder: Path) -> None:
    lines = "#!/bin/bash\n#SBATCH --nodes=2\nsrun --ntasks-per-node=1 bash launch.sh\n"
    (folder / "job.slurm").write_text(lines)
    told = "job.slurm: a script that starts no trainer that is known; it starts launch"
    spec = ("--model", "qwen3-8b", "--gpu", "h100")
    assert told in refused("explain", *spec, "--plan", "job.slurm")
    assert told in refused("import", "job.slurm")
    (folder / "job.slurm").write_text(f"{lines}exec torchrun --nnodes 2 mine.py\n")
    assert "it starts launch.sh" in refused("explain", "--plan", "job.slurm")
    (folder / "job.slurm").write_text("#!/bin/bash\nexec torchrun --nnodes 2 mine.py\n")
    told = "job.slurm: a script that starts no trainer that is known; it starts mine.py"
    assert told in refused("explain", "--plan", "job.slurm", "--gpu", "h100")
    (folder / "mine.py").write_text("import torch\n")
    told = "mine.py: a program that starts no trainer that is known"
    assert told in refused("explain", *spec, "--plan", "mine.py")
    (folder / "job.slurm").write_text("#!/bin/bash\nnvidia-smi\n")
    assert refused("import", "job.slurm").endswith("no trainer that is known")


def test_files_that_are_no_plan_are_told_apart(folder: Path) -> None:
    (folder / "run.log").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.21 GiB.\n"
    )
    spec = ("--model", "qwen3-8b", "--gpu", "h100")
    told = refused("explain", *spec, "--plan", "run.log")
    assert told.endswith("(torch_error): meshwright diagnose run.log")
    (folder / "mine.yaml").write_text("model: qwen3-8b\npins: {tp: 1}\n")
    assert run("explain", *spec, "--plan", "mine.yaml").code == 0
    (folder / "mine.yaml").write_text("model: qwen3-8b\n")
    told = refused("explain", *spec, "--plan", "mine.yaml")
    assert told.endswith("is a spec without pins; expected the fields of a plan")


def test_a_log_of_an_engine_names_the_section_that_asks_about_it(folder: Path) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 462.00 MiB.\n"
    (folder / "run.log").write_text(f"(VllmWorker rank=1 pid=2211) ERROR {line}")
    told = refused("diagnose", "run.log", "--model", "qwen3-8b")
    assert told.endswith("an engine is asked about by `inference` in a spec")
    (folder / "run.log").write_text(line)
    assert "an engine" not in refused("diagnose", "run.log", "--model", "qwen3-8b")


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("cutoff_len: 2048\n", "training.seq_len"),
        # A batch by the rank is one on ranks that are known, and here they are not.
        ("per_device_train_batch_size: 2\n", "training.global_batch"),
    ],
)
def test_a_launch_without_a_number_is_not_judged_and_no_error(
    option: str, field: str, folder: Path
) -> None:
    (folder / "lora.yaml").write_text(LLAMA_FACTORY.replace(option, ""))
    told = run("check", "lora.yaml", "--cluster", "dgx-h100")
    assert told.code == 0
    assert f"not judged on the cluster: it does not say {field}" in (
        unwrapped(told.stdout)
    )


@pytest.mark.parametrize(("cluster", "code"), [("dgx-h100", 0), ("2xRTX3090", 1)])
def test_a_batch_by_the_rank_is_judged_as_explain_judges_it(
    folder: Path, cluster: str, code: int
) -> None:
    lines = LLAMA_FACTORY.replace("batch_size: 2", "batch_size: 8")
    (folder / "lora.yaml").write_text(lines)
    judged = run("check", "lora.yaml", "--cluster", cluster)
    explained = run("explain", "--plan", "lora.yaml", "--cluster", cluster)
    assert (judged.code, explained.code) == (code, code)
    assert "not judged" not in judged.stdout


@pytest.mark.parametrize(
    "command",
    [VLLM, "python -m vllm.entrypoints.openai.api_server -pp 4\n",
     "python3 -m sglang.launch_server --tp 2\n"],
)  # fmt: skip
def test_commands_of_engines_say_how_these_are_asked_about(
    folder: Path, command: str
) -> None:
    (folder / "serve.sh").write_text(command)
    told = refused("import", "serve.sh")
    assert "serve.sh: starts an engine, which is asked about by `inference`" in told
    told = refused("import", "missing.sh")
    assert "missing.sh: no such file" in told


def test_a_launch_whose_files_are_elsewhere_is_asked_for_its_model(
    tmp_path: Path,
) -> None:
    script = tmp_path / "run.sh"
    script.write_text("accelerate launch --config_file absent.yaml train.py\n")
    words = ["explain", "--plan", str(script), "--gpu", "h100", "--count", "2"]
    done = run(*words)
    assert (done.code, "internal error" in done.stderr) == (2, False)
    assert "--model: missing, and not in" in done.stderr
    done = run(*words, "--model", "gpt-1.3b", "--batch", "8", "--seq-len", "512")
    assert "assumed the framework fsdp" in done.stderr
    assert "no such file beside it" in done.stderr
    assert "fsdp, bf16, sequence 512" in done.stdout
