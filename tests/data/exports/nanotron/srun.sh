#!/usr/bin/env bash
#SBATCH --job-name=meshwright
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
# Start it: sbatch srun.sh, or bash srun.sh in an allocation; account, partition and
# time are yours, as options of sbatch. The file `hosts` has a host per line;
# names in it that are not in the allocation stand for its hosts in Slurm's order.
set -euo pipefail
folder="$(dirname "${BASH_SOURCE[0]}")"
if [[ ! -f "$folder/launch.sh" ]]; then  # sbatch runs a copy of this file elsewhere
  folder="${SLURM_SUBMIT_DIR:?start it from its folder}"
fi
cd "$folder"
names="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | xargs)"
export SLURM_HOSTFILE="$PWD/hosts.$SLURM_JOB_ID"  # srun places tasks by its lines
awk -v names="$names" '
  BEGIN { n = split(names, given, " "); for (i = 1; i <= n; i++) is_given[given[i]] }
  !($1 in host) { host[$1] = $1 in is_given ? $1 : given[++used] }
  { print host[$1] }' hosts > "$SLURM_HOSTFILE"
MASTER_ADDR="$(head -n 1 "$SLURM_HOSTFILE")"
export MASTER_ADDR MASTER_PORT=29500
srun --ntasks 2 --distribution arbitrary --gpus-per-node 8 \
  --cpus-per-task "$((SLURM_CPUS_ON_NODE / 1))" \
  bash -c 'NODE_RANK=$SLURM_PROCID exec bash launch.sh "$@"' launch "$@"
