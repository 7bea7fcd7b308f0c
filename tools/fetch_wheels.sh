#!/usr/bin/env bash
# Fills wheels/ with every package that the image needs, at the versions of the constraints, so that the Dockerfile can be
# built where containers reach no package index. Usage: tools/fetch_wheels.sh PYTHON (any Python whose pip has an index)
set -euo pipefail
cd "$(dirname "$0")/.."

image_python=3.11 # Debian 12's
python=$1
list=$(mktemp)
trap 'rm -f "$list"' EXIT
"$python" tools/requirements_of.py demo p4 plot >"$list"
if [ "$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')" != "$image_python" ]; then
  set -- --python-version "$image_python" --only-binary :all:
else
  set --
fi
"$python" -m pip --disable-pip-version-check download --quiet --dest wheels --constraint requirements/constraints.txt \
  --requirement "$list" "$@"
echo "wheels/: $(du -sh wheels | cut -f1)"
