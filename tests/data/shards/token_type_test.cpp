// The type of ids in files without a header: true types are found for every kind of data that people have, and what
// cannot be told is asked for.
#include "data/shards/token_type.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "config/load.h"
#include "data/from_config.h"
#include "data/shards/small_folder.h"
#include "data/shards/token_files.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using redline::testing::error_of;
using redline::testing::says;

// Ids as text has them: small ones are common, and all below `vocabulary` occur.
std::vector<std::int64_t> ids_like_text(std::size_t count, std::int64_t vocabulary) {
  const Random random(7, static_cast<std::uint64_t>(vocabulary));
  std::vector<std::int64_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double u = random.uniform(i);
    ids[i] = static_cast<std::int64_t>(static_cast<double>(vocabulary) * u * u * u);
  }
  return ids;
}

template <class T>
std::string stored(const std::vector<std::int64_t>& ids) {
  const std::vector<T> typed(ids.begin(), ids.end());
  return {reinterpret_cast<const char*>(typed.data()), typed.size() * sizeof(T)};
}

TokenTypeGuess guess(const std::string& bytes, std::int64_t vocabulary = 0) {
  return guess_token_type(std::as_bytes(std::span(bytes)), vocabulary);
}

TEST(TokenType, TrueTypesAreFound) {
  // Four bases, characters, GPT-2, LLaMA-3 and Qwen; few ids and many.
  for (const std::int64_t vocabulary : {4, 65, 257, 50257, 65536, 128256, 151936})
    for (const std::size_t count : {200, 5000}) {
      const std::vector<std::int64_t> ids = ids_like_text(count, vocabulary);
      for (const std::int64_t known : {std::int64_t{0}, vocabulary}) {
        if (vocabulary <= 65536) {
          EXPECT_EQ(guess(stored<std::uint16_t>(ids), known).type, TokenType::u16) << vocabulary << " " << count;
        }
        EXPECT_EQ(guess(stored<std::uint32_t>(ids), known).type, TokenType::u32) << vocabulary << " " << count;
        EXPECT_EQ(guess(stored<std::int64_t>(ids), known).type, TokenType::i64) << vocabulary << " " << count;
      }
    }
}

TEST(TokenType, PaddingSaysNothing) {
  std::vector<std::int64_t> ids(100'000, 0);
  const std::vector<std::int64_t> some = ids_like_text(300, 50257);
  std::ranges::copy(some, ids.begin() + 40'001);
  EXPECT_EQ(guess(stored<std::uint16_t>(ids)).type, TokenType::u16);
  EXPECT_EQ(guess(stored<std::uint32_t>(ids)).type, TokenType::u32);
  EXPECT_EQ(guess(stored<std::int64_t>(ids)).type, TokenType::i64);
  EXPECT_FALSE(guess(std::string(4096, '\0')).type);
  std::vector<std::int64_t> masked = ids_like_text(5000, 50257);
  for (std::size_t i = 0; i < masked.size(); i += 2) masked[i] = -100;
  EXPECT_EQ(guess(stored<std::int64_t>(masked)).type, TokenType::i64);  // opening it says that an id is negative
}

// Samples of a large file: its head alone would say nothing, and the one block with ids is not missed.
TEST(TokenType, LargeFilesAreLookedAtEverywhere) {
  std::vector<std::int64_t> ids(std::size_t{5} << 20, 0);
  std::ranges::copy(ids_like_text(1000, 30000), ids.end() - 4321);
  EXPECT_EQ(guess(stored<std::uint32_t>(ids)).type, TokenType::u32);
  EXPECT_EQ(guess(stored<std::int64_t>(ids)).type, TokenType::i64);
}

TEST(TokenType, WhatCannotBeToldIsAsked) {
  // Pairs of a value and a small mark are those of uint32 with a vocabulary of millions; a known vocabulary says no.
  std::vector<std::int64_t> pairs = ids_like_text(4000, 60000);
  for (std::size_t i = 1; i < pairs.size(); i += 2) pairs[i] %= 8;
  EXPECT_FALSE(guess(stored<std::uint16_t>(pairs), 60000).type);
  EXPECT_FALSE(guess(stored<std::uint32_t>(ids_like_text(5000, 50257)), 300).type);
  EXPECT_FALSE(guess(stored<std::uint16_t>(ids_like_text(5000, 50257)), 151936).type);  // too wide a vocabulary for it
  EXPECT_TRUE(guess(stored<std::uint32_t>({9, 5})).few);
  EXPECT_EQ(guess(stored<std::uint16_t>({7})).type, TokenType::u16);  // no other type has two bytes
  EXPECT_EQ(guess(stored<std::uint32_t>({70000, 5}), 151936).type, TokenType::u32);
}

class TokenTypeFiles : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    real_files().replace(folder_ / name, bytes);
    return (folder_ / name).string();
  }
  std::unique_ptr<Corpus> open(const std::string& path, std::vector<std::string> words = {}) {
    words.insert(words.begin(), "data.train=" + path);
    return open_training_corpus(corpus_options(config::load({.file = "", .preset = "quick", .overrides = words}).data));
  }
  redline::testing::TempFolder folder_;
};

