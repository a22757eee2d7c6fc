// Inputs as people keep them: every document once and whole, for any block size and compression; damage named by place.
#include "data/input/text_input.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "data/input/gzipped.h"
#include "testing/says.h"
#include "testing/temp_folder.h"
#include "testing/without_rights.h"

namespace redline::data {
namespace {

using redline::testing::says;

std::string zstandard(std::string_view text, int window_log = 0) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  if (window_log > 0) {
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  }
  std::string out(ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  // Not in one call: then zstd would know the size and shrink the window.
  ZSTD_compressStream2(context, &to, &in, ZSTD_e_continue);
  while (ZSTD_compressStream2(context, &to, &in, ZSTD_e_end) != 0) {
  }
  ZSTD_freeCCtx(context);
  out.resize(to.pos);
  return out;
}

struct Document {
  std::string text;
  std::int64_t file, offset;
  bool operator==(const Document& other) const { return text == other.text && file == other.file; }
};

class TextInputTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view bytes) {
    const Path path = folder_ / name;
    real_files().create_folders(path.parent_path());
    real_files().replace(path, bytes);
    return path.string();
  }
  static std::vector<Document> rest(TextInput& input, std::int64_t target, std::int64_t most) {
    std::vector<Document> documents;
    TextBlock block;
    while (input.next(block, target, most)) {
      EXPECT_GE(block.documents(), 1);
      EXPECT_LE(block.documents(), most);
      EXPECT_EQ(block.ends.back(), static_cast<std::int64_t>(block.bytes.size()));
      for (std::int64_t i = 0; i < block.documents(); ++i) {
        Document d{"", block.file, block.offset + block.begin(i)};
        input.parse(block, i, d.text);
        documents.push_back(std::move(d));
      }
    }
    return documents;
  }
  static std::vector<std::string> texts(const std::vector<std::string>& paths, const InputFormat& format = {},
                                        std::int64_t target = 1 << 20) {
    TextInput input(paths, format, "INPUT");
    std::vector<std::string> all;
    for (Document& d : rest(input, target, 1 << 20)) all.push_back(std::move(d.text));
    EXPECT_EQ(input.bytes_read(), input.bytes_on_disk());
    return all;
  }
  static std::string error_of(const std::vector<std::string>& paths, const InputFormat& format = {}) {
    return testing::error_of([&] { texts(paths, format); });
  }
  using Texts = std::vector<std::string>;
  redline::testing::TempFolder folder_;
};

TEST_F(TextInputTest, LinesOfJson) {
  const std::string lines =
      "\xEF\xBB\xBF{\"text\": \"one\"}\n\n  "
      "\r\n{\"id\":7,\"text\":\"two\\n\",\"x\":[1,{\"text\":\"no\"}]}\r\n{\"text\":\"\"}";
  const Texts wanted = {"one", "two\n", ""};
  EXPECT_EQ(texts({write("a.jsonl", lines)}), wanted);
  EXPECT_EQ(texts({write("a.ndjson.gz", gzipped(lines))}), wanted);
  EXPECT_EQ(texts({write("a.jsonl.zst", zstandard(lines))}), wanted);
  EXPECT_EQ(texts({write("A.JSONL", lines)}), wanted);
  EXPECT_EQ(texts({write("A.Jsonl.GZ", gzipped(lines))}), wanted);
  EXPECT_EQ(texts({write("a.json.gz", gzipped(lines))}), wanted);
  EXPECT_EQ(texts({write("b.jsonl", lines + "\n\n \n")}), wanted);
  EXPECT_EQ(texts({write("c.jsonl", "\n\n")}), Texts{});
}

TEST_F(TextInputTest, TextIsOneDocumentAFileOrSeparated) {
  const std::string text =
      "\xEF\xBB\xBF"
      "alpha\r\n--beta----gamma--";
  EXPECT_EQ(texts({write("a.txt", text)}), Texts{text.substr(3)});
  InputFormat format;
  format.separator = "--";
  const Texts wanted = {"alpha\r\n", "beta", "", "gamma"};
  for (const std::int64_t target : {1, 5, 1000}) {
    EXPECT_EQ(texts({write("a.txt", text)}, format, target), wanted);
    EXPECT_EQ(texts({write("a.txt.gz", gzipped(text))}, format, target), wanted);
    EXPECT_EQ(texts({write("a.zst", zstandard(text))}, format, target), wanted);
  }
  EXPECT_EQ(texts({write("b.txt", "x--y")}, format), (Texts{"x", "y"}));
}

