#!/usr/bin/env bash
# Put the names of your hosts into `hosts` first, in its order: the host of each rank.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export SLURM_HOSTFILE="$PWD/hosts"  # srun places tasks by its lines
MASTER_ADDR="$(head -n 1 hosts)"
export MASTER_ADDR MASTER_PORT=29500
srun --ntasks 16 --distribution arbitrary \
  bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID exec bash launch.sh "$@"' launch "$@"
