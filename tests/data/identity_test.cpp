// Which bytes of a file its samples see, and that they see files of every length.
#include "data/identity.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "data/generated.h"
#include "data/input/gzipped.h"
#include "data/open_corpus.h"
#include "data/shards/prepare.h"
#include "data/shards/shards.h"
#include "data/shards/small_folder.h"
#include "data/text.h"
#include "io/json.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

namespace fs = std::filesystem;

std::uint64_t sampled(const std::vector<std::byte>& bytes, std::size_t files) {
  Hasher hasher;
  hash_sampled(hasher, bytes, files);
  return hasher.digest();
}

TEST(Samples, SeeAllOfASmallFileAndEveryPartOfALargeOne) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{1} << 20, (std::size_t{1} << 20) + 1,
                                 (std::size_t{3} << 20) + 77, std::size_t{9} << 20}) {
    for (const std::size_t files : {std::size_t{1}, std::size_t{100}, std::size_t{100000}}) {
      std::vector<std::byte> bytes(size);
      const std::uint64_t before = sampled(bytes, files);
      EXPECT_EQ(sampled(bytes, files), before);
      const std::size_t shares = size <= std::size_t{1} << 20 ? size : files == 1 ? 256 : files == 100 ? 40 : 4;
      std::size_t seen = 0;
      const std::size_t steps = std::min<std::size_t>(shares, 64);
      for (std::size_t i = 0; i < steps; ++i) {
        const std::size_t share = i * shares / steps, at = size / shares * share + size / shares / 2;
        bytes[at] = std::byte{1};
        seen += sampled(bytes, files) != before;
        bytes[at] = std::byte{0};
      }
      EXPECT_EQ(seen, steps) << size << " bytes, one of " << files;
    }
  }
  EXPECT_NE(sampled(std::vector<std::byte>(5), 1), sampled(std::vector<std::byte>(6), 1));
}

TEST(DataWatch, GeneratedDataAreWhatTheirSettingsSay) {
  const auto noise = make_random_tokens(1, 100), other = make_random_tokens(2, 100);
  DataWatch watch(*noise), another(*other);
  watch.start_reading();
  const DataIdentity identity = watch.identity();
  EXPECT_FALSE(identity.whole.has_value());
  EXPECT_EQ(DataWatch(*make_random_tokens(1, 100)).compare(identity, {}), DataMatch::same);
  EXPECT_EQ(another.compare(identity, {}), DataMatch::other);
  EXPECT_EQ(DataWatch(*make_random_tokens(1, 100, 512)).compare(identity, {}), DataMatch::same);
  EXPECT_EQ(DataWatch(*make_random_tokens(1, 100, 3000)).compare(identity, {}), DataMatch::other);
  EXPECT_TRUE(watch.changed().empty());
}

// Where a checkpoint did not know every byte yet, nothing more is claimed than was compared.
TEST(DataWatch, WhatWasNeverReadIsNotCalledTheSame) {
  testing::TempFolder temp;
  const std::string path = (temp / "a").string(), copy = (temp / "b").string();
  for (const std::string& name : {path, copy}) real_files().replace(name, std::string(5000, 'x'));
  const auto text = open_text({path}, "data.train", Part::all, 0),
             copied = open_text({copy}, "data.train", Part::all, 0);
  DataWatch unread(*text);
  const DataIdentity before = unread.identity();
  EXPECT_EQ(unread.compare(before, {}), DataMatch::same);
  EXPECT_EQ(DataWatch(*copied).compare(before, {}), DataMatch::same_blocks);
  unread.start_reading();
  const DataIdentity read = unread.identity();
  ASSERT_TRUE(read.whole.has_value());
  EXPECT_EQ(DataWatch(*copied).compare(read, [](std::uint64_t, std::uint64_t) {}), DataMatch::same_bytes);
}

// Every block of a shard is checked when it is first read, and not again: a file that is written to later is named.
TEST(DataWatch, ShardsThatAreOverwrittenAreNamedOnce) {
  testing::TempFolder temp;
  for (const char* name : {"a", "b"}) write_folder(real_files(), temp / name, {{1, 2, 3}, {4, 5}}, {});
  const auto open = [&](const char* name) {
    TokenSettings settings;
    settings.key = "data.train";
    return open_shards({read_prepared_folder(temp / name, settings.key)}, settings);
  };
  const auto shards = open("a"), copy = open("b");
  DataWatch watch(*shards);
  EXPECT_EQ(DataWatch(*copy).compare(watch.identity(), {}), DataMatch::same);
  EXPECT_TRUE(watch.changed().empty());
  const Path tokens = temp / "a/train-00000.tokens";
  fs::last_write_time(tokens, fs::last_write_time(tokens) + std::chrono::seconds(2));
  EXPECT_EQ(watch.changed(), std::vector<Path>{tokens});
  EXPECT_TRUE(watch.changed().empty());
  fs::remove(temp / "a/manifest.json");
  EXPECT_EQ(watch.changed(), std::vector<Path>{temp / "a/manifest.json"});
}

