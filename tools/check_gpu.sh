#!/usr/bin/env bash
# On a machine with an NVIDIA card: builds the CUDA backend, runs every test, then the CUDA kernels' tests under
# compute-sanitizer, side by side in shards, since they wait for the CPU's results most of the time, then the oracles on
# the card.
#   tools/check_gpu.sh [--no-sanitizer]       REDLINE_ORACLES names more oracle cases
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0 most_shards=8
step() { echo "== $*"; "$@" || { echo "== FAILED: $*"; failed=1; }; }

# Every test of tests_ops and tests_optim that runs on the card. racecheck looks at our kernels only: it reports hazards
# inside the libraries', and takes minutes for them. In two tests of the head a product of cuBLASLt does not survive it
# at all: they are left out, another large vocabulary is among the rest.
sanitize() {
  local tool=$1 tests=$2 filter='*Cuda*:*OnCard*' out bad=0 kernels=()
  if [[ $tool == racecheck ]]; then
    kernels=(--kernel-name kns=redline)
    filter+='-Shapes/CudaLmLossTest.AgreesWithTheCpu/7:Shapes/CudaLmLossTest.AgreesWithTheCpu/8'
  fi
  local count shards # a shard without a test would be a process that never calls CUDA
  count=$("$tests" "--gtest_filter=$filter" --gtest_list_tests | grep -c '^  ') || { echo "no test in $tests"; return 1; }
  shards=$((count < most_shards ? count : most_shards))
  out=$(mktemp -d)
  for ((shard = 0; shard < shards; ++shard)); do
    REDLINE_THREADS=2 GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard compute-sanitizer --tool "$tool" \
      "${kernels[@]}" --error-exitcode 1 "$tests" "--gtest_filter=$filter" --gtest_brief=1 >"$out/$shard" 2>&1 &
  done
  for job in $(jobs -p); do wait "$job" || bad=1; done
  grep -hE "PASSED|FAILED|SUMMARY|hazard|Error" "$out"/* | sort | uniq -c
  [[ $bad == 0 ]] || tail -n 20 "$out"/*
  rm -rf "$out"
  return $bad
}

cmake --preset cuda -DREDLINE_WERROR=ON >/dev/null || exit 1
cmake --build build-cuda --parallel "$(nproc)" || exit 1
step build-cuda/redline info
step ctest --test-dir build-cuda -j 8 --output-on-failure
if [[ "${1:-}" != --no-sanitizer ]]; then
  for tests in build-cuda/tests_ops build-cuda/tests_optim; do
    for tool in memcheck racecheck; do step sanitize "$tool" "$tests"; done
  done
fi
for case in tests/fixtures/*/ ${REDLINE_ORACLES:+"$REDLINE_ORACLES"/*/}; do
  if [[ -f $case/oracle.safetensors ]]; then step build-cuda/redline verify --device cuda "$case"; fi
done
exit $failed
