// Weights on their way between folders: whoever stops them finds nothing left.
#include "infer/hf_folders.h"

#include <gtest/gtest.h>

#include "testing/paths.h"
#include "testing/temp_folder.h"

namespace redline::infer {
namespace {

using namespace redline::testing;

TEST(HfFolders, StoppedAtTheBeginningOrBetweenFilesNothingIsLeft) {
  const TempFolder temp;
  export_model(real_files(), open_checkpoint(real_files(), fixture("llama3-gqa")), temp / "shards",
               {.shard_bytes = 200'000});
  const Checkpoint source = open_checkpoint(real_files(), temp / "shards");
  for (const bool at_once : {true, false}) {
    std::atomic<int> stop = at_once ? 1 : 0;
    std::uint64_t written = 0, all = 0;
    WriteWeights options;
    options.stop = &stop;
    options.progress = [&](std::uint64_t done, std::uint64_t of) {
      if (done > 0) stop = 1;
      written = done;
      all = of;
    };
    EXPECT_THROW(export_model(real_files(), source, temp / "out", options), Stopped);
    EXPECT_EQ(written == 0, at_once);
    EXPECT_TRUE(at_once || written < all) << written;
    stop = at_once ? 1 : 0;
    EXPECT_THROW(import_model(real_files(), source, temp / "out", options), Stopped);
    EXPECT_EQ(real_files().list(temp.path()), std::vector<std::string>{"shards"});
  }
}

}  // namespace
}  // namespace redline::infer
