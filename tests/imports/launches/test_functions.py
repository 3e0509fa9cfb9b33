"""Files with several configurations, and words of today's frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.plan import Sizes, decide
from meshwright.imports.read import read_launch
from tests.helpers.command import run

REGISTRY = """
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

def llama3_small():
    model_spec = model_registry("8B", attn_backend="varlen")
    return Trainer.Config(
        model_spec=model_spec,
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * 4096,
            num_tokens_per_train_step=64 * 4096,
            max_context_length=4096,
        ),
    )

def llama3_large():
    compile_config = CompileConfig(enable=True, enable_async_tensor_parallel=True)
    return Trainer.Config(
        model_spec=model_registry(
            "405B",
            converters=[
                Float8LinearConverter.Config(model_compile_enabled=True),
            ],
        ),
        training=TrainingConfig(local_batch_size=2, seq_len=8192),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        compile=compile_config,
    )

def llama3_small_cp():
    config = llama3_small()
    config.parallelism.context_parallel_degree = 2
    return config
"""


def registry(folder: Path, function: str = "") -> Path:
    path = folder / "config_registry.py"
    path.write_text(REGISTRY)
    return Path(f"{path}:{function}") if function else path


def test_several_configurations_are_asked_about(tmp_path: Path) -> None:
    path = registry(tmp_path)
    with pytest.raises(mw.SpecError, match="llama3_small, llama3_large, llama3_small"):
        read_launch(path)
    with pytest.raises(mw.SpecError, match="has no function other; accepted: llama3_s"):
        read_launch(Path(f"{path}:other"))
    done = run("import", f"{path}:llama3_large")
    assert done.code == 0
    assert "n_layers: 126" in done.stdout


def test_batches_in_tokens_are_read(tmp_path: Path) -> None:
    launch = read_launch(registry(tmp_path, "llama3_small"))
    assert launch.value("training.seq_len") == 4096
    assert launch.value("micro_batch") == 2
    assert launch.value("training.global_batch") == 64
    assert launch.value("training.attention") == "flash2"
    assert (launch.value("model.n_layers"), launch.value("model.d_model")) == (32, 4096)
    assert not [*launch.unknown, *launch.unset]


def test_compilation_and_float8_of_a_function_are_read(tmp_path: Path) -> None:
    launch = read_launch(registry(tmp_path, "llama3_large"))
    assert launch.value("training.compile") is True
    assert launch.value("training.overlap.tp") is True
    assert launch.value("precision") == "fp8"
    assert launch.value("local_batch") == 2
    assert not launch.unknown


def test_a_function_has_what_those_that_it_calls_set(tmp_path: Path) -> None:
    launch = read_launch(registry(tmp_path, "llama3_small_cp"))
    assert (launch.value("cp"), launch.value("micro_batch")) == (2, 2)


def megatron(folder: Path, options: str) -> Launch:
    path = folder / "run.sh"
    head = "torchrun --nproc-per-node 8 --nnodes 3 pretrain_gpt.py "
    path.write_text(f"{head}--micro-batch-size 1 --bf16 {options}\n")
    return read_launch(path)


FSDP = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (FSDP + "--megatron-fsdp-main-grads-dtype bf16", "training.gradients", "bf16"),
        (FSDP, "training.gradients", "fp32"),
    ],
)
def test_types_of_gradients(
    options: str, field: str, value: Any, tmp_path: Path
) -> None:
    assert megatron(tmp_path, options).value(field) == value


def test_another_dispatch_than_deepep_is_told(tmp_path: Path) -> None:
    flex = "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend "
    told = megatron(tmp_path, flex + "hybridep").unjudged
    assert any("hybridep is not judged: DeepEP" in line for line in told)
    assert not megatron(tmp_path, flex + "deepep").unjudged


def test_degrees_that_do_not_fit_the_gpus_are_told(tmp_path: Path) -> None:
    degrees = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4"
    launch = megatron(tmp_path, degrees)
    decide(launch, Sizes(24, 16))
    assert any("16 GPUs do not fit 24 GPUs" in line for line in launch.notes())


def test_a_layout_without_stages_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "run.py train.micro_batch_size=1 model.recompute_modules=[mlp] "
        "model.pipeline_model_parallel_layout='Et*2|t*2L'\n"
    )
    launch = read_launch(path)
    decide(launch, Sizes(8, 4))
    assert "recompute_granularity is not in the file" in str(launch.unjudged)
    assert "the pipeline-parallel size is not in the file" in str(launch.unjudged)


def test_auto_means_a_model_that_is_not_split(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text(
        '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", '
        '"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'
    )
    launch = read_launch(tmp_path / "zero3.json")
    pins = decide(launch, Sizes(16, 32)).pins
    assert (pins["tp"], pins["pp"], pins["dp_shard"]) == (1, 1, 16)


OF_THE_HUB = """\
from megatron.bridge import AutoBridge
from megatron.bridge.training.config import ConfigContainer

def pretrain_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("zai-org/{}").to_megatron_provider(
        load_weights=False
    )
    cfg.model.seq_length = 4096
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.pipeline_model_parallel_size = 13
    cfg.model.expert_model_parallel_size = 32
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 1024
    return cfg
"""


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("GLM-5.2", {"preset": "glm-5.2", "mtp_layers": 1}),
        ("Other", {"details": {"hub": "zai-org/Other"}}),
    ],
)
def test_a_model_of_the_hub_without_sizes_is_the_bundled_one(
    tmp_path: Path, name: str, model: Any
) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(OF_THE_HUB.format(name))
    found = mw.import_file(path)
    assert found.fields["model"] == model
    assert found.fields["pins"]["pp"] == 13
    is_taken = any("taken as the bundled glm-5.2" in note for note in found.notes)
    assert is_taken == (name == "GLM-5.2")
