// What each launcher's variables make of a process.
#include "dist/place.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace redline::dist {
namespace {

using Variables = std::map<std::string, std::string>;

Place place_in(const Variables& variables) {
  return place_of_process(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto it = variables.find(name);
        return it == variables.end() ? std::nullopt : std::optional(it->second);
      },
      "here");
}

Variables with(Variables variables, const Variables& changes) {  // "-" takes a variable away
  for (const auto& [name, value] : changes) {
    if (value == "-")
      variables.erase(name);
    else
      variables[name] = value;
  }
  return variables;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node07"},
                             {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "1630470145"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "7"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_TASKS_PER_NODE", "2(x3),1"},
                          {"SLURM_JOB_ID", "123456"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_JOB_NODELIST", "gpu[07-09,12]"},
                          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"}};

struct Case {
  const char* name;
  Variables variables;
  int rank, ranks, local_rank, local_ranks;
  std::string address, launcher;
};

class Places : public ::testing::TestWithParam<Case> {};

TEST_P(Places, AreAsTheLauncherSays) {
  const Case& c = GetParam();
  const Place p = place_in(c.variables);
  EXPECT_EQ(p.rank, c.rank);
  EXPECT_EQ(p.ranks, c.ranks);
  EXPECT_EQ(p.local_rank, c.local_rank);
  EXPECT_EQ(p.local_ranks, c.local_ranks);
  EXPECT_EQ(p.address, c.address);
  EXPECT_EQ(p.launcher, c.launcher);
  EXPECT_EQ(p.host, "here");
  EXPECT_EQ(p.alone(), c.ranks == 1);
  if (!p.alone()) {
    EXPECT_GT(p.port, 1023);
    EXPECT_LT(p.port + p.ports, 65536);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Launchers, Places,
    ::testing::Values(
        Case{"nobody", {}, 0, 1, 0, 1, "", ""}, Case{"torchrun", kTorchrun, 5, 8, 1, 4, "node07", "torchrun"},
        Case{"torchrun_of_one", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, 0, 1, 0, 1, "", ""},
        Case{"torchrun_in_slurm",
             with(kTorchrun, {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}}), 5, 8, 1, 4,
             "node07", "torchrun"},
        Case{"world_size_of_one_alone", {{"WORLD_SIZE", "1"}}, 0, 1, 0, 1, "", ""},
        Case{"openmpi", kOpenMpi, 2, 4, 2, 4, "127.0.0.1", "mpirun"},
        Case{"openmpi_on_machines",
             with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29400"}}),
             2, 4, 2, 3, "node1", "mpirun"},
        Case{"openmpi_in_slurm", with(kOpenMpi, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}), 2, 4, 2, 4,
             "127.0.0.1", "mpirun"},
        Case{"openmpi_of_one", {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}, 0, 1, 0, 1, "", ""},
        Case{"slurm", kSlurm, 5, 7, 1, 2, "gpu07", "Slurm"},
        Case{"slurm_last_node", with(kSlurm, {{"SLURM_PROCID", "6"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "3"}}), 6,
             7, 0, 1, "gpu07", "Slurm"},
        Case{"slurm_step_before_job",
             with(kSlurm, {{"SLURM_NTASKS", "64"},
                           {"SLURM_STEP_NUM_TASKS", "7"},
                           {"SLURM_TASKS_PER_NODE", "16(x4)"},
                           {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                           {"SLURM_STEP_NODELIST", "gpu08"}}),
             5, 7, 1, 2, "gpu08", "Slurm"},
        Case{"slurm_on_one_machine",
             with(kSlurm, {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "1"}, {"SLURM_TASKS_PER_NODE", "4"}}), 1, 4, 1, 4,
             "127.0.0.1", "Slurm"},
        Case{"slurm_ntasks_per_node", with(kSlurm, {{"SLURM_TASKS_PER_NODE", "-"}, {"SLURM_NTASKS_PER_NODE", "2"}}), 5,
             7, 1, 2, "gpu07", "Slurm"},
        Case{"slurm_without_list", with(kSlurm, {{"SLURM_JOB_NODELIST", "-"}}), 5, 7, 1, 2, "10.0.0.1", "Slurm"},
        Case{"slurm_two_brackets", with(kSlurm, {{"SLURM_JOB_NODELIST", "rack[2-3]n[05,7],x"}}), 5, 7, 1, 2, "rack2n05",
             "Slurm"},
        Case{"slurm_batch_script", with(kSlurm, {{"SLURM_STEP_ID", "-"}, {"SLURM_PROCID", "0"}}), 0, 1, 0, 1, "", ""},
        Case{"slurm_allocation", {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}}, 0, 1, 0, 1, "", ""},
        Case{"slurm_shell_by_srun", with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}), 0, 1, 0, 1,
             "", ""}),
    [](const auto& one) { return std::string(one.param.name); });

