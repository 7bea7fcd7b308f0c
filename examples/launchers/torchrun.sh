#!/usr/bin/env bash
# The same line on every host, in any order: torchrun.sh train.py --epochs 3
# Agents meet at FIRST, one of the hosts. A rank that fails, or a host that comes back, makes all ranks start anew, at
# most three times; where fewer than the least number of hosts are left, the job ends.
set -euo pipefail
# torchrun finds out by itself that it is FIRST only where that name is the machine's own, which Debian's loopback entry
# in /etc/hosts prevents: so it is told.
first=0
[ "${OWN:-$(hostname)}" != "${FIRST:?the name or address of one of the hosts}" ] || first=1
exec torchrun --nnodes "${HOSTS:-1:2}" --nproc-per-node "${RANKS:-1}" --max-restarts 3 \
  --rdzv-backend c10d --rdzv-endpoint "$FIRST:29500" --rdzv-conf "is_host=$first" --rdzv-id "${JOB:-train}" \
  ${OWN:+--local-addr "$OWN"} "$@"
