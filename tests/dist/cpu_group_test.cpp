// Collectives between real processes (tests/dist/cpu/ranks.cpp): over memory that they share, and over MPI as mpirun
// starts them.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "testing/hostile_guest.h"

namespace redline::dist {
namespace {

class CpuRanks : public ::testing::TestWithParam<int> {
 protected:
  void expect_sums(const std::string& command, const std::string& engine) {
    const std::string with_token = "ASAN_OPTIONS=detect_leaks=0 REDLINE_TOKEN=" + std::string(64, 't') + " " + command;
    FILE* const pipe = ::popen(with_token.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string out;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out += static_cast<char>(c);
    const int status = ::pclose(pipe);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << out;
    EXPECT_NE(out.find(engine), std::string::npos) << out;
    EXPECT_NE(out.find(std::to_string(GetParam()) + " ranks"), std::string::npos) << out;
  }
};

TEST_P(CpuRanks, AddUpFromRankZeroOnInSharedMemory) {
  const std::string ranks = std::to_string(GetParam());
  const std::string variables = "WORLD_SIZE=" + ranks + " LOCAL_WORLD_SIZE=" + ranks +
                                " MASTER_ADDR=here MASTER_PORT=" + std::to_string(testing::free_port());
  expect_sums("sh -c 'for r in $(seq 0 $((" + ranks + " - 1))); do RANK=$r LOCAL_RANK=$r " + variables +
                  " " REDLINE_CPU_RANKS
                  " shared & all=\"$all $!\"; done; for p in $all; do wait $p || exit 1; done' 2>&1",
              "shared memory");
}

#ifdef REDLINE_MPIRUN
TEST_P(CpuRanks, AddUpFromRankZeroOnOverMpi) {
  // More ranks than cores, and as root where the tests run so.
  expect_sums(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
      "OMPI_MCA_hwloc_base_binding_policy=none " REDLINE_MPIRUN " -n " +
          std::to_string(GetParam()) + " " REDLINE_CPU_RANKS " mpi 2>&1",
      "MPI");
}
#endif

INSTANTIATE_TEST_SUITE_P(Collectives, CpuRanks, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace redline::dist
