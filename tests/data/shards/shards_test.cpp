// Prepared folders: the bytes are what docs/formats.md says, documents come back as they went in, and no damage passes.
#include "data/shards/shards.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "data/shards/small_folder.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

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
    try {
      all_documents(*open());
    } catch (const UserError& e) {
      return e.what();
    }
    return "no error";
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
      EXPECT_NE(error.find(file->name + ": block " + std::to_string(block) + " (bytes "), std::string::npos) << error;
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
      EXPECT_NE(error_of_reading().find(name), std::string::npos);
    }
    real_files().remove_all(folder() / name);
    EXPECT_NE(error_of_reading().find("missing"), std::string::npos);
    real_files().replace(folder() / name, whole);
  }
  real_files().remove_all(folder() / kManifestFile);
  EXPECT_NE(error_of_reading().find("not a whole folder"), std::string::npos);
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
    EXPECT_NE(with_offsets(bad).find("cannot be"), std::string::npos);
  Manifest m = write({{1, 256}}, {});
  m.vocabulary = 256;
  m.end_token.reset();
  real_files().replace(folder() / kManifestFile, manifest_text(m));
  EXPECT_NE(error_of_reading().find("not below the vocabulary of 256"), std::string::npos);
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
    EXPECT_NE(error.find("manifest.json"), std::string::npos) << from << ": " << error;
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

}  // namespace
}  // namespace redline::data
