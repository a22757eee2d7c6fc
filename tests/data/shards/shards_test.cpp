// Prepared folders: the bytes are what docs/formats.md says, documents come back as they went in, and no damage passes.
#include "data/shards/shards.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "data/batch.h"
#include "data/shards/small_folder.h"
#include "io/json.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using redline::testing::says;

std::vector<Ids> some_documents(std::size_t count, std::uint64_t longest, std::uint64_t vocabulary = 257) {
  const Random random(11, count);
  std::vector<Ids> documents;
  std::uint64_t draw = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Ids ids(1 + random.below(draw++, longest));
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.below(draw++, vocabulary));
    documents.push_back(std::move(ids));
  }
  return documents;
}

TokenSettings settings(Part part, bool evaluation) { return {"data.train", part, evaluation, 3, {}, {}}; }

class ShardsTest : public ::testing::Test {
 protected:
  Path folder() const { return folder_ / "data"; }
  Manifest write(const std::vector<Ids>& train, const std::vector<Ids>& val, std::int64_t shard_tokens = 1 << 20) {
    return write_folder(real_files(), folder(), train, val, shard_tokens);
  }
  std::unique_ptr<DocumentSource> open(Part part = Part::all, bool evaluation = false) const {
    return open_shards({read_prepared_folder(folder(), "data.train")}, settings(part, evaluation));
  }
  std::string error_of_reading() const {
    return testing::error_of([&] { all_documents(*open()); });
  }
  void flip(const std::string& name, std::size_t at) const {
    std::string bytes = real_files().read(folder() / name);
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    real_files().replace(folder() / name, bytes);
  }
  void replace_in_manifest(const std::string& from, const std::string& to) const {
    std::string text = real_files().read(folder() / kManifestFile);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    real_files().replace(folder() / kManifestFile, text.replace(at, from.size(), to));
  }
  redline::testing::TempFolder folder_;
};

TEST_F(ShardsTest, TheManifestIsReadOnce) {
  write({{1, 2, 256}, {7, 256}}, {});
  const PreparedFolder prepared = read_prepared_folder(folder(), "data.train");
  EXPECT_EQ(prepared.tokenizer(), "bytes");
  real_files().remove_all(folder() / kManifestFile);
  EXPECT_EQ(all_documents(*open_shards({prepared}, settings(Part::all, false))),
            (std::vector<Ids>{{1, 2, 256}, {7, 256}}));
}

TEST_F(ShardsTest, LayoutOfTheBytes) {
  const Manifest m = write({{1, 2, 256}, {255, 256}, {7, 256}}, {{9}}, 5);
  const auto bytes = [&](const char* name) { return real_files().read(folder() / name); };
  EXPECT_EQ(bytes("train-00000.tokens"), std::string("\1\0\2\0\0\1\xff\0\0\1", 10));
  EXPECT_EQ(bytes("train-00000.offsets"), std::string("\0\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0", 24));
  EXPECT_EQ(bytes("train-00001.tokens"), std::string("\7\0\0\1", 4));
  EXPECT_EQ(bytes("val-00000.tokens"), std::string("\11\0", 2));
  EXPECT_EQ(m.train.shards.size(), 2u);
  EXPECT_EQ(m.train.shards[0].token_file.blocks, std::vector<std::uint64_t>{hash64(bytes("train-00000.tokens"))});
  EXPECT_EQ(parse_manifest(manifest_text(m), "m"), m);
  write_folder(real_files(), folder_ / "wide", {{70000, 1}}, {}, 100, TokenType::u32, 100000);
  EXPECT_EQ(real_files().read(folder_ / "wide/train-00000.tokens"), std::string("\x70\x11\1\0\1\0\0\0", 8));
}

