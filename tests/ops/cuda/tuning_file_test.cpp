// The tuning cache gives back what was put, survives other writers, and is never an error.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "ops/cuda/gemm_tuning.h"
#include "testing/failing_files.h"
#include "testing/temp_folder.h"

namespace redline::ops::cuda {
namespace {

constexpr TunedProduct kOne = {{1, 2, 0xFFFFFFFFFFFFFFFF, 4, 5, 6, 7, 8}, 1.25e-4}, kTwo = {{9}, 0.1};

class Tuning : public ::testing::Test {
 protected:
  TuningFile open() { return {real_files(), path_}; }
  testing::TempFolder folder_;
  const Path path_ = folder_ / "redline/tuning.json";
};

TEST_F(Tuning, IsKept) {
  TuningFile file = open();
  EXPECT_EQ(file.find("a"), std::nullopt);
  file.put("a", kOne);
  EXPECT_EQ(file.find("a"), kOne);
  EXPECT_EQ(open().find("a"), std::nullopt);  // not saved yet
  file.save();
  EXPECT_EQ(open().find("a"), kOne);
}

TEST_F(Tuning, OfTwoRunsIsKeptOfBoth) {
  TuningFile first = open(), second = open();
  first.put("a", kOne);
  second.put("b", kTwo);
  first.save();
  second.save();
  EXPECT_EQ(open().find("a"), kOne);
  EXPECT_EQ(open().find("b"), kTwo);
}

TEST_F(Tuning, OfManyRunsThatEndAtOnceIsKeptOfAll) {
  constexpr int kRuns = 8, kSaves = 10;
  const auto key = [](int run, int save) { return std::to_string(run) + "x" + std::to_string(save); };
  std::vector<std::thread> runs;
  for (int run = 0; run < kRuns; ++run) {
    runs.emplace_back([&, run, file = open()]() mutable {
      for (int save = 0; save < kSaves; ++save) {
        file.put(key(run, save), kOne);
        file.save();
      }
    });
  }
  for (std::thread& run : runs) run.join();
  const TuningFile file = open();
  for (int run = 0; run < kRuns; ++run)
    for (int save = 0; save < kSaves; ++save) EXPECT_EQ(file.find(key(run, save)), kOne) << key(run, save);
}

TEST_F(Tuning, ThatCannotBeReadIsIgnoredAndReplaced) {
  real_files().create_folders(path_.parent_path());
  const auto with = [](const std::string& product) { return R"({"format": 2, "products": {"a": )" + product + "}}"; };
  const auto algorithm = [](char digit) { return "\"" + std::string(128, digit) + "\""; };
  const std::string whole = with(R"({"algorithm": )" + algorithm('0') + R"(, "seconds": 0.5})");
  const std::string earlier = R"({"format": 1, "products": {"a": )" + algorithm('0') + "}}";
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string("{\"format\": 2}"),
                                  earlier, whole.substr(0, 60), with("\"12\""), with("3"), with(algorithm('0')),
                                  with(R"({"algorithm": )" + algorithm('0') + "}"),
                                  with(R"({"algorithm": )" + algorithm('x') + R"(, "seconds": 0.5})"),
                                  with(R"({"algorithm": )" + algorithm('0') + R"(, "seconds": "soon"})")}) {
    real_files().replace(path_, text);
    int warnings = 0;
    const log::Listener listener([&](bool warning, std::string_view) { warnings += warning ? 1 : 0; });
    TuningFile file = open();
    EXPECT_EQ(file.find("a"), std::nullopt) << text;
    file.put("b", kTwo);
    file.save();
    EXPECT_EQ(warnings, text == earlier ? 0 : 1) << text;  // another redline's is no damage
    EXPECT_EQ(open().find("b"), kTwo) << text;
  }
  real_files().replace(path_, whole);
  EXPECT_EQ(open().find("a"), (TunedProduct{{}, 0.5}));
}

TEST_F(Tuning, ThatCannotBeWrittenIsNoError) {
  for (std::int64_t at = 0; at < 8; ++at) {
    testing::FailingFiles files;
    files.fail_at(at, testing::Failure::full_disk);
    TuningFile file(files, path_);
    file.put("a", kOne);
    EXPECT_NO_THROW(file.save());
    EXPECT_EQ(file.find("a"), kOne);
  }
}

TEST_F(Tuning, WithoutAPathKeepsNothing) {
  TuningFile file(real_files(), {});
  file.put("a", kOne);
  EXPECT_NO_THROW(file.save());
  EXPECT_EQ(file.find("a"), kOne);
}

}  // namespace
}  // namespace redline::ops::cuda
