#!/usr/bin/env bash
# Builds and runs all tests under the sanitizers: address with undefined behaviour, then threads.
#   tools/sanitize.sh            both
#   tools/sanitize.sh asan       one of them
# OpenBLAS's kernels are assembler and invisible to the thread sanitizer; our own threads are what it watches.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)
for preset in "${@:-asan tsan}"; do
  for p in $preset; do
    cmake --preset "$p" -DREDLINE_WERROR=ON >/dev/null
    cmake --build "build-$p" --parallel "$jobs"
    echo "== tests under $p"
    ctest --test-dir "build-$p" --output-on-failure -j "$jobs" | tail -n 25
  done
done
