#!/usr/bin/env bash
# The tests of the native code against an extension built with a sanitizer, in a tree of links beside the normal build.
# Usage: tools/sanitize.sh address,undefined|thread [pytest arguments]
set -euo pipefail

cd "$(dirname "$0")/.."
sanitizer=$1
shift
name=${sanitizer/,/-}
python=$PWD/.venv/bin/python
with_torch=()
if [ $# -eq 0 ]; then
  set -- tests/udp tests/carriers tests/hostile/test_shared_memory.py tests/p4/test_udp_port.py
  # Machines and kernels start no thread: only native/io does, so TSan sees nothing in their tests. gRPC has threads of
  # its own, and is not instrumented: TSan reports data that they pass to each other as races. The exploration of the
  # slot machine's states is long, and runs the twin only.
  [ "$sanitizer" = thread ] || set -- "$@" tests/numerics tests/switch tests/worker tests/p4/test_run.py --ignore tests/switch/test_exploration.py
  # torch is not instrumented either: ASan knows only the memory of its tensors, whose addresses engines use.
  [ "$sanitizer" = thread ] || with_torch=(tests/torch/test_collectives.py tests/torch/test_fsdp.py)
fi

FANIN_SANITIZE=$sanitizer "$python" setup.py --quiet build_ext --build-lib "build/lib-$name"
extensions=("build/lib-$name"/fanin/_native*.so)
"$python" tools/linked_tree.py "build/tree-$name" --native "${extensions[0]}"
cd "build/tree-$name"

# Python itself is not instrumented: its leaks do not count, and the runtime must be loaded before it. So must
# libstdc++, or the runtime finds no __cxa_throw to pass exceptions on to.
case $sanitizer in
  thread) runtime=libtsan.so ;;
  *) runtime=libasan.so ;;
esac
# Ranks and switches are separate processes: a test shows only the end of their output, and may pass if one has died.
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
export LD_PRELOAD ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
LD_PRELOAD="$(gcc -print-file-name=$runtime) $(gcc -print-file-name=libstdc++.so.6)"
ASAN_OPTIONS=detect_leaks=0:log_path=$reports/asan
UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:log_path=$reports/ubsan
TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$OLDPWD/tools/tsan_suppressions.txt
export OPENBLAS_NUM_THREADS=1 FANIN_TEST_PROFILE=sanitize PYTHONPATH=$PWD

failed=0
run() {
  # Without randomized addresses: TSan of GCC 12 fails where the kernel spreads mappings as widely as kernels now do.
  setarch -R "$python" -m pytest -p no:cacheprovider --quiet --numprocesses auto --dist loadgroup "$@" || failed=1
}
run -m 'not slow' "$@"
[ ${#with_torch[@]} -eq 0 ] || run "${with_torch[@]}" # slow ones, too
for report in "$reports"/*; do
  [ -e "$report" ] || continue
  cat "$report"
  failed=1
done
exit $failed
