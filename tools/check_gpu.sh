#!/usr/bin/env bash
# On a machine with an NVIDIA card: builds the CUDA backend, runs every test, then the CUDA kernels' tests under
# compute-sanitizer, then the oracles on the card.
#   tools/check_gpu.sh [--no-sanitizer]       REDLINE_ORACLES names more oracle cases
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
step() { echo "== $*"; "$@" || { echo "== FAILED: $*"; failed=1; }; }
filter='*Cuda*:*OnCard*'

cmake --preset cuda -DREDLINE_WERROR=ON >/dev/null || exit 1
cmake --build build-cuda --parallel "$(nproc)" || exit 1
step build-cuda/redline info
step ctest --test-dir build-cuda -j 4 --output-on-failure
if [[ "${1:-}" != --no-sanitizer ]]; then
  for tests in build-cuda/tests_ops build-cuda/tests_optim; do
    for tool in memcheck racecheck; do
      step compute-sanitizer --tool "$tool" --error-exitcode 1 "$tests" "--gtest_filter=$filter" --gtest_brief=1
    done
  done
fi
for case in tests/fixtures/*/ ${REDLINE_ORACLES:+"$REDLINE_ORACLES"/*/}; do
  if [[ -f $case/oracle.safetensors ]]; then step build-cuda/redline verify --device cuda "$case"; fi
done
exit $failed