struct Wrong {
  const char* name;
  Variables variables;
  std::string part;
};

class WrongPlaces : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongPlaces, AreOneSentence) {
  try {
    place_in(GetParam().variables);
    FAIL() << "no error";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find(GetParam().part), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variables, WrongPlaces,
    ::testing::Values(
        Wrong{"no_number", with(kTorchrun, {{"RANK", "two"}}), "RANK=two"},
        Wrong{"half_a_number", with(kTorchrun, {{"WORLD_SIZE", "8x"}}), "WORLD_SIZE=8x"},
        Wrong{"rank_too_large", with(kTorchrun, {{"RANK", "8"}}), "RANK=8"},
        Wrong{"negative", with(kTorchrun, {{"LOCAL_RANK", "-1"}}), "LOCAL_RANK=-1"},
        Wrong{"local_rank_too_large", with(kTorchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK=4"},
        Wrong{"more_here_than_in_all", with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), "LOCAL_WORLD_SIZE=9"},
        Wrong{"more_than_can_share", with(kTorchrun, {{"WORLD_SIZE", "1025"}}), "from 1 to 1024"},
        Wrong{"no_world_size", with(kTorchrun, {{"WORLD_SIZE", "-"}}), "no WORLD_SIZE"},
        Wrong{"no_rank", with(kTorchrun, {{"RANK", "-"}}), "no RANK"},
        Wrong{"no_local_rank", with(kTorchrun, {{"LOCAL_RANK", "-"}}), "no LOCAL_RANK"},
        Wrong{"no_address", with(kTorchrun, {{"MASTER_ADDR", "-"}}), "no MASTER_ADDR"},
        Wrong{"no_port", with(kTorchrun, {{"MASTER_PORT", "-"}}), "no MASTER_PORT"},
        Wrong{"bad_port", with(kTorchrun, {{"MASTER_PORT", "70000"}}), "MASTER_PORT=70000"},
        Wrong{"two_launchers", with(kTorchrun, kOpenMpi), "contradict"},
        Wrong{"openmpi_on_machines", with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}), "-x MASTER_ADDR"},
        Wrong{"slurm_list", with(kSlurm, {{"SLURM_TASKS_PER_NODE", "2(3)"}}), "SLURM_TASKS_PER_NODE=2(3)"},
        Wrong{"slurm_node", with(kSlurm, {{"SLURM_NODEID", "4"}}), "SLURM_NODEID=4"},
        Wrong{"slurm_rank", with(kSlurm, {{"SLURM_PROCID", "7"}}), "SLURM_PROCID=7"},
        Wrong{"slurm_no_machine", with(kSlurm, {{"SLURM_JOB_NODELIST", "-"}, {"SLURM_LAUNCH_NODE_IPADDR", "-"}}),
              "set MASTER_ADDR"}),
    [](const auto& one) { return std::string(one.param.name); });