TEST_F(TextInputTest, FoldersAndGlobsInOrder) {
  write("in/b.txt", "b");
  write("in/a/z.jsonl", "{\"text\":\"z\"}");
  write("in/a/empty.txt", "");
  write("in/c.txt.gz", gzipped("c"));
  EXPECT_EQ(texts({(folder_ / "in").string()}), (Texts{"z", "b", "c"}));
  EXPECT_EQ(texts({(folder_ / "in/*.txt*").string(), (folder_ / "in/a").string()}), (Texts{"b", "c", "z"}));
  EXPECT_TRUE(says(error_of({(folder_ / "none.txt").string()}), {"INPUT", (folder_ / "none.txt").string()}));
  EXPECT_NE(error_of({}), "no error");
}

TEST_F(TextInputTest, TheFolderThatCannotBeReadIsNamed) {
  write("in/a/b/x.txt", "x");
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  const redline::testing::WithoutRights rights(folder_ / "in/a/b");
  EXPECT_TRUE(says(error_of({(folder_ / "in").string()}), "the folder " + (folder_ / "in/a/b").string() + " cannot"));
}

// Documents of all sizes around the buffer's, cut at every kind of place, are the same for every block size; and from
// each of them reading goes on the same after a seek.
TEST_F(TextInputTest, BlocksAndSeeks) {
  const Random random(3, 1);
  std::string lines, text;
  Texts wanted;
  for (std::uint64_t i = 0; i < 60; ++i) {
    std::string body(i % 9 == 4 ? 200'000 + random.below(i, 200'000) : random.below(i, 300), 'x');
    body += std::to_string(i);
    lines += "{\"text\":\"" + body + "\"}\n" + (i % 7 == 0 ? "\n" : "");
    text += body + "<END>";
    wanted.push_back(body);
  }
  InputFormat format;
  format.separator = "<END>";
  for (const std::string& path : {write("a.jsonl", lines), write("b.jsonl.gz", gzipped(lines)), write("c.txt", text),
                                  write("d.txt.zst", zstandard(text))}) {
    TextInput whole({path}, format, "INPUT");
    const std::vector<Document> all = rest(whole, 1 << 30, 1 << 30);
    ASSERT_EQ(all.size(), wanted.size());
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].text, wanted[i]);
    for (const auto& [target, most] : {std::pair{1, 1}, {1000, 3}, {100'000, 1000}, {300'000, 7}}) {
      TextInput input({path}, format, "INPUT");
      EXPECT_TRUE(rest(input, target, most) == all) << path << " " << target;
    }
    TextInput input({path}, format, "INPUT");
    for (std::size_t i = 0; i < all.size(); i += 7) {
      input.seek(0, all[i].offset);
      EXPECT_TRUE(rest(input, 5000, 10) ==
                  std::vector<Document>(all.begin() + static_cast<std::ptrdiff_t>(i), all.end()))
          << path << " " << i;
    }
    input.seek(1, 0);
    EXPECT_TRUE(rest(input, 1, 1).empty());
    EXPECT_THROW(input.seek(0, 1 << 30), UserError);
  }
}

TEST_F(TextInputTest, ConcatenatedArchives) {
  const std::string a = "{\"text\":\"a\"}\n", b = "{\"text\":\"b\"}\n";
  EXPECT_EQ(texts({write("a.jsonl.gz", gzipped(a) + gzipped(b) + gzipped(""))}), (Texts{"a", "b"}));
  EXPECT_EQ(texts({write("b.jsonl.gz", gzipped(a) + gzipped(b) + std::string(700, '\0'))}), (Texts{"a", "b"}));
  EXPECT_EQ(texts({write("a.jsonl.zst", zstandard(a) + zstandard(b))}), (Texts{"a", "b"}));
  EXPECT_TRUE(
      says(error_of({write("c.jsonl.gz", gzipped(a) + "rest")}), {"c.jsonl.gz: byte 33 of the compressed file"}));
}

