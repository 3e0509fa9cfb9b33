#!/usr/bin/env bash
# Put the names of your hosts into `hosts` first, in its order: a host per line.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export SLURM_HOSTFILE="$PWD/hosts"  # srun places tasks by its lines
MASTER_ADDR="$(head -n 1 hosts)"
export MASTER_ADDR MASTER_PORT=29500
srun --ntasks 2 --distribution arbitrary \
  bash -c 'NODE_RANK=$SLURM_PROCID exec bash launch.sh "$@"' launch "$@"
