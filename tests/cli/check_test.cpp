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
    const std::string command = "cd " + quoted(folder_.path().string()) + " && export TMPDIR=tmp && " + variables +
                                " " + quoted(testing::program()) + " check 2>stderr >stdout " + words;
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

// A part that fails is a row with its sentence; the others are still looked at, but for those that need it.
TEST_F(Check, APartThatFailsIsToldAndTheOthersStillRun) {
  const Ran ran = check("--device cpu", "ulimit -f 2000 &&");  // blocks: no checkpoint is written whole
  EXPECT_EQ(ran.status, kFailed) << ran.err;
  EXPECT_TRUE(says(ran.out, {"cpu: oracle     works", "cpu: training   failed", "File too large", "cpu: rates",
                             "ranks on CPUs   missing", "not tried, since cpu: training failed", "what would help",
                             "redline does NOT work here"}));
  EXPECT_EQ(ran.out.find("cpu: resume"), std::string::npos) << "there was nothing to resume";
}

// The variables of a job are not about a check in its shell.
TEST_F(Check, IsAloneWhateverALauncherSays) {
  const Ran ran = check("--device cpu --json",
                        "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=192.0.2.1 MASTER_PORT=29500 "
                        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0");
  ASSERT_EQ(ran.status, kDone) << ran.out << ran.err;
  EXPECT_EQ(part(Json::parse(ran.out), "ranks on CPUs").at("state"), "works");
}

TEST_F(Check, AFullDiskIsNotTheMachinesFault) {
  const std::string begin = "cd " + quoted(folder_.path().string()) + " && unshare -rm sh -c ",
                    mounted = "mount -t tmpfs -o size=3m none tmp && ";
  if (std::system((begin + quoted(mounted + "true") + " 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "nothing can be mounted here";
  const auto check_on = [&](const std::string& before) {
    const int status = std::system(
        (begin + quoted(mounted + before + "TMPDIR=tmp " + testing::program() + " check --device cpu >out 2>err"))
            .c_str());
    return Ran{WEXITSTATUS(status), real_files().read(folder_ / "out"), real_files().read(folder_ / "err")};
  };
  const Ran little = check_on("");
  EXPECT_EQ(little.status, kFailed);
  EXPECT_TRUE(says(little.out, {"No space left on device", "make room in", "another folder in TMPDIR"}));
  EXPECT_EQ(little.out.find("can be trusted"), std::string::npos) << little.out;
  const Ran none = check_on("dd if=/dev/zero of=tmp/x bs=1024 count=4000 2>/dev/null; ");
  EXPECT_EQ(none.status, kFailed);
  EXPECT_EQ(none.out, "");
  EXPECT_TRUE(says(none.err, {"No space left on device", "another folder in TMPDIR"}));
  EXPECT_EQ(none.err.find('\n'), none.err.size() - 1);
}

TEST_F(Check, BadInput) {
  expect_bad_input({"check", "everything"}, {"everything"});
  ::setenv("TMPDIR", "/nowhere", 1);
  expect_bad_input({"check", "--device", "cpu"}, {"TMPDIR"});
  ::unsetenv("TMPDIR");
}

}  // namespace
}  // namespace redline::cli
