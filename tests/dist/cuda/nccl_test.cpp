// Collectives between processes that share the first card (tests/dist/nccl/ranks.cpp), as redline launch --share-card
// starts them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "device/device.h"
#include "dist/group.h"

namespace redline::dist {
namespace {

#ifdef REDLINE_NCCL_RANKS

class NcclRanks : public ::testing::TestWithParam<int> {};

TEST_P(NcclRanks, AddUp) {
  if (const auto cuda = device::cuda_status(); !cuda.problem.empty()) GTEST_SKIP() << cuda.problem;
  if (const auto nccl = nccl_status(); !nccl.problem.empty()) GTEST_SKIP() << nccl.problem;
  const std::string ranks = std::to_string(GetParam()), port = std::to_string(21000 + ::getpid() % 10000);
  std::string command =
      "export CUDA_VISIBLE_DEVICES=0 NCCL_SOCKET_IFNAME=lo MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port +
      " WORLD_SIZE=" + ranks + " LOCAL_WORLD_SIZE=" + ranks + " REDLINE_TOKEN=" + std::string(64, 't') + "; p=; s=0; ";
  for (int r = 0; r < GetParam(); ++r) {
    const std::string rank = std::to_string(r);
    command += "RANK=" + rank + " LOCAL_RANK=" + rank + " NCCL_HOSTID=h" + rank +
               " " REDLINE_NCCL_RANKS " 2>&1 & p=\"$p $!\"; ";
  }
  command += "for one in $p; do wait $one || s=1; done; exit $s";
  FILE* const pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string out;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out += static_cast<char>(c);
  const int status = ::pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << out;
  EXPECT_NE(out.find(ranks + " ranks"), std::string::npos) << out;
}

INSTANTIATE_TEST_SUITE_P(Collectives, NcclRanks, ::testing::Values(2, 3, 4));

#else

TEST(NcclRanks, AddUp) { GTEST_SKIP() << "this redline was built without NCCL"; }

#endif

}  // namespace
}  // namespace redline::dist
