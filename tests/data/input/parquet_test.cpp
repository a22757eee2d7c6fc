// Rows of a table as documents: each once and in its order, for any size of a block and from any row on. The file is of
// pyarrow's: 60 rows in groups of 7, row i is "i xxx...", row 23 is empty and row 31 null. tests/interop/ has the rest.
#include "data/input/parquet.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/input/text_input.h"
#include "testing/paths.h"
#include "testing/says.h"

namespace redline::data {
namespace {

using redline::testing::says;

constexpr std::int64_t kRows = 60, kEmpty = 23, kNull = 31;

std::string text_of(std::int64_t row) {
  return row == kEmpty ? "" : fmt::format("{} ", row) + std::string(static_cast<std::size_t>(row * 37 % 300), 'x');
}

class ParquetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!parquet_library().functions) GTEST_SKIP() << parquet_library().problem;
  }

  // All rows from the place where the input stands.
  static std::int64_t expect_rows(TextInput& input, std::int64_t row, std::int64_t target, std::int64_t most) {
    TextBlock block;
    std::string text;
    while (input.next(block, target, most)) {
      EXPECT_GE(block.documents(), 1);
      EXPECT_LE(block.documents(), most);
      EXPECT_EQ(block.ends.back(), static_cast<std::int64_t>(block.bytes.size()));
      for (std::int64_t i = 0; i < block.documents(); ++i, ++row) {
        EXPECT_EQ(block.place(i), row);
        if (row == kNull) {
          EXPECT_THROW(input.parse(block, i, text), UserError);
        } else {
          input.parse(block, i, text);
          EXPECT_EQ(text, text_of(row));
        }
      }
      EXPECT_EQ(block.place(block.documents()), row);
    }
    return row;
  }

  const std::string path_ = testing::source_folder() + "/tests/fixtures/parquet/rows.parquet";
};

TEST_F(ParquetTest, BlocksOfAnySize) {
  for (const std::int64_t target : {1, 300, 1 << 20})
    for (const std::int64_t most : {1, 5, 1000}) {
      TextInput input({path_}, {}, "INPUT");
      input.check_files();
      EXPECT_EQ(expect_rows(input, 0, target, most), kRows) << target << " " << most;
      EXPECT_EQ(input.bytes_read(), input.bytes_on_disk());
    }
}

TEST_F(ParquetTest, GoesOnFromAnyRow) {
  TextInput input({path_}, {}, "INPUT");
  TextBlock block;
  for (std::int64_t row = 0; row <= kRows; ++row) {
    input.seek(0, row);
    EXPECT_EQ(expect_rows(input, row, 500, 4), kRows);
    // Forth within a group and beyond it, and back.
    for (const std::int64_t to : {row, std::min(row + 2, kRows - 1), std::min(row + 20, kRows - 1), row / 2}) {
      if (to == kRows) continue;
      input.seek(0, to);
      ASSERT_TRUE(input.next(block, 1, 1));
      EXPECT_EQ(block.place(0), to);
      EXPECT_EQ(block.bytes, to == kNull ? "" : text_of(to));
    }
  }
  EXPECT_THROW(input.seek(0, kRows + 1), UserError);
}

TEST_F(ParquetTest, LeavesOffAnywhere) {
  for (int blocks = 0; blocks < 8; ++blocks) {
    TextInput input({path_, path_}, {}, "INPUT");
    TextBlock block;
    for (int i = 0; i < blocks; ++i) ASSERT_TRUE(input.next(block, 800, 100));
  }
}

TEST_F(ParquetTest, TooLongARowIsNamed) {
  InputFormat format;
  format.longest_document = 250;
  TextInput input({path_}, format, "INPUT");
  TextBlock block;
  std::string text;
  std::int64_t row = 0, too_long = 0;
  while (input.next(block, 1 << 20, 1000)) {
    if (block.too_long > 0) {
      EXPECT_EQ(block.too_long, std::ssize(text_of(row)));
      ++too_long;
      ASSERT_EQ(block.documents(), 1);
      EXPECT_EQ(block.bytes, text_of(row).substr(0, 64));
      try {
        input.parse(block, 0, text);
        ADD_FAILURE() << "row " << row;
      } catch (const UserError& e) {
        EXPECT_TRUE(says(e.what(), {fmt::format("row {} (from 0)", row), "250 bytes", "data.max_document_mib"}));
      }
    }
    EXPECT_EQ(block.place(0), row);
    row += block.documents();
  }
  std::int64_t wanted = 0;
  for (std::int64_t i = 0; i < kRows; ++i) wanted += i != kNull && text_of(i).size() > 250;
  EXPECT_EQ(too_long, wanted);
  EXPECT_EQ(row, kRows);
}

}  // namespace
}  // namespace redline::data