TEST_F(ShardsTest, DocumentsComeBack) {
  for (const auto& [count, longest, shard] :
       {std::tuple{1, 1, 10}, {5, 3, 4}, {400, 50, 1000}, {30, 200'000, 1'000'000}, {30, 200'000, 1}}) {
    const auto train = some_documents(static_cast<std::size_t>(count), static_cast<std::uint64_t>(longest));
    const auto val = some_documents(2, 9);
    real_files().remove_all(folder());
    write(train, val, shard);
    EXPECT_TRUE(all_documents(*open()) == train);
    EXPECT_TRUE(all_documents(*open(Part::training)) == train);
    EXPECT_TRUE(all_documents(*open(Part::all, true)) == val);
    EXPECT_TRUE(all_documents(*open(Part::held_out, true)) == val);
  }
  const auto source = open();
  EXPECT_EQ(source->vocabulary(), 257);
  EXPECT_EQ(source->order_seed(), 3u);
  EXPECT_EQ(source->decode({'h', 'i', 256}), "hi<end>");
  EXPECT_EQ(source->encode("hi"), (Ids{'h', 'i'}));
}

TEST_F(ShardsTest, WithoutAValSplitTheLastPartIsHeldOut) {
  const auto train = some_documents(200, 9);
  write(train, {});
  const auto training = all_documents(*open(Part::training)), held_out = all_documents(*open(Part::held_out, true));
  EXPECT_EQ(held_out.size(), 3u);
  auto both = training;
  both.insert(both.end(), held_out.begin(), held_out.end());
  EXPECT_TRUE(both == train);
  EXPECT_TRUE(all_documents(*open(Part::all, true)) == train);
  EXPECT_NE(open(Part::training)->fingerprint(), open(Part::held_out, true)->fingerprint());
  real_files().remove_all(folder());
  write({{1}}, {});
  EXPECT_THROW(open(Part::training), UserError);
  EXPECT_EQ(all_documents(*open()).size(), 1u);
}

TEST_F(ShardsTest, EmptySplits) {
  write({}, {});
  EXPECT_THROW(open(), UserError);
  real_files().remove_all(folder());
  write({}, {{1, 2}});
  EXPECT_THROW(open(), UserError);
  EXPECT_EQ(all_documents(*open(Part::held_out, true)).size(), 1u);
}

TEST_F(ShardsTest, SeveralFolders) {
  const auto a = some_documents(5, 9), b = some_documents(7, 9);
  write_folder(real_files(), folder_ / "a", a, {});
  write_folder(real_files(), folder_ / "b", b, {}, 10);
  const auto source = open_shards(
      {read_prepared_folder(folder_ / "a", "data.train"), read_prepared_folder(folder_ / "b", "data.train")},
      settings(Part::all, false));
  auto both = a;
  both.insert(both.end(), b.begin(), b.end());
  EXPECT_TRUE(all_documents(*source) == both);
}

TEST_F(ShardsTest, FingerprintFollowsContents) {
  write({{1, 2}, {3}}, {});
  const std::uint64_t first = open()->fingerprint();
  EXPECT_EQ(open()->fingerprint(), first);
  real_files().remove_all(folder());
  write({{1, 2}, {4}}, {});
  EXPECT_NE(open()->fingerprint(), first);
}

