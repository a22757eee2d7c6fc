// Collectives between real processes (tests/dist/cpu/ranks.cpp): over memory that they share, over TCP as between
// machines, and over MPI as mpirun starts them.
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

  // As torchrun starts them, so many on each machine.
  std::string started(const std::string& engine, const std::string& local_rank, int on_each) const {
    const std::string ranks = std::to_string(GetParam());
    const std::string variables = "WORLD_SIZE=" + ranks + " LOCAL_WORLD_SIZE=" + std::to_string(on_each) +
                                  " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(testing::free_port());
    return "sh -c 'for r in $(seq 0 $((" + ranks + " - 1))); do RANK=$r LOCAL_RANK=" + local_rank + " " + variables +
           " " REDLINE_CPU_RANKS " " + engine +
           " & all=\"$all $!\"; done; for p in $all; do wait $p || exit 1; done' 2>&1";
  }
};

TEST_P(CpuRanks, AddUpInPairsInSharedMemory) { expect_sums(started("shared", "$r", GetParam()), "shared memory"); }

TEST_P(CpuRanks, AddUpInPairsOverTcp) { expect_sums(started("tcp", "0", 1), "TCP"); }

#ifdef REDLINE_MPIRUN
TEST_P(CpuRanks, AddUpInPairsOverMpi) {
  // More ranks than cores, and as root where the tests run so.
  expect_sums(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
      "OMPI_MCA_hwloc_base_binding_policy=none " REDLINE_MPIRUN " -n " +
          std::to_string(GetParam()) + " " REDLINE_CPU_RANKS " mpi 2>&1",
      "MPI");
}
#endif

INSTANTIATE_TEST_SUITE_P(Collectives, CpuRanks, ::testing::Values(2, 3, 4, 6));

}  // namespace
}  // namespace redline::dist
