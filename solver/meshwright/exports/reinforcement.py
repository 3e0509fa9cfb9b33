"""Plans of Megatron as the actor of verl and slime, which learn from answers.

Both start their ranks by Ray. A plan is that of an update of the actor; the engine that
writes the answers holds `limits.reserved_gib` of every GPU beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from meshwright.exports import megatron
from meshwright.exports.files import ExportedFile, Refusal, Setting, model_page, unsaid
from meshwright.exports.launch import RAY, TRIAL_STEPS, Program, Seats, launch_files
from meshwright.exports.megatron import OPTIMIZERS, core_settings, is_precision_aware
from meshwright.exports.target import Target
from meshwright.frameworks.base.registry import overlap_of
from meshwright.plans.plan import Plan
from meshwright.plans.ranks import rank_map
from meshwright.spec.spec import Spec

ANSWERS = (8, 4, 2, 1)
"""Answers to a prompt, of which the first is taken that divides the batch."""

ENGINE_SHARE = 0.5
"""Share of a GPU's memory for the engine, where the spec reserves nothing."""

ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron"
ROLLOUT = "actor_rollout_ref.rollout"


def _share(spec: Spec) -> tuple[float, str]:
    """Return the share of a GPU's memory that the engine gets, and why."""
    held = spec.limits.reserved_gib
    if held is None:
        why = "yours: limits.reserved_gib is not in the spec, so the plan counts on "
        return ENGINE_SHARE, why + "an engine that sleeps while the actor learns"
    share = held / spec.cluster.topology.gpu.memory_gib
    return round(share, 3), f"limits.reserved_gib {held:g}, which the plan leaves free"


class _Rollout(NamedTuple):
    """The samples of one step, and where: sizes that both trainers are told."""

    hosts: int
    gpus_per_host: int
    prompts: int
    answers: int
    """To each prompt."""
    prompt_tokens: int
    answer_tokens: int


def _rollout(spec: Spec, plan: Plan) -> _Rollout:
    """Return the rollout whose answers are the batch of a spec: an update a step."""
    seats, batch = Seats(rank_map(spec.cluster, plan)), spec.training.global_batch
    answers = next(count for count in ANSWERS if batch % count == 0)
    prompt_tokens = spec.training.seq_len // 4
    return _Rollout(
        len(seats.hosts),
        seats.counts[0],
        batch // answers,
        answers,
        prompt_tokens,
        spec.training.seq_len - prompt_tokens,
    )


def _verl(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the overrides of verl's `ppo_megatron_trainer`."""
    rollout = _rollout(spec, plan)
    yield Setting("trainer.nnodes", rollout.hosts, "hosts of the plan")
    yield Setting("trainer.n_gpus_per_node", rollout.gpus_per_host, "GPUs of a host")
    yield Setting("trainer.total_training_steps", TRIAL_STEPS, "a trial; yours")
    why = "a quarter of training.seq_len"
    yield Setting("data.max_prompt_length", rollout.prompt_tokens, why)
    why = "the rest of training.seq_len"
    yield Setting("data.max_response_length", rollout.answer_tokens, why)
    batch = spec.training.global_batch
    why = f"training.global_batch {batch} over rollout.n: an update a step"
    yield Setting("data.train_batch_size", rollout.prompts, why)
    yield Setting(f"{ACTOR}.ppo_mini_batch_size", rollout.prompts, why)
    yield Setting(f"{ROLLOUT}.n", rollout.answers, "answers to a prompt; yours")
    micro = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    yield Setting(micro, plan.micro_batch, "plan.micro_batch")
    yield Setting(f"{ACTOR}.use_dynamic_bsz", False, "micro-batches of as many")
    why = "plan.micro_batch: a forward pass fits where an update does"
    micro = f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"
    yield Setting(micro, plan.micro_batch, why)
    why = "advantages without a critic, which the plan leaves no room for"
    yield Setting("algorithm.adv_estimator", "grpo", why)
    for setting in core_settings(spec, plan):
        name, value = setting.name, setting.value
        if name == "pipeline_dtype":
            continue  # verl's own, by its dtype
        if name in VERL_FIELDS:
            yield Setting(f"{MEGATRON}.{name}", value, setting.why)
        else:
            plus = "" if name in VERL_OVERRIDES else "+"
            path = f"{plus}{MEGATRON}.override_transformer_config.{name}"
            yield Setting(path, value, setting.why)
    why = f"plan.zero {plan.zero}"
    yield Setting(f"{MEGATRON}.use_distributed_optimizer", plan.zero >= 1, why)
    dtype = "float16" if plan.precision == "fp16" else "bfloat16"
    yield Setting(f"{MEGATRON}.dtype", dtype, f"plan.precision {plan.precision}")
    path = f"{MEGATRON}.override_transformer_config.attention_backend"
    yield Setting(path, megatron.backend(spec), "training.attention")
    sums = spec.training.gradients or ("bf16" if dtype == "float16" else "fp32")
    path = f"+{MEGATRON}.override_ddp_config.grad_reduce_in_fp32"
    yield Setting(path, sums == "fp32", "training.gradients")
    # Nothing is said of parameters: the engine copies them right after an update, and
    # verl has no hook that gathers what waits for the next forward pass.
    overlap = overlap_of(spec) if plan.zero >= 1 else frozenset()
    path = f"+{MEGATRON}.override_ddp_config.overlap_grad_reduce"
    yield Setting(path, "gradients" in overlap, "training.overlap.gradients")
    optimizer = OPTIMIZERS[spec.training.optimizer]
    yield Setting(f"{ACTOR}.optim.optimizer", optimizer, "training.optimizer")
    yield Setting(f"{ROLLOUT}.gpu_memory_utilization", *_share(spec))
    yield Setting(f"{ROLLOUT}.name", "vllm", "yours")
    hub = spec.model.details.hub or "YOUR_MODEL"
    yield Setting("actor_rollout_ref.model.path", hub, "model.details.hub")
    for variable in megatron.environment(spec, plan):
        path = f"+ray_kwargs.ray_init.runtime_env.env_vars.{variable.name}"
        yield Setting(path, variable.text, variable.why)


VERL_FIELDS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
)  # fmt: skip
"""Settings of Megatron Core that are fields of verl's `McoreEngineConfig`."""