// One byte in each block of each file.
TEST_F(ShardsTest, DamageIsNamed) {
  const auto train = some_documents(150'000, 20);  // 3 MiB of tokens and 1.2 MiB of offsets
  const Manifest m = write(train, {}, 1 << 30);
  for (const BlockedFile* file : {&m.train.shards[0].token_file, &m.train.shards[0].offset_file}) {
    ASSERT_GE(file->blocks.size(), 2u);
    for (std::size_t block = 0; block < file->blocks.size(); ++block) {
      const std::size_t at = std::min(block * kBlockBytes + 12345, static_cast<std::size_t>(file->bytes) - 1);
      flip(file->name, at);
      const std::string error = error_of_reading();
      EXPECT_TRUE(says(error, {file->name + ": block " + std::to_string(block) + " (bytes "}));
      const auto source = open();
      Ids tokens;
      if (block > 0) source->read(0, tokens);  // what is whole can be read
      flip(file->name, at);
    }
  }
  EXPECT_EQ(error_of_reading(), "no error");
}

TEST_F(ShardsTest, MissingAndShortFiles) {
  const Manifest m = write({{1, 2}, {3, 4}}, {});
  for (const std::string name : {"train-00000.tokens", "train-00000.offsets"}) {
    const std::string whole = real_files().read(folder() / name);
    for (const std::string& other : {whole.substr(1), whole + "x", std::string()}) {
      real_files().replace(folder() / name, other);
      EXPECT_TRUE(says(error_of_reading(), {name}));
    }
    real_files().remove_all(folder() / name);
    EXPECT_TRUE(says(error_of_reading(), {"missing"}));
    real_files().replace(folder() / name, whole);
  }
  real_files().remove_all(folder() / kManifestFile);
  EXPECT_TRUE(says(error_of_reading(), {"not a whole folder"}));
}

// Offsets and ids that lie, under hashes that fit them.
TEST_F(ShardsTest, ConsistentLies) {
  const auto with_offsets = [&](std::vector<std::uint64_t> offsets) {
    Manifest m = write({{1, 2}, {3, 4}}, {});
    const auto bytes = std::as_bytes(std::span(offsets));
    real_files().replace(folder() / "train-00000.offsets",
                         std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    m.train.shards[0].offset_file.blocks = {hash64(bytes)};
    real_files().replace(folder() / kManifestFile, manifest_text(m));
    return error_of_reading();
  };
  EXPECT_EQ(with_offsets({0, 2, 4}), "no error");
  for (const auto& bad :
       {std::vector<std::uint64_t>{0, 5, 4}, {0, 0, 4}, {3, 2, 4}, {1, 2, 4}, {0, 2, 3}, {0, ~0ull, 4}})
    EXPECT_TRUE(says(with_offsets(bad), {"cannot be"}));
  Manifest m = write({{1, 256}}, {});
  m.vocabulary = 256;
  m.end_token.reset();
  real_files().replace(folder() / kManifestFile, manifest_text(m));
  EXPECT_TRUE(says(error_of_reading(), {"not below the vocabulary of 256"}));
}

TEST_F(ShardsTest, ManifestsAreReadStrictly) {
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"redline-shards", "other"},
      {"\"version\": 1", "\"version\": 2"},
      {"uint16", "uint8"},
      {"\"vocabulary\": 257", "\"vocabulary\": 0"},
      {"\"vocabulary\": 257", "\"vocabulary\": 70000"},
      {"\"vocabulary\": 257", "\"vocabulary\": 256"},  // the end token is 256
      {"\"block_bytes\": 1048576", "\"block_bytes\": 0"},
      {"\"name\": \"train-00000.tokens\"", "\"name\": \"../x\""},
      {"\"name\": \"train-00000.tokens\"", "\"name\": \"\""},
      {"\"bytes\": 6", "\"bytes\": 8"},
      {"\"bytes\": 6", "\"bytes\": -6"},
      {"\"documents\": 2,\n     \"tokens\": 3", "\"documents\": 4,\n     \"tokens\": 3"},
      {"\"documents\": 2,\n     \"tokens\": 3", "\"documents\": 2,\n     \"tokens\": 9223372036854775807"},
      {"\"documents\": 2,\n   \"tokens\": 3", "\"documents\": 2,\n   \"tokens\": 4"},
      {"\"xxh3\": [", "\"xxh3\": [\"0000000000000000\","},
      {"\"splits\"", "\"split\""},
      {"{", "["},
  };
  for (const auto& [from, to] : changes) {
    real_files().remove_all(folder());
    write({{1, 2}, {3}}, {});
    replace_in_manifest(from, to);
    const std::string error = error_of_reading();
    EXPECT_TRUE(says(error, {"manifest.json"})) << from << ": " << error;
  }
  real_files().remove_all(folder());
  write({{1, 2}, {3}}, {});
  replace_in_manifest("\"hash\": \"", "\"hash\": \"0000000000000000\", \"was\": \"");
  EXPECT_THROW(open()->encode("x"), UserError);  // another tokenizer than the data was made with
}

