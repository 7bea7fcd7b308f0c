#!/usr/bin/env bash
# clang-tidy on every native source (.clang-tidy says which checks): tidy.sh PYTHON [SOURCE...]. Skipped, by name, where
# clang-tidy is not installed (Debian: apt install clang-tidy).
set -euo pipefail

python=$1
shift
if ! command -v clang-tidy >/dev/null; then
  echo 'skipped: clang-tidy is not installed (Debian: apt install clang-tidy)'
  exit 0
fi
[ $# -gt 0 ] || set -- native/*/*.cpp
includes=$("$python" -c 'import sysconfig, pybind11
for path in (*map(sysconfig.get_path, ("include", "platinclude")), pybind11.get_include()):
    print("-isystem", path)')
headers=()
[ -z "${CPATH:-}" ] || headers=(-isystem "$CPATH")
# Warnings in foreign headers are not printed; clang-tidy only counts them on standard error, which is dropped.
# shellcheck disable=SC2086 # several words
printf '%s\0' "$@" | xargs -0 -P "$(nproc)" -I {} sh -c 'clang-tidy --quiet "$@" 2>/dev/null' sh {} -- \
  -std=c++20 -Inative $includes "${headers[@]}"
