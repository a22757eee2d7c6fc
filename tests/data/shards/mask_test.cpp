// Masks of prepared folders: one bit a token, back as it went in, and no damage passes. Folders without masks are what
// they were.
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/random.h"
#include "data/batch.h"
#include "data/shards/shards.h"
#include "data/shards/small_folder.h"
#include "io/json.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

std::vector<Ids> masked_documents(std::size_t count, std::uint64_t longest) {
  const Random random(5, count);
  std::vector<Ids> documents;
  std::uint64_t draw = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Ids& ids = documents.emplace_back(1 + random.below(draw++, longest));
    for (std::int32_t& id : ids) {
      id = static_cast<std::int32_t>(random.below(draw++, 257));
      if (random.below(draw++, 3) > 0) id = as_context(id);
    }
  }
  return documents;
}

class MaskTest : public ::testing::Test {
 protected:
  Path folder() const { return temp_ / "data"; }
  Manifest write(const std::vector<Ids>& train, std::int64_t shard_tokens = 1 << 20, TokenType type = TokenType::u16) {
    real_files().remove_all(folder());
    return write_folder(real_files(), folder(), train, {}, shard_tokens, type, 257, "ChatML");
  }
  std::unique_ptr<DocumentSource> open() const {
    return open_shards({read_prepared_folder(folder(), "data.train")}, {"data.train", Part::all, false, 3, {}, {}});
  }
  std::string error_of_reading() const {
    try {
      all_documents(*open());
    } catch (const UserError& e) {
      return e.what();
    }
    return "no error";
  }
  void change_manifest(const std::function<void(io::Json&)>& change) const {
    io::Json json = io::read_json(real_files(), folder() / kManifestFile);
    change(json);
    real_files().replace(folder() / kManifestFile, json.dump());
  }
  redline::testing::TempFolder temp_;
};

TEST_F(MaskTest, LayoutOfTheBits) {
  const auto c = [](std::int32_t id) { return as_context(id); };
  const Manifest m = write({{1, c(2), 256}, {c(3), c(4), c(5), 6, 7}, {8, c(9)}, {c(1)}}, 10);
  const auto bytes = [&](const char* name) { return real_files().read(folder() / name); };
  EXPECT_EQ(bytes("train-00000.mask"), std::string("\xC5\x01", 2));  // 1 0 1, 0 0 0 1 1, 1 0
  EXPECT_EQ(bytes("train-00000.tokens"), std::string("\1\0\2\0\0\1\3\0\4\0\5\0\6\0\7\0\10\0\11\0", 20));
  EXPECT_EQ(bytes("train-00001.mask"), std::string("\0", 1));
  EXPECT_EQ(m.train.learned(), 5);
  EXPECT_EQ(parse_manifest(manifest_text(m), "m"), m);
  const io::Json json = io::read_json(real_files(), folder() / kManifestFile);
  EXPECT_EQ(json["version"], 2) << "a program that knows no masks must not read it";
  EXPECT_EQ(json["learned"], 5);
  EXPECT_EQ(json["chat"], "ChatML");
}

TEST_F(MaskTest, WithoutOneAFolderIsWhatItWas) {
  write_folder(real_files(), folder(), {{1, 2, 256}}, {});
  const io::Json json = io::read_json(real_files(), folder() / kManifestFile);
  EXPECT_EQ(json["version"], 1);
  for (const char* key : {"chat", "learned"}) EXPECT_FALSE(json.contains(key)) << key;
  EXPECT_EQ(json["splits"]["train"]["shards"][0].size(), 4u);
  EXPECT_EQ(real_files().list(folder()).size(), 3u);
  EXPECT_FALSE(open()->masked());
}

