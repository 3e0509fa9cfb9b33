#!/usr/bin/env bash
# llama on 16 x h100-sxm-80gb (dgx-h100), megatron, bf16, sequence 8,192, batch 128: slime
# tp=2,pp=2,vpp=1,ep=1,dp_replicate=1,dp_shard=4,zero=1,micro_batch=1,microbatches=32,sequence_parallel=true,recompute=selective,recompute_modules=mlp,schedule=1f1b,offload=none,precision=bf16
# Start it where Ray runs on all hosts: ray job submit -- bash launch.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

export CUDA_DEVICE_MAX_CONNECTIONS=1    # orders kernels and messages of tensor and context parallelism
export NVTE_FWD_LAYERNORM_SM_MARGIN=16  # norms leave room for messages that overlap
export NVTE_BWD_LAYERNORM_SM_MARGIN=16  # norms leave room for messages that overlap

ARGUMENTS=(
  --actor-num-nodes 2                                         # hosts of the plan
  --actor-num-gpus-per-node 8                                 # GPUs of a host
  --colocate                                                  # the engine and the actor share GPUs
  --rollout-batch-size 16                                     # training.global_batch 128, over the answers: an update a step
  --n-samples-per-prompt 8                                    # answers to a prompt; yours
  --num-rollout 10                                            # a trial; yours
  --rollout-max-response-len 6144                             # of training.seq_len
  --sglang-mem-fraction-static 0.5                            # yours: limits.reserved_gib is not in the spec, so the plan counts on an engine that sleeps while the actor learns
  --train-env-vars '{"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NVTE_FWD_LAYERNORM_SM_MARGIN": "16", "NVTE_BWD_LAYERNORM_SM_MARGIN": "16"}'  # what launch.sh exports, for the ranks
  --tensor-model-parallel-size 2                              # plan.tp
  --sequence-parallel                                         # plan.sequence_parallel
  --pipeline-model-parallel-size 2                            # plan.pp
  --pipeline-model-parallel-layout 'Et*17|t*15L'              # plan.stages: layers t of each, embedding E, loss L
  --context-parallel-size 1                                   # plan.cp
  --recompute-granularity selective                           # plan.recompute
  --recompute-modules mlp                                     # plan.recompute_modules
  --micro-batch-size 1                                        # plan.micro_batch
  --global-batch-size 128                                     # training.global_batch: 32 micro-batches per step
  --seq-length 8192                                           # training.seq_len
  --max-position-embeddings 8192                              # training.seq_len, or model.learned_positions where there are more
  --bf16                                                      # plan.precision
  --accumulate-allreduce-grads-in-fp32                        # training.gradients; Megatron-LM's default for bf16
  --optimizer adam                                            # training.optimizer
  --use-distributed-optimizer                                 # plan.zero 1
  --overlap-grad-reduce                                       # training.overlap.gradients
  --overlap-param-gather                                      # training.overlap.parameters
  --num-layers 32                                             # model.n_layers
  --hidden-size 4096                                          # model.d_model
  --ffn-hidden-size 14336                                     # model.d_ff
  --num-attention-heads 32                                    # model.n_heads
  --kv-channels 128                                           # model.head_dim
  --group-query-attention                                     # fewer KV heads than heads
  --num-query-groups 8                                        # model.n_kv_heads
  --swiglu                                                    # model.details.activation
  --normalization RMSNorm                                     # model.norm
  --disable-bias-linear                                       # model.bias none
  --untie-embeddings-and-output-weights                       # model.tied_embeddings
  --position-embedding-type rope                              # model.learned_positions
  --rotary-base 10000                                         # model.details.rope_theta
  --attention-dropout 0.0                                     # model.dropout; 0.1 is Megatron-LM's default
  --hidden-dropout 0.0                                        # model.dropout; 0.1 is Megatron-LM's default
  --make-vocab-size-divisible-by 128                          # as its memory is counted
  --transformer-impl transformer_engine                       # its norms are fused
  --attention-backend fused                                   # training.attention
  --cross-entropy-loss-fusion                                 # training.fused
)

exec python \
  "${PROGRAM:-train.py}" --hf-checkpoint "${CHECKPOINT:?a folder of Hugging Face}" --ref-load "${WEIGHTS:-$CHECKPOINT}" --prompt-data "${PROMPTS:?a jsonl file of prompts}" "${ARGUMENTS[@]}" "$@"
