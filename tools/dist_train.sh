#!/usr/bin/env bash
# Train on several GPUs: tools/dist_train.sh CONFIG GPUS [options of tools/train.py]
# Several machines: the same on each, with NNODES, NODE_RANK (from 0) and MASTER_ADDR set.
# Without a GPU, GPUS is a number of processes on the CPU.
set -euo pipefail

if [ $# -lt 2 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi
config=$1
gpus=$2
shift 2
tools=$(cd "$(dirname "$0")" && pwd)

PYTHONPATH="$tools/..${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$gpus" \
    "$tools/train.py" "$config" --launcher pytorch "$@"