VERL_OVERRIDES = (
    "recompute_granularity", "recompute_modules", "recompute_method",
    "recompute_num_layers", "attention_backend",
)  # fmt: skip
"""Further settings that verl's configuration has; Hydra adds others by a plus."""

VERL_SAID = (
    *("overlap.gradients", "overlap.parameters", "overlap.pp"),
    "context_exchange",
)
"""Settings of code that verl's overrides or its page carry; its stages overlap."""


def _slime(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the arguments of slime's `train.py`, Megatron-LM's among them."""
    rollout, batch = _rollout(spec, plan), spec.training.global_batch
    yield Setting("--actor-num-nodes", rollout.hosts, "hosts of the plan")
    yield Setting("--actor-num-gpus-per-node", rollout.gpus_per_host, "GPUs of a host")
    yield Setting("--colocate", why="the engine and the actor share GPUs")
    why = f"training.global_batch {batch}, over the answers: an update a step"
    yield Setting("--rollout-batch-size", rollout.prompts, why)
    why = "answers to a prompt; yours"
    yield Setting("--n-samples-per-prompt", rollout.answers, why)
    yield Setting("--num-rollout", TRIAL_STEPS, "a trial; yours")
    why = "of training.seq_len"
    yield Setting("--rollout-max-response-len", rollout.answer_tokens, why)
    share, why = _share(spec)
    yield Setting("--sglang-mem-fraction-static", share, why)
    variables = {
        variable.name: variable.text for variable in megatron.environment(spec, plan)
    }
    why = "what launch.sh exports, for the ranks"
    yield Setting("--train-env-vars", json.dumps(variables), why)
    yield from megatron.arguments(spec, plan)


def _verl_files(spec: Spec, plan: Plan) -> list[ExportedFile]:
    words = [Setting(f"{setting.name}={_hydra(setting.value)}", None, setting.why)
             for setting in _verl(spec, plan)]  # fmt: skip
    program = Program(
        title=f"{spec.title}: verl",
        plan=plan,
        command=[
            "-m verl.trainer.main_ppo",
            "--config-name ppo_megatron_trainer",
            'data.train_files="${PROMPTS:?a parquet file of prompts}"',
            'data.val_files="$PROMPTS"',
        ],
        arguments=words,  # with the variables: verl sets none that it finds exported
        launcher=RAY,
    )
    return [*launch_files(spec, program), _page(spec, plan, "verl")]


_PLAIN = re.compile(r"[\w./-]+")


def _hydra(value: object) -> str:
    """Return a value as Hydra's overrides have it."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(str, value)) + "]"
    text = str(value)
    is_read_as_number = isinstance(value, str) and value.isdecimal()
    is_plain = _PLAIN.fullmatch(text) and not is_read_as_number
    return text if is_plain else f"'{text}'"


def _slime_files(spec: Spec, plan: Plan) -> list[ExportedFile]:
    program = Program(
        title=f"{spec.title}: slime",
        plan=plan,
        command=[
            '"${PROGRAM:-train.py}"',
            '--hf-checkpoint "${CHECKPOINT:?a folder of Hugging Face}"',
            '--ref-load "${WEIGHTS:-$CHECKPOINT}"',
            '--prompt-data "${PROMPTS:?a jsonl file of prompts}"',
        ],
        arguments=[*_slime(spec, plan)],
        environment=megatron.environment(spec, plan),
        launcher=RAY,
    )
    return [*launch_files(spec, program), _page(spec, plan, "slime")]


def _page(spec: Spec, plan: Plan, title: str) -> ExportedFile:
    share, why = _share(spec)
    notes = [
        f"`launch.sh` is submitted to a cluster of Ray that runs on the plan's hosts: "
        f"`ray job submit -- bash launch.sh`. {title} starts the ranks.",
        "The plan is that of an update of the actor: reference, critic and reward have "
        "the degrees that you give them.",
        f"The engine gets {share:.0%} of each GPU: {why}.",
        *unsaid(spec, title, megatron.SAID if title == "slime" else VERL_SAID),
    ]
    is_priced = plan.zero >= 1 and "parameters" in overlap_of(spec)
    if title == "verl" and is_priced:
        notes.append(
            "The price hides some gathering of parameters, which verl does before its "
            "engine copies them: `training.overlap.parameters: false` prices it whole."
        )
    if title == "slime":
        notes.append(
            "`WEIGHTS` is a checkpoint of Megatron Core, where slime cannot read "
            "`CHECKPOINT` itself."
        )
    return model_page(spec, title, notes)


POOLS = {
    "verl": "verl/single_controller/ray/base.py: RayResourcePool.get_placement_groups",
    "slime": "slime/ray/placement_group.py: create_placement_groups",
}
"""By target, what asks Ray for GPUs."""

WRAPPERS = {
    "verl": "verl/utils/megatron_utils.py: get_model",
    "slime": "slime/backends/megatron_utils/model.py: setup_model_and_optimizer",
}
"""By target, what wraps the actor's model for data parallelism."""


def refusals(title: str, spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield the fields of a plan that the actor has no setting for."""
    yield from megatron.refusals(spec, plan)
    seats = Seats(rank_map(spec.cluster, plan))
    if not (seats.is_in_order and seats.has_plain_devices):
        sentence = "does not fill equal hosts one after the other, as Ray does"
        yield Refusal("mesh", sentence, POOLS[title])
    if plan.zero >= 2:
        sentence = f"{plan.zero} is Megatron-FSDP; accepted: --pin zero=1, or 0"
        yield Refusal("zero", sentence, WRAPPERS[title])
    if title == "slime" and plan.zero == 0 and plan.dp * plan.cp > 1:
        sentence = "0: it always shards the optimizer; accepted: --pin zero=1"
        check = "slime/backends/megatron_utils/arguments.py: use_distributed_optimizer"
        yield Refusal("zero", sentence, check)
    training = spec.training
    special = {
        "training.moments": is_precision_aware(training),
        "training.partition_activations": training.partition_activations,
        "training.offload_activations": bool(training.offload_activations),
        "model.mtp_layers": spec.model.mtp_layers > 0,
        "dp_replicate": plan.zero >= 1 and plan.dp_replicate > 1,
    }
    for field in (name for name, is_there in special.items() if is_there):
        if title == "verl":
            yield Refusal(field, "is not written for verl yet", "Meshwright's exports")
    if title == "verl" and plan.offload != "none":
        sentence = f"{plan.offload}: its offload is between updates alone"
        check = "verl/workers/megatron_workers.py: _is_offload_optimizer"
        yield Refusal("offload", sentence, check)
    if title == "verl" and plan.precision not in ("bf16", "fp16"):
        sentence = f"{plan.precision}: its actor has bfloat16 and float16"
        check = "verl/workers/config/engine.py: McoreEngineConfig.__post_init__"
        yield Refusal("precision", sentence, check)


TARGETS = {
    "verl": Target(
        title="verl",
        version="verl 0.8.0.dev, commit b178a3c",
        framework="megatron",
        refusals=partial(refusals, "verl"),
        files=_verl_files,
        is_by_ray=True,
    ),
    "slime": Target(
        title="slime",
        version="slime, commit 624b824",
        framework="megatron",
        refusals=partial(refusals, "slime"),
        files=_slime_files,
        is_by_ray=True,
    ),
}
