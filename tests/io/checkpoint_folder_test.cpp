// No failure at any moment loses a whole checkpoint; damage is found and named; pruning keeps what it must.
#include "io/checkpoint_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "io/safetensors.h"
#include "testing/failing_files.h"
#include "testing/says.h"
#include "testing/temp_folder.h"
#include "testing/without_rights.h"

namespace redline::io {
namespace {

using redline::testing::at_every_change;
using redline::testing::FailingFiles;
using redline::testing::Failure;
using redline::testing::says;
using redline::testing::TempFolder;
using Names = std::vector<std::string>;

// Writes a checkpoint of two files whose contents tell `version`.
void write(FileSystem& files, const Path& parent, std::int64_t step, const std::string& version) {
  write_checkpoint(files, parent, step, [&](const Path& folder) {
    std::map<std::string, std::uint64_t> hashes;
    for (const char* name : {"model.safetensors", "state.json"}) {
      const std::string text = fmt::format("{} of step {}, version {}", name, step, version);
      const auto writer = files.create(folder / name);
      writer->write(text);
      writer->sync();
      writer->close();
      hashes[name] = hash64(text);
    }
    return hashes;
  });
}

std::optional<FoundCheckpoint> newest(const Path& parent) {
  return newest_whole_checkpoint(real_files(), parent, [](const SkippedCheckpoint&) {});
}

std::string version_of(const FoundCheckpoint& checkpoint) {
  const std::string text = real_files().read(checkpoint.folder / "state.json");
  return text.substr(text.rfind(' ') + 1);
}

void put(const Path& path, std::string_view text) {
  const auto writer = real_files().create(path);
  writer->write(text);
  writer->close();
}

TEST(CheckpointName, GoesBothWays) {
  EXPECT_EQ(checkpoint_name(1000), "step_00001000");
  for (const std::int64_t step :
       {std::int64_t{0}, std::int64_t{7}, std::int64_t{99'999'999}, std::int64_t{123'456'789'012}}) {
    EXPECT_EQ(checkpoint_step(checkpoint_name(step)), step);
  }
  for (const char* other : {"", "step_", "step_7", "step_0000000x", "step_-0000007", "step_00000007.partial",
                            "Step_00000007", "step_99999999999999999999"}) {
    EXPECT_FALSE(checkpoint_step(other)) << other;
  }
}

TEST(Checkpoint, AWrittenOneIsWholeAndFound) {
  TempFolder temp;
  const Path parent = temp / "run/checkpoints";
  EXPECT_FALSE(newest(parent));
  write(real_files(), parent, 5, "a");
  write(real_files(), parent, 10, "b");
  EXPECT_EQ(real_files().list(parent), (Names{"step_00000005", "step_00000010"}));
  EXPECT_EQ(real_files().list(parent / "step_00000005"), (Names{"manifest.json", "model.safetensors", "state.json"}));
  EXPECT_EQ(checkpoint_problem(real_files(), parent / "step_00000005"), "");
  const auto found = list_checkpoints(real_files(), parent);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].step, 10);
  EXPECT_EQ(found[1].step, 5);
  EXPECT_EQ(newest(parent)->step, 10);
}

TEST(Checkpoint, EveryDamageIsNamedAndPassedOver) {
  const auto truncate = [](const Path& folder) { real_files().truncate(folder / "state.json", 3); };
  const auto lengthen = [](const Path& folder) { real_files().append(folder / "state.json")->write("more"); };
  const auto flip = [](const Path& folder) {
    std::string text = real_files().read(folder / "model.safetensors");
    text[text.size() / 2] ^= 1;
    put(folder / "model.safetensors", text);
  };
  const auto lose = [](const Path& folder) { real_files().remove_all(folder / "model.safetensors"); };
  const auto lose_manifest = [](const Path& folder) { real_files().remove_all(folder / "manifest.json"); };
  const auto break_manifest = [](const Path& folder) { real_files().truncate(folder / "manifest.json", 20); };
  const auto escape = [](const Path& folder) {
    put(folder / "manifest.json", R"({"format":1,"step":2,"files":{"../x":{"bytes":1,"xxh3":"0"}}})");
  };
  const auto empty = [](const Path& folder) { put(folder / "manifest.json", R"({"format":1,"step":2,"files":{}})"); };
  const auto future = [](const Path& folder) { put(folder / "manifest.json", R"({"format":3,"step":2,"files":{}})"); };
  struct Case {
    std::function<void(const Path&)> damage;
    const char *file, *what;
  };
  for (const Case& c :
       {Case{truncate, "state.json", "truncated: 3 bytes"}, Case{lengthen, "state.json", "longer than it was written"},
        Case{flip, "model.safetensors", "has changed"}, Case{lose, "model.safetensors", "is missing"},
        Case{lose_manifest, "manifest.json", "is missing"}, Case{break_manifest, "manifest.json", "not valid JSON"},
        Case{escape, "manifest.json", "\"../x\" is not the name"}, Case{empty, "manifest.json", "names no file"},
        Case{future, "manifest.json", "format is 3"}}) {
    TempFolder temp;
    write(real_files(), temp.path(), 1, "a");
    write(real_files(), temp.path(), 2, "b");
    const Path folder = temp / "step_00000002";
    c.damage(folder);
    const std::string problem = checkpoint_problem(real_files(), folder);
    EXPECT_TRUE(says(problem, {(folder / c.file).string()}));
    EXPECT_TRUE(says(problem, {c.what}));
    std::vector<std::pair<std::int64_t, std::string>> told;
    const auto found = newest_whole_checkpoint(real_files(), temp.path(), [&](const SkippedCheckpoint& passed) {
      told.emplace_back(passed.checkpoint.step, passed.problem);
    });
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step, 1);
    EXPECT_EQ(told, (std::vector<std::pair<std::int64_t, std::string>>{{2, problem}}));
  }
  TempFolder temp;
  EXPECT_NE(checkpoint_problem(real_files(), temp / "none"), "");
}

class CheckpointFailure : public ::testing::TestWithParam<Failure> {};

TEST_P(CheckpointFailure, NeverLosesTheOneBefore) {
  const std::int64_t changes = at_every_change(GetParam(), [](FailingFiles& files, std::int64_t nth) {
    TempFolder temp;
    write(real_files(), temp.path(), 1, "a");
    bool threw = false;
    try {
      write(files, temp.path(), 2, "b");
    } catch (const MachineError& e) {
      threw = true;
      EXPECT_TRUE(says(e.what(), {temp.path().string(), "no space left"}));
    }
    const auto found = newest(temp.path());
    ASSERT_TRUE(found) << "failure at change " << nth;
    EXPECT_TRUE(found->step == 1 || found->step == 2);
    EXPECT_TRUE(threw || found->step == 2) << "failure at change " << nth;
    EXPECT_EQ(checkpoint_problem(real_files(), temp / "step_00000001"), "");
    // The next attempt, with room again, works and leaves nothing behind.
    write(real_files(), temp.path(), 2, "c");
    EXPECT_EQ(version_of(*newest(temp.path())), "c");
    EXPECT_EQ(real_files().list(temp.path()), (Names{"step_00000001", "step_00000002"}));
  });
  EXPECT_GT(changes, 15);
}

TEST_P(CheckpointFailure, NeverLosesTheOneOfTheSameStep) {
  const std::int64_t changes = at_every_change(GetParam(), [](FailingFiles& files, std::int64_t nth) {
    TempFolder temp;
    write(real_files(), temp.path(), 2, "old");  // the only one there is
    bool threw = false;
    try {
      write(files, temp.path(), 2, "new");
    } catch (const MachineError&) {
      threw = true;
    }
    const auto found = newest(temp.path());
    ASSERT_TRUE(found) << "failure at change " << nth;
    EXPECT_EQ(found->step, 2);
    const std::string version = version_of(*found);
    EXPECT_TRUE(version == "new" || (threw && version == "old")) << version << " after a failure at change " << nth;
    prune_checkpoints(real_files(), temp.path(), 1, 0);
    EXPECT_EQ(version_of(*newest(temp.path())), version);
    EXPECT_EQ(real_files().list(temp.path()), Names{"step_00000002"}) << "failure at change " << nth;
  });
  EXPECT_GT(changes, 15);
}

TEST_P(CheckpointFailure, PruningNeverLosesTheNewest) {
  const std::int64_t changes = at_every_change(GetParam(), [](FailingFiles& files, std::int64_t) {
    TempFolder temp;
    for (std::int64_t step = 1; step <= 4; ++step) write(real_files(), temp.path(), step, "a");
    try {
      prune_checkpoints(files, temp.path(), 2, 0, 4);
    } catch (const MachineError&) {
    }
    // What is left under a checkpoint's name is whole: nothing is removed in place.
    for (const FoundCheckpoint& left : list_checkpoints(real_files(), temp.path())) {
      EXPECT_EQ(checkpoint_problem(real_files(), left.folder), "");
    }
    prune_checkpoints(real_files(), temp.path(), 2, 0, 4);
    EXPECT_EQ(real_files().list(temp.path()), (Names{"step_00000003", "step_00000004"}));
  });
  EXPECT_GT(changes, 2);
}

INSTANTIATE_TEST_SUITE_P(Kinds, CheckpointFailure, ::testing::Values(Failure::once, Failure::full_disk, Failure::death),
                         redline::testing::failure_name);

TEST(Checkpoint, WhatDoesNotReadBackIsRefused) {
  TempFolder temp;
  write(real_files(), temp.path(), 1, "a");
  const auto lie = [](const Path& folder) {
    put(folder / "f", "text");
    return std::map<std::string, std::uint64_t>{{"f", hash64("other text")}};
  };
  EXPECT_THROW(write_checkpoint(real_files(), temp.path(), 2, lie), MachineError);
  EXPECT_EQ(real_files().list(temp.path()), Names{"step_00000001"});
}

TEST(Checkpoint, AFailingFillLeavesNothingBehind) {
  TempFolder temp;
  const auto fill = [](const Path& folder) -> std::map<std::string, std::uint64_t> {
    put(folder / "f", "text");
    throw UserError("no");
  };
  EXPECT_THROW(write_checkpoint(real_files(), temp.path(), 2, fill), UserError);
  EXPECT_TRUE(real_files().list(temp.path()).empty());
}

TEST(Checkpoint, PartialOnesAreNotListed) {
  TempFolder temp;
  write(real_files(), temp.path(), 1, "a");
  real_files().rename(temp / "step_00000001", temp / "step_00000001.partial");
  EXPECT_TRUE(list_checkpoints(real_files(), temp.path()).empty());
}

TEST(Prune, KeepsTheLastAndEveryNth) {
  TempFolder temp;
  for (std::int64_t step = 10; step <= 60; step += 10) write(real_files(), temp.path(), step, "a");
  real_files().create_folders(temp / "step_00000070.partial");
  real_files().create_folders(temp / "step_mine");
  prune_checkpoints(real_files(), temp.path(), 2, 20);
  EXPECT_EQ(real_files().list(temp.path()),
            (Names{"step_00000020", "step_00000040", "step_00000050", "step_00000060", "step_mine"}));
  prune_checkpoints(real_files(), temp.path(), 0, 0);  // one always stays
  EXPECT_EQ(real_files().list(temp.path()), (Names{"step_00000060", "step_mine"}));
}

TEST(Prune, KeepsTheGoodOneBesideTheLast) {
  TempFolder temp;
  for (std::int64_t step = 10; step <= 40; step += 10) write(real_files(), temp.path(), step, "a");
  prune_checkpoints(real_files(), temp.path(), 1, 0, 40, {20});
  EXPECT_EQ(real_files().list(temp.path()), (Names{"step_00000020", "step_00000040"}));
  prune_checkpoints(real_files(), temp.path(), 1, 0, 40, {30});  // which is not there
  EXPECT_EQ(real_files().list(temp.path()), (Names{"step_00000040"}));
}

// A run that goes back leaves what it made since: whole, under a name that counts for nothing, until it is there again.
TEST(LeftCheckpoints, StayUntilTheRunHasPassedThemAgain) {
  TempFolder temp;
  for (std::int64_t step = 10; step <= 40; step += 10) write(real_files(), temp.path(), step, "a");
  EXPECT_EQ(leave_checkpoints_after(real_files(), temp.path(), 20), (std::vector<std::int64_t>{30, 40}));
  EXPECT_EQ(real_files().list(temp.path()),
            (Names{"step_00000010", "step_00000020", "step_00000030.left", "step_00000040.left"}));
  EXPECT_EQ(newest(temp.path())->step, 20);
  EXPECT_EQ(checkpoint_problem(real_files(), temp / "step_00000040.left"), "");
  write(real_files(), temp.path(), 30, "b");
  EXPECT_EQ(leave_checkpoints_after(real_files(), temp.path(), 20), (std::vector<std::int64_t>{30}));
  EXPECT_TRUE(leave_checkpoints_after(real_files(), temp.path(), 20).empty());
  write(real_files(), temp.path(), 35, "b");
  prune_checkpoints(real_files(), temp.path(), 9, 0, 35);
  EXPECT_EQ(real_files().list(temp.path()),
            (Names{"step_00000010", "step_00000020", "step_00000035", "step_00000040.left"}));
  const auto only = [&](std::int64_t step) {
    return newest_whole_checkpoint(
        real_files(), temp.path(), [](const SkippedCheckpoint&) {}, {}, step);
  };
  EXPECT_EQ(only(10)->step, 10);
  EXPECT_FALSE(only(30) || only(40));
}

TEST(Prune, DamagedNewerOnesDoNotPushOutTheWhole) {
  for (const std::int64_t written : {std::int64_t{-1}, std::int64_t{20}}) {
    TempFolder temp;
    for (std::int64_t step = 10; step <= 50; step += 10) write(real_files(), temp.path(), step, "a");
    real_files().truncate(temp / "step_00000050/state.json", 1);   // seen by its size
    for (const char* name : {"step_00000040", "step_00000030"}) {  // seen by its hash alone
      std::string text = real_files().read(temp / name / "state.json");
      text[0] ^= 1;
      put(temp / name / "state.json", text);
    }
    prune_checkpoints(real_files(), temp.path(), 2, 0, written);
    ASSERT_TRUE(newest(temp.path()));
    EXPECT_EQ(newest(temp.path())->step, 20);
  }
}

// A copy of step 10 that is called step 20 is not what it says: named, passed over, and not taken away.
TEST(Checkpoint, UnderTheNameOfAnotherStepIsNamed) {
  TempFolder temp;
  for (const std::int64_t step : {10, 15}) write(real_files(), temp.path(), step, "a");
  std::filesystem::copy(temp / "step_00000010", temp / "step_00000020");
  std::string problem;
  const auto found = newest_whole_checkpoint(real_files(), temp.path(),
                                             [&](const SkippedCheckpoint& passed) { problem = passed.problem; });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 15);
  EXPECT_TRUE(says(problem, {"step_00000020 is the checkpoint of step 10 under another name"}));
  prune_checkpoints(real_files(), temp.path(), 1, 0, 15);
  EXPECT_EQ(real_files().list(temp.path()), (Names{"step_00000015", "step_00000020"}));
  std::filesystem::rename(temp / "step_00000020", temp / "best");  // a name that says nothing says nothing wrong
  EXPECT_EQ(checkpoint_problem(real_files(), temp / "best"), "");
}

