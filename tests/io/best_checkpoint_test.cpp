// The name `best` follows the checkpoint that it is given, keeps it from being pruned, and is no checkpoint itself.
#include <gtest/gtest.h>

#include "base/hash.h"
#include "io/checkpoint_folder.h"
#include "testing/temp_folder.h"

namespace redline::io {
namespace {

using redline::testing::TempFolder;
using Names = std::vector<std::string>;

void write(const Path& parent, std::int64_t step) {
  write_checkpoint(real_files(), parent, step, [&](const Path& folder) {
    const std::string text = std::to_string(step);
    const auto writer = real_files().create(folder / "model.safetensors");
    writer->write(text);
    writer->close();
    return std::map<std::string, std::uint64_t>{{"model.safetensors", hash64(text)}};
  });
}

TEST(BestCheckpoint, FollowsWhatItIsGivenAndIsNotPruned) {
  TempFolder temp;
  EXPECT_EQ(best_checkpoint(temp.path()), std::nullopt);
  for (const std::int64_t step : {10, 20, 30}) write(temp.path(), step);
  for (const std::int64_t step : {10, 20}) {
    EXPECT_EQ(link_best(real_files(), temp.path(), step), "");
    EXPECT_EQ(best_checkpoint(temp.path()), step);
    EXPECT_EQ(real_files().read(temp.path() / "best/model.safetensors"), std::to_string(step));
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
  for (std::int64_t step = 10; step <= 50; step += 10) write(temp.path(), step);
  prune_checkpoints(real_files(), temp.path(), 2, 0, 50, {10, 30, 99});
  EXPECT_EQ(real_files().list(temp.path()),
            (Names{"step_00000010", "step_00000030", "step_00000040", "step_00000050"}));
}

// A command takes it for --checkpoint, and stays with the step that it found there.
TEST(BestCheckpoint, IsTheFolderOfItsStepToWhoeverReads) {
  TempFolder temp;
  for (const std::int64_t step : {10, 20}) write(temp.path(), step);
  ASSERT_EQ(link_best(real_files(), temp.path(), 10), "");
  EXPECT_EQ(find_weights_folder(real_files(), temp.path() / "best"), temp.path() / "step_00000010");
  EXPECT_EQ(find_weights_folder(real_files(), temp.path() / "best/"), temp.path() / "step_00000010");
  EXPECT_EQ(resolve_best(temp.path() / "step_00000020"), temp.path() / "step_00000020");
  EXPECT_EQ(resolve_best("best"), "best");  // there is none here
}

// A link that a kill left beside is in nobody's way; a folder that somebody called best stays, and is told of.
TEST(BestCheckpoint, TouchesNothingElse) {
  TempFolder temp;
  write(temp.path(), 10);
  std::filesystem::create_symlink("step_00000007", temp.path() / "best.new");
  EXPECT_EQ(link_best(real_files(), temp.path(), 10), "");
  EXPECT_EQ(best_checkpoint(temp.path()), 10);
  std::filesystem::remove(temp.path() / "best");
  std::filesystem::copy(temp.path() / "step_00000010", temp.path() / "best");
  const std::string problem = link_best(real_files(), temp.path(), 10);
  EXPECT_NE(problem.find("best cannot be made a link to the best checkpoint, which is step_00000010: "), problem.npos)
      << problem;
  EXPECT_EQ(best_checkpoint(temp.path()), std::nullopt);
  EXPECT_EQ(find_weights_folder(real_files(), temp.path() / "best"), temp.path() / "best");
  EXPECT_EQ(real_files().list(temp.path()), (Names{"best", "step_00000010"}));
}

}  // namespace
}  // namespace redline::io
