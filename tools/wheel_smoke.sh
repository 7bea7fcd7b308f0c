#!/usr/bin/env bash
# The built wheel as a user of torchrun has it: in a virtual environment of its own and away from the sources, two ranks
# reduce a tensor through a switch that rank 0 starts, and check the sum. Usage: tools/wheel_smoke.sh PYTHON
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

wheels=("$root"/dist/fanin-*.whl)
"$1" -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check install --quiet \
  --constraint "$root/requirements/constraints.txt" "${wheels[0]}[torch]"
cp "$root/examples/minimal.py" "$folder"
cd "$folder"
venv/bin/fanin --version
venv/bin/pip check
venv/bin/python -c 'import fanin, fanin._native; print("imported from", fanin.__file__)'
OMP_NUM_THREADS=1 timeout 120 venv/bin/torchrun --nproc-per-node 2 minimal.py