TEST(FindWeights, ARunGivesItsNewestWholeCheckpoint) {
  TempFolder temp;
  const Path run = temp / "run";
  write(real_files(), run / "checkpoints", 1, "a");
  write(real_files(), run / "checkpoints", 2, "b");
  EXPECT_EQ(find_weights_folder(real_files(), run), run / "checkpoints/step_00000002");
  real_files().truncate(run / "checkpoints/step_00000002/model.safetensors", 1);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(find_weights_folder(real_files(), run), run / "checkpoints/step_00000001");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");  // whoever reads them tells, once
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(find_weights_folder(real_files(), run, [](const Path&) {}), run / "checkpoints/step_00000001");
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(says(warning, {"redline: warning: the checkpoint of step 2 is damaged"}));
  real_files().remove_all(run / "checkpoints/step_00000001");
  const std::string error = testing::error_of([&] { find_weights_folder(real_files(), run); });
  EXPECT_TRUE(says(error, {"holds no whole checkpoint"}));
}

// What only the reader of the tensors sees passes a run's checkpoint over, and refuses a folder that was named.
TEST(FindWeights, WhoeverUsesTheWeightsMayFindThemDamaged) {
  TempFolder temp;
  const Path run = temp / "run", newest = run / "checkpoints/step_00000002";
  write(real_files(), run / "checkpoints", 1, "a");
  write(real_files(), run / "checkpoints", 2, "b");
  std::vector<Path> used;
  const auto use = [&](const Path& folder) {
    used.push_back(folder);
    reading_weights([&] {
      if (folder == newest) fail_user("its tensors have changed");
    });
  };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(find_weights_folder(real_files(), run, use), run / "checkpoints/step_00000001");
  EXPECT_TRUE(says(::testing::internal::GetCapturedStderr(), {"step 2", "its tensors have changed", "step 1"}));
  EXPECT_EQ(used, (std::vector<Path>{newest, run / "checkpoints/step_00000001"}));
  EXPECT_TRUE(
      says(testing::error_of([&] { find_weights_folder(real_files(), newest, use); }), {"its tensors have changed"}));
  // What is wrong with anything else is no reason to take an older one.
  const auto other = [](const Path&) { fail_user("the tokenizer does not fit"); };
  EXPECT_EQ(testing::error_of([&] { find_weights_folder(real_files(), run, other); }), "the tokenizer does not fit");
}

