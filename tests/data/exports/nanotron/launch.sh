#!/usr/bin/env bash
# llama on 16 x h100-sxm-80gb (dgx-h100), nanotron, bf16, sequence 8,192, batch 128: Nanotron
# tp=2,pp=2,vpp=1,cp=2,ep=1,dp_replicate=2,dp_shard=1,zero=0,micro_batch=1,microbatches=64,sequence_parallel=true,recompute=full,schedule=1f1b,offload=none,precision=bf16
# Start it on every host with NODE_RANK (the host's line in `hosts`, from 0) and MASTER_ADDR (the first host), or under Slurm: sbatch srun.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # freed memory is used again, whatever its size was
export CUDA_DEVICE_MAX_CONNECTIONS=1                     # as run_train.py asks for

exec torchrun \
  --nnodes 2 \
  --nproc-per-node 8 \
  --node-rank "${NODE_RANK:?the line of this host in the file hosts, from 0}" \
  --master-addr "${MASTER_ADDR:?the name of the first host}" \
  --master-port "${MASTER_PORT:-29500}" \
  "${PROGRAM:?the path of run_train.py of Nanotron}" --config-file nanotron.yaml "$@"
