#!/usr/bin/env bash
# llama on 16 x h100-sxm-80gb (dgx-h100), megatron, bf16, sequence 8,192, batch 128: verl
# tp=2,pp=2,vpp=1,ep=1,dp_replicate=1,dp_shard=4,zero=1,micro_batch=1,microbatches=32,sequence_parallel=true,recompute=full,schedule=1f1b,offload=none,precision=bf16
# Start it where Ray runs on all hosts: ray job submit -- bash launch.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

ARGUMENTS=(
  trainer.nnodes=2                                            # hosts of the plan
  trainer.n_gpus_per_node=8                                   # GPUs of a host
  trainer.total_training_steps=10                             # a trial; yours
  data.max_prompt_length=2048                                 # a quarter of training.seq_len
  data.max_response_length=6144                               # the rest of training.seq_len
  data.train_batch_size=16                                    # training.global_batch 128 over rollout.n: an update a step
  actor_rollout_ref.actor.ppo_mini_batch_size=16              # training.global_batch 128 over rollout.n: an update a step
  actor_rollout_ref.rollout.n=8                               # answers to a prompt; yours
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1      # plan.micro_batch
  actor_rollout_ref.actor.use_dynamic_bsz=False               # micro-batches of as many
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1  # plan.micro_batch: a forward pass fits where an update does
  algorithm.adv_estimator=grpo                                # advantages without a critic, which the plan leaves no room for
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2  # plan.tp
  actor_rollout_ref.actor.megatron.sequence_parallel=True     # plan.sequence_parallel
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2  # plan.pp
  '+actor_rollout_ref.actor.megatron.override_transformer_config.pipeline_model_parallel_layout='"'"'Et*17|t*15L'"'"''  # plan.stages: layers t of each, embedding E, loss L
  actor_rollout_ref.actor.megatron.context_parallel_size=1    # plan.cp
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full  # plan.recompute
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform  # all layers of plan.stages
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1  # layers of a segment, which keeps one input
  actor_rollout_ref.actor.megatron.use_distributed_optimizer=True  # plan.zero 1
  actor_rollout_ref.actor.megatron.dtype=bfloat16             # plan.precision bf16
  actor_rollout_ref.actor.megatron.override_transformer_config.attention_backend=fused  # training.attention
  +actor_rollout_ref.actor.megatron.override_ddp_config.grad_reduce_in_fp32=True  # training.gradients
  +actor_rollout_ref.actor.megatron.override_ddp_config.overlap_grad_reduce=True  # training.overlap.gradients
  actor_rollout_ref.actor.optim.optimizer=adam                # training.optimizer
  actor_rollout_ref.rollout.gpu_memory_utilization=0.5        # yours: limits.reserved_gib is not in the spec, so the plan counts on an engine that sleeps while the actor learns
  actor_rollout_ref.rollout.name=vllm                         # yours
  actor_rollout_ref.model.path=YOUR_MODEL                     # model.details.hub
  '+ray_kwargs.ray_init.runtime_env.env_vars.CUDA_DEVICE_MAX_CONNECTIONS='"'"'1'"'"''  # orders kernels and messages of tensor and context parallelism
  '+ray_kwargs.ray_init.runtime_env.env_vars.NVTE_FWD_LAYERNORM_SM_MARGIN='"'"'16'"'"''  # norms leave room for messages that overlap
  '+ray_kwargs.ray_init.runtime_env.env_vars.NVTE_BWD_LAYERNORM_SM_MARGIN='"'"'16'"'"''  # norms leave room for messages that overlap
)

exec python \
  -m verl.trainer.main_ppo --config-name ppo_megatron_trainer data.train_files="${PROMPTS:?a parquet file of prompts}" data.val_files="$PROMPTS" "${ARGUMENTS[@]}" "$@"