// Whoever reads may come too late: what is gone by then is not called damaged, and what has come since is taken.
TEST(FindWeights, ARunMayGoOnMeanwhile) {
  TempFolder temp;
  const Path run = temp / "run", parent = run / "checkpoints";
  const auto go_on = [&](std::int64_t step) {
    write(real_files(), parent, step + 1, "b");
    prune_checkpoints(real_files(), parent, 1, 0, step + 1);
  };
  write(real_files(), parent, 1, "a");
  std::vector<Path> used;
  const auto use = [&](const Path& folder) {
    used.push_back(folder);
    if (used.size() == 3) return;
    go_on(static_cast<std::int64_t>(used.size()));
    if (used.size() == 1) fail_machine("config.json: cannot open");
    throw DamagedWeights("there are no weights");
  };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(find_weights_folder(real_files(), run, use), parent / "step_00000003");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(used.size(), 3u);
}

TEST(FindWeights, AStepFolderMustBeWhole) {
  TempFolder temp;
  write(real_files(), temp.path(), 1, "a");
  const Path folder = temp / "step_00000001";
  EXPECT_EQ(find_weights_folder(real_files(), folder), folder);
  real_files().truncate(folder / "state.json", 1);
  const std::string error = testing::error_of([&] { find_weights_folder(real_files(), folder); });
  EXPECT_TRUE(says(error, {"state.json is truncated"}));
}

