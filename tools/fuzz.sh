#!/usr/bin/env bash
# libFuzzer with ASan and UBSan on every target of native/fuzz, each for some seconds. Found inputs grow build/corpus, a
# crash leaves its input in build/. Usage: tools/fuzz.sh [SECONDS]
set -euo pipefail

cd "$(dirname "$0")/.."
seconds=${1:-20}
if ! command -v clang++ > /dev/null; then
  echo 'fuzzing: SKIPPED, clang++ is not installed (Debian: clang)'
  exit 0
fi

flags=(-std=c++20 -O1 -g -pthread "-fsanitize=address,undefined" -fno-sanitize-recover=all -fno-omit-frame-pointer
  -fno-math-errno -ffp-contract=off -DFANIN_SANITIZED=1)
objects=build/fuzz
mkdir -p "$objects"

stale() { # OBJECT SOURCE: whether the source or any header is newer
  [ ! "$1" -nt "$2" ] || [ -n "$(find native -name '*.hpp' -newer "$1" -print -quit)" ]
}

for source in native/*.cpp; do
  case $source in */bind_* | */module.cpp) continue ;; esac
  object=$objects/$(basename "$source" .cpp).o
  if stale "$object" "$source"; then
    clang++ "${flags[@]}" -fsanitize=fuzzer-no-link -c "$source" -o "$object"
  fi
done

for target in native/fuzz/*.cpp; do
  name=$(basename "$target" .cpp)
  mkdir -p "build/corpus/$name"
  clang++ "${flags[@]}" -fsanitize=fuzzer "$target" "$objects"/*.o -o "$objects/fuzz_$name"
  echo "fuzzing $name for $seconds s"
  "$objects/fuzz_$name" -max_total_time="$seconds" -max_len=4096 -timeout=10 -verbosity=0 -print_final_stats=1 \
    -artifact_prefix="build/$name-" "build/corpus/$name"
done