TEST_F(TokenTypeFiles, IdsAreThoseThatWereWrittenAndTheNameSaysTheType) {
  const std::vector<std::int64_t> ids = ids_like_text(3000, 50000);
  const Ids wanted(ids.begin(), ids.end());
  for (const auto& [name, bytes] : {std::pair{"uint16", stored<std::uint16_t>(ids)},
                                    {"uint32", stored<std::uint32_t>(ids)},
                                    {"int64", stored<std::int64_t>(ids)}}) {
    const std::string path = write("x.bin", bytes);
    for (const std::string& word : {std::string("data.token_type=auto"), fmt::format("data.token_type={}", name)}) {
      const auto corpus = open(path, {word, "data.eval=" + path});
      EXPECT_TRUE(says(corpus->name(), name));
      const auto documents = all_documents(dynamic_cast<const DocumentSource&>(*corpus));
      ASSERT_EQ(documents.size(), 1u) << name;
      EXPECT_EQ(documents[0], wanted) << name;
    }
  }
}

TEST_F(TokenTypeFiles, OtherTypesAreOtherDataAndUint16IsAsItWas) {
  const std::string path = write("x.bin", stored<std::uint32_t>(ids_like_text(3000, 50000)));
  const auto wide = open(path), narrow = open(path, {"data.token_type=uint16"});
  EXPECT_NE(wide->fingerprint(), narrow->fingerprint());
  config::Data data;
  data.train = {path};
  data.token_type = config::parse("[train]\nmax_steps = 1", "an old run").data.token_type;
  EXPECT_EQ(open_training_corpus(corpus_options(data))->fingerprint(), narrow->fingerprint());
}

TEST_F(TokenTypeFiles, SizesAndIdsThatCannotBeAreRefused) {
  const std::string wide = stored<std::uint32_t>(ids_like_text(3000, 50000)), path = write("x.bin", wide);
  write("x.bin", wide.substr(0, wide.size() - 2));
  EXPECT_TRUE(says(error_of([&] { open(path); }), {"uint32", "11998 bytes"}));
  write("x.bin", wide.substr(0, wide.size() - 1));
  EXPECT_TRUE(says(error_of([&] { open(path); }), {"11999 bytes"}));
  write("x.bin", std::string(4096, '\0'));
  EXPECT_TRUE(says(error_of([&] { open(path); }), {"x.bin", "data.token_type", "int64"}));
  std::vector<std::int64_t> masked = ids_like_text(5000, 50257);
  masked[17] = -1;
  write("x.bin", stored<std::int64_t>(masked));
  EXPECT_TRUE(says(error_of([&] { open(path); }), {"negative", "int64"}));
}

// Qwen's 50256 is a token like any other: only where the vocabulary can be GPT-2's does it close a document.
TEST_F(TokenTypeFiles, TheEndTokenOfGpt2IsThatOfItsVocabulary) {
  std::vector<std::int64_t> ids = ids_like_text(3000, 50000);
  ids[1000] = 50256;
  const std::string path = write("x.bin", stored<std::uint32_t>(ids));
  const auto documents = [&](std::int64_t vocabulary) {
    TokenSettings s{.key = "data.train", .tokenizer = ""};
    s.vocabulary = vocabulary;
    return open_token_files(data_paths({path}, s.key), s)->documents();
  };
  EXPECT_EQ(documents(0), 2);
  EXPECT_EQ(documents(50304), 2);
  EXPECT_EQ(documents(151936), 1);
}

}  // namespace
}  // namespace redline::data
