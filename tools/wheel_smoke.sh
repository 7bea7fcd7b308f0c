#!/usr/bin/env bash
# The built wheel as a user of torchrun has it: in a virtual environment of its own and away from the sources, two ranks
# reduce a tensor through a switch that rank 0 starts, and check the sum. Before that, without extras: what works, and
# that the rest names the extra that it lacks. Usage: tools/wheel_smoke.sh PYTHON
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

wheels=("$root"/dist/fanin-*.whl)
"$1" -m venv "$folder/venv"
install() {
  "$folder/venv/bin/pip" --disable-pip-version-check install --quiet --constraint "$root/requirements/constraints.txt" "$1"
}
names_extra() { # EXTRA COMMAND...: it must fail, and say what to install
  local extra=$1 said
  shift
  if said=$(venv/bin/fanin "$@" 2>&1); then
    echo "fanin $* did not fail without fanin[$extra]"
    exit 1
  fi
  case $said in
  *"pip install 'fanin[$extra]'"*) echo "without extras: fanin $*: $said" ;;
  *) echo "fanin $* does not name fanin[$extra]: $said" && exit 1 ;;
  esac
}

install "${wheels[0]}"
cp "$root/examples/minimal.py" "$folder"
cd "$folder"
venv/bin/fanin --version
venv/bin/pip check
venv/bin/fanin simulate
venv/bin/fanin doctor
names_extra demo demo
names_extra torch bench allreduce
names_extra demo bench staleness
names_extra p4 switch --target p4
names_extra plot report record.json

install "${wheels[0]}[torch]"
venv/bin/pip check
venv/bin/python -c 'import fanin, fanin._native; print("imported from", fanin.__file__)'
OMP_NUM_THREADS=1 timeout 120 venv/bin/torchrun --nproc-per-node 2 minimal.py
