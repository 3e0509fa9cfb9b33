#!/bin/bash
#SBATCH --nodes=16 --gpus-per-node=8
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-16}
TP=8
PP=4

MODEL=(
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672
  --num-attention-heads 64 --group-query-attention --num-query-groups 8
  --swiglu --normalization RMSNorm --disable-bias-linear
  --untie-embeddings-and-output-weights --position-embedding-type rope
  --attention-dropout 0 --hidden-dropout 0
  --seq-length 8192 --max-position-embeddings 4096
)
TRAINING=(
  --micro-batch-size 1
  --global-batch-size 512
  --bf16 --lr 1.5e-4 --train-iters 100000
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
  --recompute-granularity full --recompute-method block --recompute-num-layers 4
)
if [ $TP -gt 1 ]; then
  TRAINING+=(--sequence-parallel)
fi

srun torchrun --nproc-per-node $GPUS_PER_NODE --nnodes $NNODES \
  --rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:29500 pretrain_gpt.py \
  ${MODEL[@]} ${TRAINING[@]} \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
  --recompute-modules layernorm --save /checkpoints --data-path $DATA
