#!/usr/bin/env bash
# llama on 16 x h100-sxm-80gb (dgx-h100), torchtitan, bf16, sequence 8,192, batch 128: torchtitan
# tp=2,pp=2,vpp=2,ep=1,dp_replicate=1,dp_shard=4,zero=2,micro_batch=1,microbatches=32,sequence_parallel=true,recompute=selective,schedule=1f1b,offload=none,precision=bf16
# Ranks do not fill hosts one after the other, so each GPU is a task of Slurm: sbatch srun.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # freed memory is used again, whatever its size was

export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

ARGUMENTS=(
  --module meshwright_plan  # meshwright_plan.py beside this script
  --config plan             # its function
)

exec python -m torchtitan.train "${ARGUMENTS[@]}" "$@"
