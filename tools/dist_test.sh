#!/usr/bin/env bash
# Test on several GPUs: tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of tools/test.py]
# Several machines: the same on each, with NNODES, NODE_RANK (from 0) and MASTER_ADDR set.
# Without a GPU, GPUS is a number of processes on the CPU.
set -euo pipefail

if [ $# -lt 3 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi
config=$1
checkpoint=$2
gpus=$3
shift 3
tools=$(cd "$(dirname "$0")" && pwd)

PYTHONPATH="$tools/..${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$gpus" \
    "$tools/test.py" "$config" "$checkpoint" --launcher pytorch "$@"
