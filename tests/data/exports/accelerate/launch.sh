#!/usr/bin/env bash
# llama on 16 x h100-sxm-80gb (dgx-h100), fsdp, bf16, sequence 8,192, batch 128: Accelerate
# tp=1,pp=1,ep=1,dp_replicate=2,dp_shard=8,zero=3,micro_batch=2,microbatches=4,recompute=full,offload=none,precision=bf16
# Start it on every host with NODE_RANK (the host's line in `hosts`, from 0) and MASTER_ADDR (the first host), or under Slurm: sbatch srun.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # freed memory is used again, whatever its size was
export ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4          # plan.microbatches; Accelerator() reads it

exec accelerate launch --config_file accelerate.yaml \
  --machine_rank "${NODE_RANK:?the line of this host in the file hosts, from 0}" \
  --main_process_ip "${MASTER_ADDR:?the name of the first host}" \
  --main_process_port "${MASTER_PORT:-29500}" \
  "${PROGRAM:-train.py}" "$@"
