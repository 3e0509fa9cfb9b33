#!/usr/bin/env bash
# llama on 16 x h100-sxm-80gb (dgx-h100), megatron, bf16, sequence 8,192, batch 128: Megatron-LM
# tp=2,pp=4,vpp=1,ep=1,dp_replicate=1,dp_shard=2,zero=1,micro_batch=1,microbatches=64,sequence_parallel=true,recompute=none,schedule=1f1b,offload=none,precision=bf16
# Start it on every host with NODE_RANK (the host's line in `hosts`, from 0) and MASTER_ADDR (the first host), or under Slurm: sbatch srun.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # freed memory is used again, whatever its size was
export CUDA_DEVICE_MAX_CONNECTIONS=1                     # orders kernels and messages of tensor and context parallelism
export NVTE_FWD_LAYERNORM_SM_MARGIN=16                   # norms leave room for messages that overlap
export NVTE_BWD_LAYERNORM_SM_MARGIN=16                   # norms leave room for messages that overlap

ARGUMENTS=(
  --tensor-model-parallel-size 2                        # plan.tp
  --sequence-parallel                                   # plan.sequence_parallel
  --pipeline-model-parallel-size 4                      # plan.pp
  --pipeline-model-parallel-layout 'Et*9|t*8|t*8|t*7L'  # plan.stages: layers t of each, embedding E, loss L
  --context-parallel-size 1                             # plan.cp
  --micro-batch-size 1                                  # plan.micro_batch
  --global-batch-size 128                               # training.global_batch: 64 micro-batches per step
  --seq-length 8192                                     # training.seq_len
  --max-position-embeddings 8192                        # training.seq_len, or model.learned_positions where there are more
  --bf16                                                # plan.precision
  --accumulate-allreduce-grads-in-fp32                  # training.gradients; Megatron-LM's default for bf16
  --optimizer adam                                      # training.optimizer
  --use-distributed-optimizer                           # plan.zero 1
  --overlap-grad-reduce                                 # training.overlap.gradients
  --overlap-param-gather                                # training.overlap.parameters
  --num-layers 32                                       # model.n_layers
  --hidden-size 4096                                    # model.d_model
  --ffn-hidden-size 14336                               # model.d_ff
  --num-attention-heads 32                              # model.n_heads
  --kv-channels 128                                     # model.head_dim
  --group-query-attention                               # fewer KV heads than heads
  --num-query-groups 8                                  # model.n_kv_heads
  --swiglu                                              # model.details.activation
  --normalization RMSNorm                               # model.norm
  --disable-bias-linear                                 # model.bias none
  --untie-embeddings-and-output-weights                 # model.tied_embeddings
  --position-embedding-type rope                        # model.learned_positions
  --rotary-base 10000                                   # model.details.rope_theta
  --attention-dropout 0.0                               # model.dropout; 0.1 is Megatron-LM's default
  --hidden-dropout 0.0                                  # model.dropout; 0.1 is Megatron-LM's default
  --make-vocab-size-divisible-by 128                    # as its memory is counted
  --transformer-impl transformer_engine                 # its norms are fused
  --attention-backend fused                             # training.attention
  --cross-entropy-loss-fusion                           # training.fused
)

# Yours: data, tokenizer, learning rate. These run on made-up data.
DATA=(
  --mock-data
  --tokenizer-type NullTokenizer
  --vocab-size 128256  # model.vocab, before padding
  --lr 1e-4
  --train-iters 10
  --log-interval 1  # every step; Megatron-LM's default is 100
  --log-throughput  # TFLOP/s of each GPU beside the step time
  --eval-iters 0  # nothing but steps of training is timed
  --eval-interval 1000  # train-iters is divided by it, and it has no default
)

exec torchrun \
  --nnodes 2 \
  --nproc-per-node 8 \
  --node-rank "${NODE_RANK:?the line of this host in the file hosts, from 0}" \
  --master-addr "${MASTER_ADDR:?the name of the first host}" \
  --master-port "${MASTER_PORT:-29500}" \
  "${PROGRAM:-pretrain_gpt.py}" "${DATA[@]}" "${ARGUMENTS[@]}" "$@"
