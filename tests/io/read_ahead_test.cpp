// What waits for bytes gets them, in whatever order they are asked for, and never waits for what cannot come.
#include "io/read_ahead.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "testing/temp_folder.h"

namespace redline::io {
namespace {

TEST(ReadAhead, GoesAsFarAsAllowedAndNotThroughWhatNobodyWants) {
  testing::TempFolder temp;
  real_files().create(temp / "f")->write(std::string(std::size_t{5} << 20, 'x'));
  ReadAhead ahead(temp / "f", {{1, 100}, {std::uint64_t{3} << 20, std::uint64_t{2} << 20}});
  ahead.allow(50);
  ahead.wait_for(101);
  ahead.allow(std::uint64_t{5} << 20);
  ahead.wait_for(std::uint64_t{5} << 20);
  ahead.wait_for(10);
}

TEST(ReadAhead, AFileThatEndsTooSoonIsLeftToTheReader) {
  testing::TempFolder temp;
  real_files().create(temp / "f")->write("short");
  ReadAhead ahead(temp / "f", {{0, 1000}});
  ahead.allow(1000);
  ahead.wait_for(1000);
  std::vector<std::byte> bytes(1000);
  EXPECT_THROW(InputFile(temp / "f").read(0, bytes), UserError);
}

TEST(ReadAhead, EndsWhileItWaitsToBeAllowed) {
  testing::TempFolder temp;
  real_files().create(temp / "f")->write("some bytes");
  const ReadAhead ahead(temp / "f", {{0, 10}});
}

}  // namespace
}  // namespace redline::io
