"""verl's configuration, by Hydra: every override must name a field that it has.

verl needs its engines to be imported; `VERL` names its sources, of which the folder
`verl/trainer/config` is read.
"""

from __future__ import annotations

import os

from common import Launch, MissingError, expect, main, same

FIELDS = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}


def prepare() -> None:
    """Import what takes long."""
    if "VERL" not in os.environ:
        raise MissingError("the variable VERL names no sources of verl")
    import hydra  # noqa: F401


def check(job: Launch) -> None:
    """Compose the configuration as `main_ppo` does, and compare what it says."""
    from hydra import compose, initialize_config_dir

    at = job.words.index("--config-name")
    same("program", job.words[:at], ["python", "-m", "verl.trainer.main_ppo"])
    folder = os.path.join(os.environ["VERL"], "verl", "trainer", "config")
    with initialize_config_dir(config_dir=folder, version_base=None):
        config = compose(job.words[at + 1], overrides=job.words[at + 2 :])
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    core, plan = actor.megatron, job.facts["plan"]
    for field, name in FIELDS.items():
        same(field, core[name], plan[field])
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    same("GPUs", ranks, job.gpus)
    batch = actor.ppo_mini_batch_size * rollout.n
    same("batch", batch, job.facts["global_batch"])
    rows = actor.ppo_micro_batch_size_per_gpu * job.facts["data_parallel"]
    same("micro-batches", batch // rows, plan["microbatches"])
    passes = rollout.log_prob_micro_batch_size_per_gpu
    expect(passes == actor.ppo_micro_batch_size_per_gpu, "log-probabilities: rows")
    expect(config.algorithm.adv_estimator == "grpo", "a critic, which has no room")
    lengths = config.data.max_prompt_length + config.data.max_response_length
    same("sequence", lengths, job.facts["seq_len"])
    same("zero", int(core.use_distributed_optimizer), plan["zero"])
    if plan["tp"] > 1:
        same("sequence parallel", core.sequence_parallel, plan["sequence_parallel"])
    said = core.override_transformer_config.recompute_granularity or "none"
    same("recompute", said, plan["recompute"])
    # Weights go to the engine after an update; nothing gathers what waits.
    waits = core.override_ddp_config.get("overlap_param_gather", False)
    expect(not waits, "parameters that the engine would get before they are gathered")
    variables = config.ray_kwargs.ray_init.runtime_env.env_vars
    expect(
        all(isinstance(variable, str) for variable in variables.values()),
        "Ray takes texts",
    )
    expect(config.data.train_batch_size >= actor.ppo_mini_batch_size, "too few prompts")


if __name__ == "__main__":
    main(check, prepare)
