// What passes for text and what is named: formats by their first bytes, other bytes by a sample.
#include "data/input/byte_stream.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "testing/says.h"

namespace redline::data {
namespace {

using redline::testing::says;
using namespace std::string_view_literals;

std::string why(std::string_view start, std::string_view separator = "") {
  return why_not_text(start, {}, separator, false);
}

TEST(FileKind, FormatsAreNamedWithWhatToDo) {
  const auto expect = [](std::string_view start, std::string_view name, std::string_view instead) {
    const std::string text = why(start);
    EXPECT_EQ(text.find(fmt::format("this is {}, not text; ", name)), 0u) << text;
    EXPECT_TRUE(says(text, {instead}));
    EXPECT_EQ(why_not_text(start, {}, "", true), text) << "its text is meant, not its bytes";
  };
  expect("PAR1\x15\x04\x15\x80"sv, "a Parquet file", "read_parquet(FILE).to_json(");
  expect("ARROW1\0\0\xff\xff\xff\xff"sv, "an Arrow file", "read_feather");
  expect("\xff\xff\xff\xff\x70\x02\0\0\x10\0"sv, "an Arrow stream", "datasets.Dataset.from_file(FILE).to_json(");
  expect("\x1f\x8b\x08"sv, "gzip", ".gz");
  expect("\x28\xb5\x2f\xfd"sv, "zstd", ".zst");
  expect("BZh91AY&SY\x01\x02"sv, "bzip2", "bunzip2");
  expect("PK\x03\x04\x14"sv, "a zip archive", "unzip");
  expect(std::string(257, '\0') + "ustar", "a tar archive", "tar xf");
  expect("\x89HDF\r\n\x1a\n"sv, "an HDF5 file", "read_hdf");
  expect("\x93NUMPY\x01\0"sv, "a NumPy array", ".bin");
  expect("%PDF-1.7\n"sv, "a PDF", "pdftotext");
  expect("SQLite format 3\0"sv, "an SQLite database", ".jsonl");
  expect("\xff\xfeh\0i\0"sv, "UTF-16", "iconv");
}

TEST(FileKind, OtherBytesPassWhereBytesAreAskedFor) {
  for (const std::string_view start :
       {"\x7f\x45LF\x02\x01\x01"sv, "MZ\x90\0\x03"sv, "\xcf\xfa\xed\xfe\x07"sv, "\x89PNG\r\n\x1a\n"sv,
        "\xff\xd8\xff\xe0"sv, "GIF89a\x01\0"sv, "\x20\0\0\0\0\0\0\0{\"w\":{\"dtype\""sv, "\0\1\2\3\4\5\6\7"sv}) {
    EXPECT_TRUE(says(why(start), {"data.tokenizer=bytes"}));
    EXPECT_EQ(why_not_text(start, {}, "", true), "");
  }
  const Random random(1, 2);
  std::string noise;
  for (std::uint64_t i = 0; i < 4096; ++i) noise += static_cast<char>(256 * random.uniform(i));
  EXPECT_NE(why(noise), "");
  const std::string text(4096, 'a');
  EXPECT_NE(why_not_text(text, noise, "", false), "") << "the middle counts";
}

TEST(FileKind, TextPasses) {
  EXPECT_EQ(why(""), "");
  EXPECT_EQ(why("a"), "");
  EXPECT_EQ(why("one\0or two"sv), "") << "too few to tell";
  EXPECT_EQ(why("MZ was a letter pair"), "");
  EXPECT_EQ(why("PAR1 and BM and GIF8 begin a text\n"), "");
  EXPECT_EQ(why("\xEF\xBB\xBFtext"), "");
  EXPECT_EQ(why("\x1b[1mbold\x1b[0m\ttabs\r\nand bells are rare"), "");
  EXPECT_EQ(why("caf\xe9 au lait, s'il vous pla\xeet, et une tarte aux pommes pour monsieur"), "") << "old encodings";
  const std::string cut = "\x82\xac" + std::string(100, 'e') + "\xe2\x82";
  EXPECT_EQ(why_not_text("text", cut, "", false), "") << "a sample cuts characters";
  EXPECT_NE(why("a\0b\0c\0d\0"sv), "");
  EXPECT_EQ(why("a\0b\0c\0d\0"sv, "\0"sv), "") << "the separator";
}

TEST(FileKind, TablesByTheirNames) {
  EXPECT_TRUE(says(why_not_one_document("a.csv", "data.separator"), {"data.separator='\\n'"}));
  EXPECT_TRUE(says(why_not_one_document("a.tsv.zst", "--separator"), {"sep=\"\\t\""}));
  EXPECT_EQ(why_not_one_document("a.txt", "data.separator"), "");
}

}  // namespace
}  // namespace redline::data