TEST(FindWeights, AHuggingFaceFolderNeedsConfigAndWeights) {
  TempFolder temp;
  put(temp / "config.json", "{}");
  const std::string error = testing::error_of([&] { find_weights_folder(real_files(), temp.path()); });
  for (const char* looked_for : {"checkpoints/", "manifest.json", "config.json", "model.safetensors"}) {
    EXPECT_TRUE(says(error, {looked_for}));
  }
  put(temp / "model.safetensors", "");
  EXPECT_EQ(find_weights_folder(real_files(), temp.path()), temp.path());
}

TEST(FindWeights, AMissingPathIsAUserError) {
  TempFolder temp;
  const std::string error = testing::error_of([&] { find_weights_folder(real_files(), temp / "none"); });
  EXPECT_TRUE(says(error, {(temp / "none").string()}));
}

TEST(CheckpointFolder, WhatMayNotBeReadIsNotTakenForDamaged) {
  TempFolder temp;
  const Path run = temp.path() / "run", parent = run / "checkpoints";
  write(real_files(), parent, 1, "a");
  write(real_files(), parent, 2, "a");
  const Path folder = newest(parent)->folder;
  std::filesystem::permissions(temp.path(), std::filesystem::perms::all);
  const testing::WithoutRights nobody(folder);
  EXPECT_THROW(checkpoint_problem(real_files(), folder), NoPermission);
  EXPECT_THROW(newest(parent), NoPermission);
  EXPECT_THROW(find_weights_folder(real_files(), run), NoPermission);
  // Nor are weights damaged that cannot be written where they are copied to.
  EXPECT_THROW(reading_weights([&] { real_files().create(folder / "copy"); }), NoPermission);
}

