#!/usr/bin/env bash
# Ranks of Open MPI's mpirun: mpirun.sh 4 train.py --epochs 3
# Over several hosts: HOSTS=node1:2,node2:2 mpirun.sh 4 train.py; MASTER_ADDR is the first of them.
# --bind-to none: a rank that is bound to one core shares it with its own threads and with the switch that it starts.
set -euo pipefail
ranks=$1
shift
where=()
if [ -n "${HOSTS:-}" ]; then
  where=(--host "$HOSTS" -x "MASTER_ADDR=${HOSTS%%[:,]*}")
fi
exec mpirun -n "$ranks" "${where[@]}" --bind-to none fanin rank python "$@"
