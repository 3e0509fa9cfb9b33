"""Nanotron's own checks: its file, strictly, and what its configuration asserts.

Nanotron is on no registry: `PYTHONPATH` names its `src`.
"""

from __future__ import annotations

from common import Launch, MissingError, main, same, stand_in_for

KERNELS = ("flash_attn", "ring_flash_attn", "grouped_gemm", "functorch", "datatrove")
"""Packages that need a GPU to be built, and that no configuration calls."""


def prepare() -> None:
    """Import what takes long."""
    stand_in_for(*KERNELS)
    try:
        import nanotron.config  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "nanotron":
            raise
        raise MissingError("PYTHONPATH names no sources of Nanotron") from None


def check(job: Launch) -> None:
    """Read the file as `run_train.py` does, and compare what it says."""
    from nanotron.config import get_config_from_file
    from nanotron.parallel.pipeline_parallel.engine import (
        OneForwardOneBackwardPipelineEngine,
    )
    from nanotron.parallel.tensor_parallel.nn import TensorParallelLinearMode

    words = job.program_words()
    same("program", words[:2], ["program.py", "--config-file"])
    config, plan = get_config_from_file(words[2]), job.facts["plan"]
    degrees = config.parallelism
    for name, read in (
        ("tp", degrees.tp),
        ("pp", degrees.pp),
        ("cp", degrees.context_parallel_size),
        ("ep", degrees.expert_parallel_size),
        ("micro_batch", config.tokens.micro_batch_size),
        ("microbatches", config.tokens.batch_accumulation_per_replica),
        ("zero", config.optimizer.zero_stage),
    ):
        same(name, read, plan[name])
    same("dp", degrees.dp, job.facts["data_parallel"])
    ranks = degrees.dp * degrees.tp * degrees.pp * degrees.context_parallel_size
    same("GPUs", ranks, job.gpus)
    same("batch", config.global_batch_size, job.facts["global_batch"])
    same("sequence", config.tokens.sequence_length, job.facts["seq_len"])
    split = degrees.tp_mode is TensorParallelLinearMode.REDUCE_SCATTER
    same("sequence parallel", split, plan["sequence_parallel"])
    one = isinstance(degrees.pp_engine, OneForwardOneBackwardPipelineEngine)
    same("schedule", "1f1b" if one else "gpipe", plan["schedule"])
    again = "full" if degrees.recompute_layer else "none"
    same("recompute", again, plan["recompute"])
    sizes = config.model.model_config
    same("layers", sizes.num_hidden_layers, job.facts["n_layers"])
    same("kv heads", sizes.num_key_value_heads, job.facts["n_kv_heads"])


if __name__ == "__main__":
    main(check, prepare)