TEST(Place, AProcessWithoutALaunchersVariablesIsAlone) {
  Variables all = {{"PATH", "/bin"}, {"OMPI_MCA_btl", "tcp"}, {"REDLINE_TUNING", "off"}};
  for (const Variables& launcher : {kTorchrun, kOpenMpi, kSlurm}) all.insert(launcher.begin(), launcher.end());
  for (const char* name : {kRestartVariable, kAtFaultVariable, "REDLINE_LISTEN", "TORCHELASTIC_RESTART_COUNT"})
    all[name] = "1";
  std::erase_if(all, [](const auto& v) { return is_of_launcher(v.first); });
  EXPECT_EQ(all.size(), 3u) << "what is no launcher's stays";
}

TEST(Place, AllRanksOfAJobMeetAtOnePort) {
  const Place a = place_in(kOpenMpi), b = place_in(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}}));
  EXPECT_EQ(a.port, b.port);
  EXPECT_EQ(a.job, b.job);
  EXPECT_NE(a.job, place_in(with(kOpenMpi, {{"PMIX_NAMESPACE", "2"}})).job);
}

TEST(Place, TorchrunsOwnPortIsLeftAlone) {
  const Place p = place_in(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_EQ(p.port, 29501);
  EXPECT_GT(p.ports, 1);
  EXPECT_EQ(place_in(kTorchrun).port, 29500);
}

// Each machine's agent counts the failures of its own workers, so the counts of two machines may differ.
TEST(Place, RestartsAreToldAndDoNotPartTheRanks) {
  const Variables again = {{"TORCHELASTIC_RESTART_COUNT", "2"}}, first = {{"TORCHELASTIC_RESTART_COUNT", "0"}};
  EXPECT_EQ(place_in(with(kTorchrun, again)).restart, "restart 2 by torchrun");
  EXPECT_EQ(place_in(with(kTorchrun, first)).restart, "");
  EXPECT_EQ(place_in(with(kTorchrun, first)).job, place_in(with(kTorchrun, again)).job);
  EXPECT_EQ(place_in(with(kSlurm, {{"SLURM_RESTART_COUNT", "1"}})).restart, "restart 1 by Slurm");
  EXPECT_EQ(place_in({{"SLURM_RESTART_COUNT", "1"}}).restart, "restart 1 by Slurm") << "of a process that is alone";
  EXPECT_EQ(
      place_in(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}, {kRestartVariable, "for a reason"}})).restart,
      "for a reason");
}

// Whatever MASTER_ADDR says, ranks of one machine need no network; on several, the token and where to listen count.
TEST(Place, RanksOfOneMachineMeetOnTheLoopback) {
  const Variables one = {{"LOCAL_WORLD_SIZE", "8"}, {"REDLINE_LISTEN", "0.0.0.0"}, {"REDLINE_TOKEN", "secret"}};
  const Place here = place_in(with(kTorchrun, one));
  EXPECT_EQ(here.address, "127.0.0.1");
  EXPECT_EQ(here.listen, "");
  EXPECT_EQ(here.token, "secret");
  EXPECT_TRUE(here.one_machine());
  const Place far = place_in(with(kTorchrun, {{"REDLINE_LISTEN", "10.0.0.5"}, {"REDLINE_TOKEN", "secret"}}));
  EXPECT_EQ(far.address, "node07");
  EXPECT_EQ(far.listen, "10.0.0.5");
  EXPECT_FALSE(far.one_machine());
}

TEST(Place, ARankTakesItsOwnCard) {
  Place p = place_in(kTorchrun);
  EXPECT_EQ(visible_card(p, std::nullopt), "1");
  EXPECT_EQ(visible_card(p, "4,6"), "6");
  EXPECT_EQ(visible_card(p, "GPU-abc"), "GPU-abc");
  p.local_rank = 2;
  EXPECT_THROW(visible_card(p, "4,6"), UserError);
  EXPECT_EQ(visible_card(Place{}, std::nullopt), std::nullopt);
  EXPECT_EQ(visible_card(Place{}, "4,6"), "4,6");
}

}  // namespace
}  // namespace redline::dist