TEST_F(TextInputTest, NamesMustFitContents) {
  EXPECT_TRUE(says(error_of({write("a.jsonl.gz", "{\"text\":1}")}), {"a.jsonl.gz: the name says gzip"}));
  EXPECT_TRUE(says(error_of({write("a.txt.zst", "plain")}), {"the name says zstd"}));
  EXPECT_TRUE(says(error_of({write("a.txt", gzipped("x"))}), {"this is gzip"}));
  EXPECT_TRUE(says(error_of({write("a.jsonl", zstandard("x"))}), {"this is zstd"}));
}

TEST_F(TextInputTest, WhatIsNoTextIsNamedAndTheNextFileGoesOn) {
  const std::string good = write("z.txt", "text");
  std::string tar(257, '\0');
  tar += "ustar";
  const std::string packed = write("a.txt.gz", gzipped(tar));
  TextInput input({packed, good}, {}, "INPUT");
  EXPECT_THROW(input.check_files(), UserError);
  TextBlock block;
  EXPECT_THROW(input.next(block, 1, 1), UserError);
  ASSERT_TRUE(input.next(block, 1, 1));
  EXPECT_EQ(block.bytes, "text");
  EXPECT_TRUE(says(error_of({packed}), {"a.txt.gz", "a tar archive"}));
  EXPECT_TRUE(says(error_of({write("a.jsonl", "PAR1\x15\x04{")}), {"pandas.read_parquet(FILE).to_json("}));
}

TEST_F(TextInputTest, AnArrayIsToldBeforeAnythingIsRead) {
  const TextInput input({write("a.json", "[\n {\"text\": \"a\"},\n {\"text\": \"b\"}\n]\n")}, {}, "data.train");
  EXPECT_TRUE(says(testing::error_of([&] { input.check_files(); }), {"a.json: this is one JSON array"}));
}

TEST_F(TextInputTest, ATableIsNoDocument) {
  InputFormat format;
  EXPECT_TRUE(says(error_of({write("a.csv", "id,text\n1,a\n")}), {"a.csv", "a table"}));
  format.separator_key = "--separator";
  EXPECT_TRUE(says(error_of({write("a.tsv.gz", gzipped("id\n"))}, format), {"--separator='\\n'"}));
  format.separator = "\n";
  EXPECT_EQ(texts({write("a.csv", "id,text\n1,a\n")}, format), (Texts{"id,text", "1,a"}));
}

TEST_F(TextInputTest, AMissingFieldSaysHowToNameIt) {
  InputFormat format;
  format.text_field_key = "--text-field";
  const std::string path = write("a.jsonl", "{\"text\":\"a\"}\n{\"body\":\"b\"}\n");
  EXPECT_EQ(error_of({path}, format), path +
                                          ":2:1: there is no field \"text\"; the field is \"body\"; name the one "
                                          "that holds the text with --text-field");
}

// Cut at every byte: documents before the cut come, then an error with the place, then the next file.
TEST_F(TextInputTest, TruncatedArchives) {
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += fmt::format("{{\"text\":\"document {}\"}}\n", i);
  const std::string next = write("z.jsonl", "{\"text\":\"next\"}");
  for (const bool gzip : {true, false}) {
    const std::string packed = gzip ? gzipped(lines) : zstandard(lines);
    for (std::size_t size = 1; size < packed.size(); size += 3) {
      const std::string path = write(gzip ? "a.jsonl.gz" : "a.jsonl.zst", packed.substr(0, size));
      TextInput input({path, next}, {}, "INPUT");
      TextBlock block;
      std::string error;
      std::vector<std::string> last;
      for (;;) {
        try {
          if (!input.next(block, 1, 1)) break;
          last.emplace_back();
          input.parse(block, 0, last.back());
        } catch (const UserError& e) {
          EXPECT_TRUE(error.empty());
          error = e.what();
        }
      }
      EXPECT_TRUE(says(error, {path})) << size;
      if (size > 4) {
        EXPECT_TRUE(says(error, {fmt::format("cut short at byte {}", size)}));
      }
      ASSERT_FALSE(last.empty());
      EXPECT_EQ(last.back(), "next");
    }
  }
}

