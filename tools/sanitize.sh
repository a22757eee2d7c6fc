#!/usr/bin/env bash
# Builds and runs tests under the sanitizers.
#   tools/sanitize.sh            all tests: address with undefined behaviour, then threads
#   tools/sanitize.sh asan       all tests under one of them
#   tools/sanitize.sh readers    what reads other people's files under asan: tests_io, tests_data, the fuzz targets
# OpenBLAS's kernels are assembler and invisible to the thread sanitizer; our own threads are what it watches.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)

# build PRESET TARGET...
build() {
  cmake --preset "$1" -DREDLINE_WERROR=ON >/dev/null
  cmake --build "build-$1" --parallel "$jobs" --target "${@:2}"
  echo "== tests under $1"
}

all_tests() {
  build "$1" all
  ctest --test-dir "build-$1" --output-on-failure --no-tests=error -j "$jobs" | tail -n 25
}

# A whole program in one process: the search for leaks at its end takes seconds.
readers() {
  build asan tests_io tests_data fuzz_targets
  local failed=0 io
  build-asan/tests_io --gtest_brief=1 &
  io=$!
  build-asan/tests_data --gtest_brief=1 || failed=1
  wait "$io" || failed=1
  ctest --test-dir build-asan --output-on-failure --no-tests=error -j "$jobs" -R '^fuzz/' | tail -n 15 || failed=1
  return $failed
}

case ${1:-both} in
  readers) readers ;;
  both) all_tests asan && all_tests tsan ;;
  *) all_tests "$1" ;;
esac