// The same file under any name, and a copy of it; not a file of the same size, nor lists of lengths that are alike.
TEST(SharedFiles, AreFoundByWhatTheyAre) {
  testing::TempFolder temp;
  const auto write = [&](const char* name, const std::string& text) {
    real_files().replace(temp / name, text);
    return temp / name;
  };
  const Path a = write("a.txt", std::string(3000, 'a')), copy = write("copy.txt", std::string(3000, 'a')),
             other = write("other.txt", std::string(3000, 'b'));
  fs::create_symlink(a, temp / "link.txt");
  fs::create_hard_link(other, temp / "hard.txt");
  EXPECT_EQ(shared_files({a}, {a}), std::vector<Path>{a});
  EXPECT_EQ(shared_files({temp / "link.txt", other}, {a}), std::vector<Path>{temp / "link.txt"});
  EXPECT_EQ(shared_files({copy}, {a}), std::vector<Path>{copy});
  EXPECT_EQ(shared_files({temp / "hard.txt"}, {a, other}), std::vector<Path>{temp / "hard.txt"});
  EXPECT_TRUE(shared_files({other}, {a, temp / "gone.txt"}).empty());

  write_folder(real_files(), temp / "p", {{1, 2, 3}, {4, 5}}, {{6, 7, 8}, {9, 10}});
  const auto open = [&](bool evaluation) {
    TokenSettings settings;
    settings.key = "data.train";
    settings.evaluation = evaluation;
    return open_shards({read_prepared_folder(temp / "p", settings.key)}, settings)->files();
  };
  EXPECT_TRUE(shared_files(open(true), open(false)).empty()) << "its own val split is held out";
  EXPECT_FALSE(shared_files(open(false), open(false)).empty());
}

struct TwoTexts {
  testing::TempFolder temp;
  std::string first = numbered("the first"), second = numbered("another");

  static std::string numbered(const std::string& name) {
    std::string text;
    for (int i = 0; i < 400; ++i) text += fmt::format("line {} of {} text, which is not long\n", i, name);
    return text;
  }
  std::string write(const std::string& name, const std::string& bytes) const {
    real_files().create_folders((temp / name).parent_path());
    real_files().replace(temp / name, bytes);
    return (temp / name).string();
  }
  std::string lines(const std::string& name, const std::string& text) const {
    std::string json;
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
      json += io::Json{{"text", text.substr(at, text.find('\n', at) - at)}}.dump() + "\n";
    return write(name, json);
  }
  std::string prepared(const std::string& out, const std::string& input, double val_fraction = 0) const {
    PrepareSettings s{.inputs = {input}, .format = {}, .tokenizer = "bytes", .out = temp / out};
    s.val_fraction = val_fraction;
    s.threads = 1;
    prepare(real_files(), s, std::atomic<int>(0), [](const PrepareProgress&) {});
    return s.out.string();
  }
  std::unique_ptr<Corpus> open(bool eval, const std::string& path) const {
    const CorpusOptions options{.train = {path}, .eval = {path}, .tokenizer = "bytes"};
    return eval ? open_held_out_corpus(options) : open_training_corpus(options);
  }
};

// The manifest tells what shards were prepared from, and which of it was held out by its name.
TEST(SharedFiles, AreFoundInWhatWasPreparedFromThem) {
  const TwoTexts texts;
  const std::string a = texts.write("a.txt", texts.first), b = texts.write("b.txt", texts.second);
  const auto files = [&](const std::string& path) { return texts.open(false, path)->files(); };
  const std::vector<Path> of_a = files(texts.prepared("p", a));
  EXPECT_EQ(shared_files({a, b}, of_a), std::vector<Path>{a});
  EXPECT_EQ(shared_files(of_a, {b, a}).size(), 1u);
  EXPECT_TRUE(shared_files(of_a, {b}).empty());

  texts.write("in/shard/train/0.txt", texts.first);
  const std::string val = texts.write("in/shard/validation/0.txt", texts.second);
  const std::vector<Path> by_role = files(texts.prepared("roles", (texts.temp / "in").string()));
  EXPECT_EQ(shared_files({a}, by_role), std::vector<Path>{a});
  EXPECT_TRUE(shared_files({val, b}, by_role).empty()) << "held out";
}

// Other files and the same documents.
TEST(SharesDocuments, WhateverTheirFilesAre) {
  const TwoTexts texts;
  const auto shares = [&](const std::string& eval, const std::string& train) {
    return shares_documents(*texts.open(true, eval), *texts.open(false, train));
  };
  const std::string a = texts.write("a.txt", texts.first), b = texts.write("b.txt", texts.second);
  const std::string packed = texts.write("a.txt.gz", gzipped(texts.first)),
                    half = texts.write("half.txt", texts.first.substr(0, 6000));
  const std::string lines = texts.lines("a.jsonl", texts.first),
                    packed_lines = texts.write("l.jsonl.gz", gzipped(real_files().read(lines)));
  const std::string some_lines = texts.lines("some.jsonl", texts.first.substr(4000)),
                    other_lines = texts.lines("b.jsonl", texts.second);
  EXPECT_TRUE(shares(packed, a));
  EXPECT_TRUE(shares(a, packed));
  EXPECT_TRUE(shares(half, a));
  EXPECT_TRUE(shares(half, packed));
  EXPECT_TRUE(shares(packed_lines, lines));
  EXPECT_TRUE(shares(some_lines, packed_lines)) << "a part from the middle";
  EXPECT_TRUE(shares(lines, texts.prepared("p", packed_lines, 0.1)));
  EXPECT_TRUE(shares(lines, texts.prepared("q", lines)));
  EXPECT_FALSE(shares(b, a));
  EXPECT_FALSE(shares(other_lines, packed_lines));
  EXPECT_FALSE(shares(other_lines, texts.temp / "q"));
  EXPECT_FALSE(shares(texts.prepared("r", lines, 0.1), (texts.temp / "r").string())) << "its own val split";
  EXPECT_FALSE(
      shares(texts.write("short.jsonl", "{\"text\":\"Yes.\"}\n"), texts.write("s.jsonl", "{\"text\":\"Yes.\"}\n")))
      << "which stands in many";
}

}  // namespace
}  // namespace redline::data