// Somebody empties a file that is read again and again: fewer documents are not taken for all of them.
TEST_F(TextInputTest, AFileThatBecomesShorterIsNamed) {
  const std::string path = write("a.jsonl", "{\"text\":\"one\"}\n{\"text\":\"two\"}\n");
  const std::string other = write("b.jsonl", "{\"text\":\"three\"}\n");
  TextInput input({path, other}, {}, "data");
  TextBlock block;
  for (const std::uint64_t bytes : {15, 20}) {  // between two lines, and inside one
    write("a.jsonl", "{\"text\":\"one\"}\n{\"text\":\"two\"}\n");
    input.seek(0, 0);
    while (input.next(block, 1, 1)) {
    }
    real_files().truncate(path, bytes);
    input.seek(0, 0);
    ASSERT_TRUE(input.next(block, 1, 1));  // what is there comes first
    EXPECT_EQ(block.bytes, "{\"text\":\"one\"}\n");
    EXPECT_TRUE(
        says(testing::error_of([&] { input.next(block, 1, 1); }), {path, fmt::format("ends at byte {}", bytes)}));
    ASSERT_TRUE(input.next(block, 1, 1));  // and the next file after it
    EXPECT_EQ(block.bytes, "{\"text\":\"three\"}\n");
    EXPECT_FALSE(input.next(block, 1, 1));
  }
}

