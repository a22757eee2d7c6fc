// A folder that is made whole or not at all, whatever fails on the way.
#include "io/new_folder.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/hash.h"
#include "testing/at_once.h"
#include "testing/failing_files.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::io {
namespace {

using redline::testing::says;

void fill(FileSystem& files, const Path& folder, const Path& source) {
  NewFolder made(files, folder, "--out");
  EXPECT_EQ(made.write("a", "text"), hash64("text"));
  EXPECT_EQ(made.copy(source, "b"), hash64("copied"));
  made.complete();
}

TEST(NewFolder, IsWholeAtTheEndAndNotThereBefore) {
  const testing::TempFolder temp;
  real_files().replace(temp / "source", "copied");
  for (const char* name : {"out", "deeper/out/", "empty"}) {
    if (std::string_view(name) == "empty") real_files().create_folders(temp / name);
    fill(real_files(), temp / name, temp / "source");
    EXPECT_EQ(real_files().read(temp / name / "b"), "copied");
    EXPECT_EQ(real_files().list(temp / name), (std::vector<std::string>{"a", "b"}));
  }
  { NewFolder unfinished(real_files(), temp / "never", "--out"); }
  EXPECT_FALSE(real_files().exists(temp / "never"));
  EXPECT_FALSE(real_files().exists(temp / "never.partial"));
}

TEST(NewFolder, FollowsNoLinkThatSomebodyPutBeside) {
  const testing::TempFolder temp;
  real_files().create_folders(temp / "theirs");
  std::filesystem::create_symlink(temp / "theirs", temp / "out.partial");
  EXPECT_THROW(NewFolder(real_files(), temp / "out", "--out"), UserError);
  EXPECT_TRUE(std::filesystem::is_symlink(temp / "out.partial"));
  EXPECT_EQ(real_files().list(temp / "theirs"), std::vector<std::string>());
}

TEST(NewFolder, NothingIsWrittenOver) {
  const testing::TempFolder temp;
  real_files().replace(temp / "file", "x");
  real_files().create_folders(temp / "full");
  real_files().replace(temp / "full/kept", "x");
  for (const char* name : {"file", "full", "file/inside"})
    EXPECT_TRUE(says(testing::error_of([&] { NewFolder folder(real_files(), temp / name, "--out"); }), {"--out "}));
  EXPECT_EQ(real_files().read(temp / "full/kept"), "x");
}

// Whoever made it: a folder of that name may be all that somebody has.
TEST(NewFolder, AFolderInTheWayIsNotTouched) {
  const testing::TempFolder temp;
  for (const std::string name : {"model.safetensors", "writing.txt", "folder"}) {
    real_files().create_folders(temp / "out.partial");
    real_files().replace(temp / "out.partial" / name, "mine");
    EXPECT_TRUE(says(testing::error_of([&] { NewFolder folder(real_files(), temp / "out", "--out"); }),
                     {"out.partial is in the way"}));
    EXPECT_EQ(real_files().read(temp / "out.partial" / name), "mine");
    real_files().remove_all(temp / "out.partial");
  }
}

TEST(NewFolder, TwoDoNotWriteAtOnce) {
  const testing::TempFolder temp;
  {
    NewFolder first(real_files(), temp / "out", "--out");
    first.write("a", "text");
    EXPECT_TRUE(says(testing::error_of([&] { NewFolder second(real_files(), temp / "out", "--out"); }),
                     {"another process is writing there"}));
    EXPECT_TRUE(real_files().exists(first.path() / "a"));
  }
  real_files().create_folders(temp / "out.partial/folder");  // a process that was killed holds no lock
  real_files().replace(temp / "out.partial/.lock", "");
  EXPECT_TRUE(NewFolder(real_files(), temp / "out", "--out").started_over());
}

TEST(NewFolder, ALinkToAnEmptyFolderStays) {
  const testing::TempFolder temp;
  real_files().replace(temp / "source", "copied");
  real_files().create_folders(temp / "there");
  std::filesystem::create_directory_symlink(temp / "there", temp / "link");
  fill(real_files(), temp / "link", temp / "source");
  EXPECT_EQ(real_files().read(temp / "there/b"), "copied");
  EXPECT_TRUE(std::filesystem::is_symlink(temp / "link"));
}

TEST(NewFolder, OfSeveralAtOnceOneMakesItAndTheOthersAreRefused) {
  using testing::CameTo;
  for (int round = 0; round < 10; ++round) {
    const testing::TempFolder temp;
    const auto ends = testing::at_once(4, [&] {
      NewFolder made(real_files(), temp / "out", "--out");
      made.write("a", "text");
      made.complete();
    });
    EXPECT_EQ(ends, (std::vector{CameTo::done, CameTo::user_error, CameTo::user_error, CameTo::user_error}));
    EXPECT_EQ(real_files().list(temp.path()), std::vector<std::string>{"out"});
  }
}

TEST(NewFolder, AFailureAnywhereLeavesNoHalfFolder) {
  for (const testing::Failure failure :
       {testing::Failure::once, testing::Failure::full_disk, testing::Failure::death}) {
    const std::int64_t changes = testing::at_every_change(failure, [](FileSystem& files, std::int64_t nth) {
      const testing::TempFolder temp;
      real_files().replace(temp / "source", "copied");
      try {
        fill(files, temp / "out", temp / "source");
      } catch (const MachineError&) {
      }
      const std::vector<std::string> names = real_files().list(temp / "out");
      EXPECT_TRUE(names.empty() || names.size() == 2) << nth;
      fill(real_files(), temp / (names.empty() ? "out" : "again"), temp / "source");  // what was left is not in the way
      ASSERT_LT(nth, 100);
    });
    EXPECT_GT(changes, 5);
  }
}

}  // namespace
}  // namespace redline::io