// The name `best` follows the checkpoint that it is given, keeps it from being pruned, and is no checkpoint itself.
TEST(BestCheckpoint, FollowsWhatItIsGivenAndIsNotPruned) {
  TempFolder temp;
  EXPECT_EQ(best_checkpoint(temp.path()), std::nullopt);
  for (const std::int64_t step : {10, 20, 30}) write(real_files(), temp.path(), step, "a");
  for (const std::int64_t step : {10, 20}) {
    EXPECT_EQ(link_best(real_files(), temp.path(), step), "");
    EXPECT_EQ(best_checkpoint(temp.path()), step);
    EXPECT_TRUE(says(real_files().read(temp / "best/state.json"), {fmt::format("step {},", step)}));
  }
  EXPECT_EQ(std::filesystem::read_symlink(temp.path() / "best"), "step_00000020");  // also where the run is moved to
  prune_checkpoints(real_files(), temp.path(), 1, 0, 30);
  EXPECT_EQ(real_files().list(temp.path()), (Names{"best", "step_00000020", "step_00000030"}));
  EXPECT_EQ(list_checkpoints(real_files(), temp.path()).size(), 2u);
  const auto found = newest_whole_checkpoint(real_files(), temp.path(), [](const SkippedCheckpoint&) {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 30);
  EXPECT_EQ(link_best(real_files(), temp.path(), 30), "");
  prune_checkpoints(real_files(), temp.path(), 1, 0, 30);
  EXPECT_EQ(real_files().list(temp.path()), (Names{"best", "step_00000030"}));
}

TEST(BestCheckpoint, StepsThatAreToStayStay) {
  TempFolder temp;
  for (std::int64_t step = 10; step <= 50; step += 10) write(real_files(), temp.path(), step, "a");
  prune_checkpoints(real_files(), temp.path(), 2, 0, 50, {10, 30, 99});
  EXPECT_EQ(real_files().list(temp.path()),
            (Names{"step_00000010", "step_00000030", "step_00000040", "step_00000050"}));
}

// A command takes it for --checkpoint, and stays with the step that it found there.
TEST(BestCheckpoint, IsTheFolderOfItsStepToWhoeverReads) {
  TempFolder temp;
  for (const std::int64_t step : {10, 20}) write(real_files(), temp.path(), step, "a");
  ASSERT_EQ(link_best(real_files(), temp.path(), 10), "");
  EXPECT_EQ(find_weights_folder(real_files(), temp.path() / "best"), temp.path() / "step_00000010");
  EXPECT_EQ(find_weights_folder(real_files(), temp.path() / "best/"), temp.path() / "step_00000010");
  EXPECT_EQ(resolve_best(temp.path() / "step_00000020"), temp.path() / "step_00000020");
  EXPECT_EQ(resolve_best("best"), "best");  // there is none here
}

// A link that a kill left beside is not in the way; a folder that somebody called best stays, and is named.
TEST(BestCheckpoint, TouchesNothingElse) {
  TempFolder temp;
  write(real_files(), temp.path(), 10, "a");
  std::filesystem::create_symlink("step_00000007", temp.path() / "best.new");
  EXPECT_EQ(link_best(real_files(), temp.path(), 10), "");
  EXPECT_EQ(best_checkpoint(temp.path()), 10);
  std::filesystem::remove(temp.path() / "best");
  std::filesystem::copy(temp.path() / "step_00000010", temp.path() / "best");
  const std::string problem = link_best(real_files(), temp.path(), 10);
  EXPECT_TRUE(says(problem, {"best", "step_00000010"}));
  EXPECT_EQ(best_checkpoint(temp.path()), std::nullopt);
  EXPECT_EQ(find_weights_folder(real_files(), temp.path() / "best"), temp.path() / "best");
  EXPECT_EQ(real_files().list(temp.path()), (Names{"best", "step_00000010"}));
}

}  // namespace
}  // namespace redline::io