TEST_F(ShardsTest, ManyThreadsReadTheSame) {
  const auto train = some_documents(3000, 800);
  write(train, {}, 400'000);
  const auto source = open();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Ids tokens;
      const Random random(1, static_cast<std::uint64_t>(t));
      for (std::uint64_t i = 0; i < 3000; ++i) {
        const std::size_t d = random.below(i, train.size());
        source->read(static_cast<std::int64_t>(d), tokens);
        wrong += tokens != train[d];
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

std::vector<Ids> masked_documents(std::size_t count, std::uint64_t longest) {
  std::vector<Ids> documents = some_documents(count, longest);
  const Random random(5, count);
  std::uint64_t draw = 0;
  for (Ids& ids : documents)
    for (std::int32_t& id : ids)
      if (random.below(draw++, 3) > 0) id = as_context(id);
  return documents;
}

// Masks: one bit a token, back as it went in, and no damage passes. Folders without masks are what they were.
class MaskTest : public ShardsTest {
 protected:
  Manifest write(const std::vector<Ids>& train, std::int64_t shard_tokens = 1 << 20, TokenType type = TokenType::u16) {
    real_files().remove_all(folder());
    return write_folder(real_files(), folder(), train, {}, shard_tokens, type, 257, "ChatML");
  }
  void change_manifest(const std::function<void(io::Json&)>& change) const {
    io::Json json = io::read_json(real_files(), folder() / kManifestFile);
    change(json);
    real_files().replace(folder() / kManifestFile, json.dump());
  }
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
    EXPECT_TRUE(says(error_of_reading(), {"train-00000.mask: block"}));
  }
  real_files().replace(mask, bytes.substr(1));
  EXPECT_TRUE(says(error_of_reading(), {"train-00000.mask", fmt::format("{}", bytes.size())}));
  real_files().remove_all(mask);
  EXPECT_TRUE(says(error_of_reading(), {"train-00000.mask", "missing"}));
  real_files().replace(mask, bytes);
  EXPECT_EQ(error_of_reading(), "no error");
}

TEST_F(MaskTest, AManifestThatCannotBeIsRefused) {
  const auto documents = masked_documents(5, 20);
  const auto shard = [](io::Json& m) -> io::Json& { return m["splits"]["train"]["shards"][0]; };
  const std::pair<std::function<void(io::Json&)>, const char*> changes[] = {
      {[&](io::Json& m) { shard(m).erase("mask_file"); }, "\"mask_file\""},
      {[&](io::Json& m) { shard(m)["learned"] = 1000; }, "1000"},
      {[&](io::Json& m) { shard(m)["mask_file"]["bytes"] = 1; }, "1 bytes"},
      {[&](io::Json& m) { shard(m)["mask_file"]["name"] = "../x"; }, "\"../x\""},
      {[&](io::Json& m) { m.erase("chat"); }, "chat"},
      {[&](io::Json& m) { m["version"] = 3; }, "version 3"},
  };
  for (const auto& [change, words] : changes) {
    write(documents);
    change_manifest(change);
    EXPECT_TRUE(says(error_of_reading(), {words}));
  }
}

TEST_F(MaskTest, AnotherMaskIsOtherData) {
  write({{1, as_context(2), 3}});
  const std::uint64_t first = open()->fingerprint();
  write({{1, 2, as_context(3)}});
  EXPECT_NE(open()->fingerprint(), first);
}

// The end of its tokens, since nothing else can be held out.
TEST_F(ShardsTest, OneDocumentIsParted) {
  Ids ids(640);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i % 250);
  write({ids}, {});
  const auto training = open(Part::training), held_out = open(Part::held_out, true);
  EXPECT_EQ(training->length(0), 630);
  EXPECT_EQ(held_out->length(0), 10);
  std::vector<Ids> both = all_documents(*training);
  const std::vector<Ids> rest = all_documents(*held_out);
  both[0].insert(both[0].end(), rest[0].begin(), rest[0].end());
  EXPECT_EQ(both, std::vector<Ids>{ids});
  EXPECT_NE(training->fingerprint(), held_out->fingerprint());
  real_files().remove_all(folder());
  write({{1, 2, 3}}, {});
  EXPECT_TRUE(
      redline::testing::says(redline::testing::error_of([&] { open(Part::training); }), {"data.eval", "3 tokens"}));
}

}  // namespace
}  // namespace redline::data
