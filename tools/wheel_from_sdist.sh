#!/usr/bin/env bash
# Builds dist/*.tar.gz, and dist/*.whl from the sources in it: a file that the source distribution lacks fails here, not
# at a user who compiles. Objects of earlier builds are used again, since unpacked sources keep their times.
# Usage: tools/wheel_from_sdist.sh PYTHON
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

rm -rf "$root/dist"
"$python" -m build --sdist --no-isolation --outdir "$root/dist" "$root"
tar --extract --file "$root"/dist/fanin-*.tar.gz --directory "$folder"
unpacked=("$folder"/fanin-*)
objects=build/native-release-$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
mkdir -p "$root/$objects" "${unpacked[0]}/build"
ln -s "$root/$objects" "${unpacked[0]}/$objects"
"$python" -m build --wheel --no-isolation --outdir "$root/dist" "${unpacked[0]}"
