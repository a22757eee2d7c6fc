// redline check as a user meets it: what works, what is missing, and what does not work.
#include <nlohmann/json.hpp>

#include "cli/program.h"

namespace redline::cli {
namespace {

using Json = nlohmann::json;

class Check : public ProgramTest {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_ / "tmp"); }
  Ran check(const std::string& words, const std::string& variables = "") {
    const std::string command = "cd " + quoted(folder_.path().string()) + " && TMPDIR=tmp " + variables + " " +
                                quoted(testing::program()) + " check 2>stderr >stdout " + words;
    const int status = std::system(command.c_str());
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "tmp")) << "it left something behind";
    return {WEXITSTATUS(status), real_files().read(folder_ / "stdout"), real_files().read(folder_ / "stderr")};
  }
  static Json part(const Json& document, const std::string& name) {
    for (const Json& row : document.at("parts"))
      if (row.at("part") == name) return row;
    ADD_FAILURE() << "no part " << name << " in " << document.dump(1);
    return {};
  }
};

TEST_F(Check, TheCpuWorks) {
  const Ran ran = check("--device cpu --json");
  ASSERT_EQ(ran.status, kDone) << ran.out << ran.err;
  const Json document = Json::parse(ran.out);
  EXPECT_TRUE(document.at("works").get<bool>());
  for (const char* name : {"cpu: oracle", "cpu: training", "cpu: resume", "ranks on CPUs"})
    EXPECT_EQ(part(document, name).at("state"), "works") << part(document, name).dump();
  EXPECT_TRUE(says(part(document, "cpu: oracle").at("found").get<std::string>(), "6 training steps"));
  EXPECT_TRUE(says(part(document, "cpu: resume").at("found").get<std::string>(), "the same bits at step 8"));
  // Neighbours may slow it down.
  EXPECT_NE(part(document, "cpu: rates").at("state"), "failed");
  EXPECT_GT(document.at("peaks").at("cpu").at("copy_bytes_per_s").get<double>(), 0);
  EXPECT_EQ(document.at("info").at("version"), version());
  // Each part of the machine is there, or has a remedy.
  for (const Json& row : document.at("parts"))
    EXPECT_EQ(row.at("remedy").get<std::string>().empty(), row.at("state") == "works") << row.dump();
  const Json& mpi = part(document, "mpi");
  if (document.at("info").at("mpi").at("built").get<bool>())
    EXPECT_NE(mpi.at("state"), "failed") << mpi.dump();
  else
    EXPECT_EQ(mpi.at("state"), "missing");
}

// A part that fails is a row with its sentence; the others are still looked at.
TEST_F(Check, APartThatFailsIsToldAndTheOthersStillRun) {
  const Ran ran = check("--device cpu", "WORLD_SIZE=2");  // which no training can make sense of
  EXPECT_EQ(ran.status, kFailed) << ran.err;
  EXPECT_TRUE(says(ran.out, {"cpu: oracle     works", "cpu: training   failed", "WORLD_SIZE=2", "cpu: rates",
                             "what would help", "redline does NOT work here"}));
  EXPECT_EQ(ran.out.find("cpu: resume"), std::string::npos) << "there was nothing to resume";
}

TEST_F(Check, BadInput) {
  expect_bad_input({"check", "everything"}, {"everything"});
  ::setenv("TMPDIR", "/nowhere", 1);
  expect_bad_input({"check", "--device", "cpu"}, {"TMPDIR"});
  ::unsetenv("TMPDIR");
}

}  // namespace
}  // namespace redline::cli
