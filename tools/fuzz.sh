#!/usr/bin/env bash
# libFuzzer with ASan and UBSan on every target of native/fuzz, each for some seconds. Found inputs grow build/corpus, a
# crash leaves its input in build/. Usage: tools/fuzz.sh [SECONDS]
set -euo pipefail

cd "$(dirname "$0")/.."
seconds=${1:-20}
if ! command -v clang++ > /dev/null; then
  echo 'fuzzing: SKIPPED, clang++ is not installed (Debian: clang libclang-rt-dev)'
  exit 0
fi
# Debian only recommends the run-time libraries of the sanitizers, so many installations of clang lack them.
if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char *, unsigned long) { return 0; }' |
  clang++ -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2> /dev/null; then
  echo "fuzzing: SKIPPED, $(command -v clang++) has no libFuzzer (Debian: libclang-rt-dev)"
  exit 0
fi

flags=(-std=c++20 -Inative -O1 -g -pthread "-fsanitize=address,undefined" -fno-sanitize-recover=all -fno-omit-frame-pointer
  -fno-math-errno -ffp-contract=off -DFANIN_SANITIZED=1)
objects=build/fuzz-units
mkdir -p "$objects"

stale() { # OBJECT SOURCE: whether the source, any header, or a file that a unit includes is newer
  [ ! "$1" -nt "$2" ] || [ -n "$(find native -name '*.[ch]pp' -newer "$1" -print -quit)" ]
}

compile() { # SOURCE
  local object
  object=$objects/$(basename "$1" .cpp).o
  if stale "$object" "$1"; then
    clang++ "${flags[@]}" -fsanitize=fuzzer-no-link -c "$1" -o "$object"
  fi
}

fuzz() { # TARGET
  local name
  name=$(basename "$1" .cpp)
  mkdir -p "build/corpus/$name"
  clang++ "${flags[@]}" -fsanitize=fuzzer "$1" "$objects"/*.o -o "$objects/fuzz_$name"
  echo "fuzzing $name for $seconds s"
  "$objects/fuzz_$name" -max_total_time="$seconds" -max_len=4096 -timeout=10 -verbosity=0 -print_final_stats=1 \
    -artifact_prefix="build/$name-" "build/corpus/$name"
}

each() { # FUNCTION FILE...: on every processor at once; a failure of one is the failure of all
  local function=$1
  shift
  printf '%s\0' "$@" | xargs -0 -P "$(nproc)" -I '{}' bash -euo pipefail -c "$(declare -p flags objects seconds)
$(declare -f stale compile fuzz)
$function {}"
}

# The folders that the targets use. As in a build, a folder's files are compiled as one (setup.py, UNITS), except kernels,
# each of which chooses its instructions.
sources=(native/kernels/*.cpp)
for folder in codecs machine; do
  unit=$objects/$folder.cpp
  (cd native && printf '#include "%s"\n' "$folder"/*.cpp) > "$unit.new"
  cmp --silent "$unit.new" "$unit" || cp "$unit.new" "$unit"
  sources+=("$unit")
done
each compile "${sources[@]}"
each fuzz native/fuzz/*.cpp
