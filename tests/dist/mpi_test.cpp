// Collectives between real processes (tests/dist/mpi/ranks.cpp), as mpirun starts them.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace redline::dist {
namespace {

#ifdef REDLINE_MPIRUN

class MpiRanks : public ::testing::TestWithParam<int> {};

TEST_P(MpiRanks, AddUpFromRankZeroOn) {
  // More ranks than cores, and as root where the tests run so.
  const std::string command =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
      "OMPI_MCA_hwloc_base_binding_policy=none ASAN_OPTIONS=detect_leaks=0 " REDLINE_MPIRUN " -n " +
      std::to_string(GetParam()) + " " REDLINE_MPI_RANKS " 2>&1";
  FILE* const pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string out;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out += static_cast<char>(c);
  const int status = ::pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << out;
  EXPECT_NE(out.find(std::to_string(GetParam()) + " ranks"), std::string::npos) << out;
}

INSTANTIATE_TEST_SUITE_P(Collectives, MpiRanks, ::testing::Values(1, 2, 3, 4));

#else

TEST(MpiRanks, AddUpFromRankZeroOn) { GTEST_SKIP() << "this redline was built without MPI"; }

#endif

}  // namespace
}  // namespace redline::dist
