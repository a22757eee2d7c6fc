#!/usr/bin/env bash
# Builds and runs tests under the sanitizers.
#   tools/sanitize.sh            all tests: address with undefined behaviour, then threads
#   tools/sanitize.sh asan       all tests under one of them
#   tools/sanitize.sh readers    what reads other people's files under asan: tests_io, tests_data, the fuzz targets
# OpenBLAS's kernels are assembler and invisible to the thread sanitizer; our own threads are what it watches.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)

# check PRESET TESTS TARGET...: builds the targets and runs the tests whose names match.
check() {
  local preset=$1 tests=$2
  cmake --preset "$preset" -DREDLINE_WERROR=ON >/dev/null
  cmake --build "build-$preset" --parallel "$jobs" --target "${@:3}"
  echo "== tests under $preset"
  ctest --test-dir "build-$preset" --output-on-failure --no-tests=error -j "$jobs" -R "$tests" | tail -n 25
}

case ${1:-both} in
  readers) check asan '^(io|data|fuzz)/' tests_io tests_data fuzz_targets ;;
  both) check asan . all && check tsan . all ;;
  *) check "$1" . all ;;
esac
