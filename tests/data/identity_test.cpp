// Which bytes of a file its samples see, and that they see files of every length.
#include "data/identity.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "data/generated.h"
#include "data/shards/shards.h"
#include "data/shards/small_folder.h"
#include "data/text.h"
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

}  // namespace
}  // namespace redline::data
