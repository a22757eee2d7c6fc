// What follows from the data where nobody says it: model.vocab, and the tokenizer of text with weights to start from.
#include "data/from_config.h"

#include <gtest/gtest.h>

#include "config/load.h"
#include "data/shards/small_folder.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using redline::testing::error_of;
using redline::testing::says;

class FromConfig : public ::testing::Test {
 protected:
  FromConfig() { write("a.txt", std::string(300, 'a')); }
  std::string write(const std::string& name, const std::string& bytes) {
    real_files().replace(folder_ / name, bytes);
    return path(name);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static config::Config load(std::vector<std::string> words, const config::Complete& complete = {}) {
    return config::load({.file = "", .preset = "quick", .overrides = std::move(words)}, complete);
  }
  static std::int64_t vocabulary(const std::vector<std::string>& words) {
    return load(words, settle_vocabulary).model.vocab;
  }
  static std::string ids(std::vector<std::uint16_t> ids) {
    return {reinterpret_cast<const char*>(ids.data()), ids.size() * 2};
  }
  redline::testing::TempFolder folder_;
};

const std::string kGpt2 = testing::fixture("tokenizers/gpt2.tokenizer.json");

TEST_F(FromConfig, TheVocabularyIsTheTokenizersUnlessSomebodySaysIt) {
  const std::int64_t gpt2 = open_tokenizer(kGpt2, "data.tokenizer")->vocabulary();
  EXPECT_EQ(vocabulary({}), 267);  // ping
  EXPECT_EQ(vocabulary({"data.train=random:5000"}), 5000);
  EXPECT_EQ(vocabulary({"data.train=" + path("a.txt")}), 257);
  EXPECT_EQ(vocabulary({"data.train=" + path("a.txt"), "data.tokenizer=" + kGpt2}), gpt2);
  EXPECT_EQ(vocabulary({"data.train=" + path("a.txt"), "model.vocab=300"}), 300);
  write_folder(real_files(), folder_ / "p", {{1, 2, 3}}, {});
  EXPECT_EQ(vocabulary({"data.train=" + path("p")}), 257);
  const config::Config preset = config::load(
      {.file = "", .preset = "llama-1.36b", .overrides = {"data.train=" + path("a.txt")}}, settle_vocabulary);
  EXPECT_EQ(preset.model.vocab, 32000);
}

TEST_F(FromConfig, TokenFilesWithoutATokenizerAskForIt) {
  const std::string plain = write("x.bin", ids({1, 700, 3, 900}));
  EXPECT_TRUE(says(error_of([&] { vocabulary({"data.train=" + plain}); }), {"model.vocab", "x.bin", "data.tokenizer"}));
  EXPECT_EQ(vocabulary({"data.train=" + plain, "model.vocab=1000"}), 1000);
  std::vector<std::int32_t> header(256);
  header[0] = 20240520;  // llm.c's says it
  header[1] = 1;
  header[2] = 4;
  const std::string llmc =
      write("y.bin", std::string(reinterpret_cast<const char*>(header.data()), 1024) + ids({1, 700, 3, 900}));
  EXPECT_EQ(vocabulary({"data.train=" + llmc}), 50257);
  EXPECT_TRUE(says(error_of([&] { vocabulary({"data.train=" + path("none.txt")}); }), {"none.txt", "model.vocab"}));
}

// The model's vocabulary reaches the files: a wide one settles that ids are not uint16.
TEST_F(FromConfig, AKnownVocabularyIsHeldAgainstTheIds) {
  EXPECT_EQ(corpus_options(load({})).read.vocabulary, 0);
  EXPECT_EQ(corpus_options(load({"model.vocab=151936"})).read.vocabulary, 151936);
}

TEST_F(FromConfig, TextWithWeightsToStartFromHasTheirTokenizer) {
  const auto tokenizer = [&](std::vector<std::string> words, std::int64_t vocab = 32000) {
    words.push_back(fmt::format("model.vocab={}", vocab));
    return load(words, [&](config::Config& c) { settle_tokenizer(c, real_files(), folder_ / "hf"); }).data.tokenizer;
  };
  const std::string text = "data.train=" + path("a.txt");
  real_files().create_folders(folder_ / "hf");
  EXPECT_TRUE(says(error_of([&] { tokenizer({text}); }), {"data.tokenizer", "hf", "bytes"}));
  EXPECT_EQ(tokenizer({text}, 267), "");  // a model of bytes
  EXPECT_EQ(tokenizer({}), "");           // ping
  EXPECT_EQ(tokenizer({text, "data.tokenizer=bytes"}), "bytes");
  write("hf/tokenizer.json", real_files().read(kGpt2));
  EXPECT_EQ(tokenizer({text}), path("hf"));
  EXPECT_EQ(tokenizer({"data.train=" + write("l.jsonl", "{\"text\":\"x\"}\n")}), path("hf"));
  EXPECT_EQ(tokenizer({"data.train=" + write("x.bin", ids({1, 700}))}), "");
  write_folder(real_files(), folder_ / "p", {{1, 2, 3}}, {});
  EXPECT_EQ(tokenizer({"data.train=" + path("p")}), "");
}

}  // namespace
}  // namespace redline::data