TEST_F(MaskTest, DocumentsComeBackWholeAndInParts) {
  for (const TokenType type : {TokenType::u16, TokenType::u32})
    for (const auto& [count, longest, shard] :
         {std::tuple{1, 1, 10}, {9, 3, 4}, {300, 50, 1000}, {20, 30'000, 1 << 24}}) {
      const auto documents = masked_documents(static_cast<std::size_t>(count), static_cast<std::uint64_t>(longest));
      write(documents, shard, type);
      const auto source = open();
      EXPECT_TRUE(source->masked());
      EXPECT_TRUE(all_documents(*source) == documents) << count;
      const Random random(3, 3);
      for (std::uint64_t i = 0; i < 50; ++i) {
        const auto at = random.below(4 * i, documents.size());
        const Ids& whole = documents[at];
        const auto begin = random.below(4 * i + 1, whole.size()),
                   count_of = random.below(4 * i + 2, whole.size() - begin + 1);
        Ids part = {7};
        source->append(static_cast<std::int64_t>(at), static_cast<std::int64_t>(begin),
                       static_cast<std::int64_t>(count_of), part);
        Ids expected = {7};
        expected.insert(expected.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin),
                        whole.begin() + static_cast<std::ptrdiff_t>(begin + count_of));
        EXPECT_TRUE(part == expected);
      }
    }
}

TEST_F(MaskTest, DamageIsNamed) {
  Ids long_one(8'500'000);  // several blocks of mask
  for (std::size_t i = 0; i < long_one.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i % 251);
    long_one[i] = i * 7 % 11 < 5 ? as_context(id) : id;
  }
  const std::vector<Ids> documents = {{1, as_context(2), 3}, long_one};
  ASSERT_EQ(write(documents, 1 << 24).train.shards[0].mask_file.blocks.size(), 2u);
  EXPECT_TRUE(all_documents(*open()) == documents);
  const Path mask = folder() / "train-00000.mask";
  const std::string bytes = real_files().read(mask);
  for (const std::size_t at : {std::size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    real_files().replace(mask, damaged);
    EXPECT_NE(error_of_reading().find("train-00000.mask: block"), std::string::npos) << error_of_reading();
  }
  real_files().replace(mask, bytes.substr(1));
  EXPECT_NE(error_of_reading().find("but the manifest says"), std::string::npos) << error_of_reading();
  real_files().remove_all(mask);
  EXPECT_NE(error_of_reading().find("train-00000.mask: the file is missing"), std::string::npos) << error_of_reading();
  real_files().replace(mask, bytes);
  EXPECT_EQ(error_of_reading(), "no error");
}

TEST_F(MaskTest, AManifestThatCannotBeIsRefused) {
  const auto documents = masked_documents(5, 20);
  const auto shard = [](io::Json& m) -> io::Json& { return m["splits"]["train"]["shards"][0]; };
  const std::pair<std::function<void(io::Json&)>, const char*> changes[] = {
      {[&](io::Json& m) { shard(m).erase("mask_file"); }, "the key \"mask_file\" is missing"},
      {[&](io::Json& m) { shard(m)["learned"] = 1000; }, "\"learned\" is 1000, not from 0 to"},
      {[&](io::Json& m) { shard(m)["mask_file"]["bytes"] = 1; }, "has 1 bytes where its counts ask for"},
      {[&](io::Json& m) { shard(m)["mask_file"]["name"] = "../x"; }, "is no name of a file in the folder"},
      {[&](io::Json& m) { m.erase("chat"); }, "chat"},
      {[&](io::Json& m) { m["version"] = 3; }, "version 3 of the format; this program reads versions 1 and 2"},
  };
  for (const auto& [change, words] : changes) {
    write(documents);
    change_manifest(change);
    EXPECT_NE(error_of_reading().find(words), std::string::npos) << error_of_reading();
  }
}

TEST_F(MaskTest, AnotherMaskIsOtherData) {
  write({{1, as_context(2), 3}});
  const std::uint64_t first = open()->fingerprint();
  write({{1, 2, as_context(3)}});
  EXPECT_NE(open()->fingerprint(), first);
}

}  // namespace
}  // namespace redline::data