TEST_F(TextInputTest, DamagedArchives) {
  std::string packed = gzipped(std::string(100'000, 'a') + "tail");
  packed[packed.size() / 2] ^= 0x55;
  EXPECT_TRUE(says(error_of({write("a.txt.gz", packed)}), {"damaged gzip data"}));
  packed = gzipped("some text");
  packed[packed.size() - 6] ^= 1;  // in the check sum
  EXPECT_TRUE(says(error_of({write("b.txt.gz", packed)}), {"damaged gzip data"}));
  packed = zstandard("some text of a few words");
  packed[packed.size() - 10] ^= 0x04;
  EXPECT_TRUE(says(error_of({write("c.txt.zst", packed)}), {"damaged zstd data"}));
}

TEST_F(TextInputTest, WindowLimitIsSaid) {
  const std::string packed = zstandard("x", 30);
  EXPECT_TRUE(says(error_of({write("a.txt.zst", packed)}), {"a window larger than 128 MiB"}));
  EXPECT_EQ(texts({write("b.txt.zst", zstandard("x", 27))}), Texts{"x"});
}

TEST_F(TextInputTest, LongDocumentsHaveALimit) {
  InputFormat format;
  format.longest_document = 1000;
  const std::string good = "{\"text\":\"a\"}\n", bad = "{\"text\":\"" + std::string(2'000'000, 'x') + "\"}\n";
  const std::string path = write("a.jsonl", good + bad + good);
  EXPECT_TRUE(says(error_of({path}, format),
                   {path + ":2:1: ", fmt::format("{} bytes", bad.size()), "1000 bytes", "data.max_document_mib"}));
  // It is one malformed document: what follows it is read, with its line and its place.
  for (const std::string& end : {good, std::string()}) {
    TextInput input({write("l.jsonl", good + bad + bad + good + end), write("m.jsonl", bad.substr(0, 5000)), path},
                    format, "INPUT");
    TextBlock block;
    std::vector<std::string> seen;
    while (input.next(block, 1, 1)) {
      std::string text;
      try {
        input.parse(block, 0, text);
      } catch (const UserError& e) {
        text = "too long";
      }
      seen.push_back(fmt::format("{}:{}:{} {}", block.file, block.line, block.offset, text));
    }
    Texts expected = {"0:1:0 a", "0:2:13 too long", fmt::format("0:3:{} too long", 13 + bad.size()),
                      fmt::format("0:4:{} a", 13 + 2 * bad.size())};
    if (!end.empty()) expected.push_back(fmt::format("0:5:{} a", 26 + 2 * bad.size()));
    expected.insert(expected.end(),
                    {"1:1:0 too long", "2:1:0 a", "2:2:13 too long", fmt::format("2:3:{} a", 13 + bad.size())});
    EXPECT_EQ(seen, expected);
  }
  EXPECT_TRUE(says(error_of({write("a.txt", std::string(1001, 'a'))}, format), {"cut it with data.separator"}));
  EXPECT_EQ(texts({write("b.txt", std::string(1000, 'a'))}, format).size(), 1u);
  // So is one of a text, whose separator may stand across two readings.
  format.separator = "<->";
  for (const std::size_t size : {2000ul, (1ul << 18) - 1, (1ul << 18) - 2, 600'000ul}) {
    TextInput text({write("c.txt", "a<->" + std::string(size - 4, '<') + "<->b<->c")}, format, "INPUT");
    TextBlock block;
    std::vector<std::string> seen;
    while (text.next(block, 1, 1)) {
      seen.push_back(fmt::format("{} {}", block.offset, block.too_long));
    }
    EXPECT_EQ(seen, (Texts{"0 0", fmt::format("4 {}", size - 1), fmt::format("{} 0", size + 3),
                           fmt::format("{} 0", size + 7)}));
  }
  format.separator.clear();
  const std::string blank = write("blank.jsonl", std::string(5'000'000, '\n') + good);
  EXPECT_EQ(texts({blank}, format), Texts{"a"});
  EXPECT_EQ(texts({write("c.jsonl", good + std::string(800'000, '\n') + good)}, format, 10), (Texts{"a", "a"}));
}

// Documents must not depend on the memory: such a one is no malformed document, and nothing passes over it.
TEST_F(TextInputTest, ADocumentWithoutMemoryIsAnotherErrorThanOneThatIsTooLong) {
  InputFormat format;
  format.longest_document = 1000;
  format.most_in_memory = 100;
  format.most_in_memory_is = "the limit of a test";
  const auto error = [&](std::size_t size) {
    TextInput input({write("a.jsonl", "{\"text\":\"" + std::string(size - 11, 'x') + "\"}")}, format, "INPUT");
    TextBlock block;
    std::string text;
    EXPECT_TRUE(input.next(block, 1, 1));
    try {
      input.parse(block, 0, text);
      return std::string("none");
    } catch (const TooLong& e) {
      EXPECT_TRUE(says(e.what(), {fmt::format("{} bytes", size), "100 bytes", "the limit of a test"}));
      return std::string("no memory");
    } catch (const UserError& e) {
      return std::string("malformed");
    }
  };
  EXPECT_EQ(error(100), "none");
  EXPECT_EQ(error(101), "no memory");
  EXPECT_EQ(error(1000), "no memory");
  EXPECT_EQ(error(1001), "malformed");
}

TEST_F(TextInputTest, FilesAreHashedAsTheyAreRead) {
  const std::string lines(300'000, '\n'), a = write("a.jsonl", lines + "{\"text\":\"a\"}\n"),
                                          b = write("b.txt.gz", gzipped("some text"));
  for (const std::int64_t target : {1, 1 << 20}) {
    TextInput input({a, b}, {}, "INPUT");
    input.hash_files();
    TextBlock block;
    while (input.next(block, target, 10)) {
    }
    const std::vector<FileHash> hashes = input.hashes();
    ASSERT_EQ(hashes.size(), 2u);
    for (const auto& [path, bytes, hash] : hashes) {
      EXPECT_EQ(bytes, static_cast<std::int64_t>(real_files().size(path)));
      EXPECT_EQ(hash, hash64(real_files().read(path)));
    }
  }
}

TEST_F(TextInputTest, MalformedDocumentsAreNamed) {
  const std::string good = "{\"text\":\"a\"}\n";
  const std::string path = write("a.jsonl", good + "\n" + good + "  {\"text\": \"b\" x}\n");
  EXPECT_TRUE(says(error_of({path}), {path + ":4:16: "}));
  const std::string utf8 = write("b.jsonl.gz", gzipped(good + "{\"text\":\"\xff\"}\n"));
  EXPECT_TRUE(says(error_of({utf8}), {utf8 + ":2:10: ", "UTF-8"}));
  const std::string cut = write("c.jsonl", good + "{\"text\":\"abc\r\n" + good);
  EXPECT_TRUE(says(error_of({cut}), {cut + ":2:13: "}));
  InputFormat format;
  format.separator = "|";
  const std::string text = write("d.txt", "good|also\xC3|x");
  EXPECT_TRUE(says(error_of({text}, format), {text + ": byte 9: ", "UTF-8"}));
  TextInput input({path}, {}, "INPUT");  // after a seek the line is not known, the byte is
  input.seek(0, 13);
  TextBlock block;
  std::string out;
  ASSERT_TRUE(input.next(block, 1 << 20, 100));
  EXPECT_EQ(block.documents(), 2);
  EXPECT_TRUE(says(testing::error_of([&] { input.parse(block, 1, out); }), {path + ": byte 42: "}));
}

}  // namespace
}  // namespace redline::data
