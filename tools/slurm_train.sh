#!/usr/bin/env bash
# Train through Slurm: tools/slurm_train.sh PARTITION JOB_NAME CONFIG [options of tools/train.py]
# GPUS (8), GPUS_PER_NODE (8, at most GPUS) and CPUS_PER_TASK (5) set the size of the job;
# SRUN_ARGS holds further options of srun.
# SRUN_ARGS=--signal=USR1@300 saves a checkpoint and ends with status 75 before the time is up; --resume
# goes on from it (docs/interruption.md has a job that puts itself back into the queue).
set -euo pipefail

if [ $# -lt 3 ]; then
    sed -n '2,6s/^# //p' "$0" >&2
    exit 2
fi
partition=$1
job_name=$2
config=$3
shift 3
tools=$(cd "$(dirname "$0")" && pwd)
gpus=${GPUS:-8}
per_node=${GPUS_PER_NODE:-8}
if [ "$per_node" -gt "$gpus" ]; then
    per_node=$gpus
fi

# SRUN_ARGS is meant to be split into words.
# shellcheck disable=SC2086
PYTHONPATH="$tools/..${PYTHONPATH:+:$PYTHONPATH}" exec srun -p "$partition" \
    --job-name="$job_name" \
    --gres=gpu:"$per_node" \
    --ntasks="$gpus" \
    --ntasks-per-node="$per_node" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$tools/train.py" "$config" --launcher slurm "$@"
