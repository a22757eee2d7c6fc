// Tokenizers by what they make of a text: ids and decoded text of the small fixtures, always, and of the large oracles
// where REDLINE_ORACLES names their folder; bytes that tokens stand for. And the files of a tokenizer say the same
// wherever they are read: by redline again, and by whoever reads a tokenizer.json.
#include "data/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "base/files.h"
#include "data/open_corpus.h"
#include "io/json.h"
#include "testing/paths.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

const std::string kFixtures = testing::source_folder() + "/tests/fixtures/tokenizers/";

std::shared_ptr<const Tokenizer> open(const std::string& name) { return open_tokenizer(name, "test"); }

void put(const Path& folder, const TokenizerFiles& files) {
  for (const auto& [name, text] : files) real_files().replace(folder / name, text);
}

TEST(TokenizerFiles, ABuiltInOneIsATokenizerJsonAndItselfAgain) {
  for (const char* name : {"bytes", "ping"}) {
    const testing::TempFolder temp;
    const TokenizerFiles files = tokenizer_files(real_files(), name);
    put(temp.path(), files);
    const auto built_in = open(name), again = open(temp.path().string());
    EXPECT_EQ(again->name(), name);
    EXPECT_EQ(again->fingerprint(), built_in->fingerprint());
    // What others make of it.
    const auto as_bpe = bpe_tokenizer(files.at("tokenizer.json"), "tokenizer.json", {.end = "<end>"});
    EXPECT_EQ(as_bpe->vocabulary(), built_in->vocabulary());
    EXPECT_EQ(as_bpe->end_token(), built_in->end_token());
    for (const char* text : {"plain words\n\tand caf\xC3\xA9", "", "  \r\n \xF0\x9F\x98\x80 12345 '"})
      EXPECT_EQ(as_bpe->encode(text), built_in->encode(text)) << text;
    EXPECT_TRUE(covers(*built_in, *as_bpe) && covers(*as_bpe, *built_in));
  }
  EXPECT_EQ(open("ping")->encode("<begin>x"), (std::vector<std::int32_t>{257, 'x'}));
}

TEST(TokenizerFiles, WhatDescribesATokenizerGoesAlongOnlyWhereItIsItsOwn) {
  const testing::TempFolder temp;
  put(temp.path(), {{"tokenizer.json", real_files().read(kFixtures + "gpt2.tokenizer.json")},
                    {"other.json", real_files().read(kFixtures + "llama3.tokenizer.json")},
                    {"tokenizer_config.json", R"({"eos_token": "<|endoftext|>", "chat_template": "x"})"}});
  const auto names = [&](const std::string& name) {
    std::vector<std::string> found;
    for (const auto& [file, text] : tokenizer_files(real_files(), name)) found.push_back(file);
    return found;
  };
  const std::vector<std::string> both = {"tokenizer.json", "tokenizer_config.json"};
  EXPECT_EQ(names(temp.path().string()), both);
  EXPECT_EQ(names((temp / "tokenizer.json").string()), both);
  EXPECT_EQ(names((temp / "other.json").string()), std::vector<std::string>{"tokenizer.json"});
  EXPECT_EQ(names(kFixtures + "pieces.model"), std::vector<std::string>{"tokenizer.model"});
}

TEST(TokenizerFiles, SayWhatEndsAndWhatPadsAndLeaveTheRest) {
  const auto gpt2 = open(kFixtures + "gpt2.tokenizer.json");
  TokenizerFiles files = tokenizer_files(real_files(), kFixtures + "gpt2.tokenizer.json");
  files["tokenizer_config.json"] = R"({"tokenizer_class": "GPT2Tokenizer", "eos_token": {"content": "<|im_end|>"}})";
  files["special_tokens_map.json"] = R"({"eos_token": "<|im_end|>"})";
  const auto config = [&](const char* name = "tokenizer_config.json") { return io::parse_json(files.at(name), name); };
  describe_use(files, gpt2.get(), {gpt2->end_token(), -1, 128});
  EXPECT_EQ(config(), (io::Json{{"tokenizer_class", "GPT2Tokenizer"},
                                {"eos_token", "<|endoftext|>"},
                                {"model_max_length", 128},
                                {"pad_token", "<|endoftext|>"}}));
  EXPECT_EQ(config("special_tokens_map.json")["eos_token"], "<|endoftext|>");
  describe_use(files, gpt2.get(), {gpt2->end_token(), 'A' - '!', 128});
  EXPECT_EQ(config()["pad_token"], gpt2->written('A' - '!'));
  describe_use(files, gpt2.get(), {gpt2->end_token(), -1, 128});
  EXPECT_EQ(config()["pad_token"], gpt2->written('A' - '!')) << "one that is named stays";

  const auto pieces = open(kFixtures + "pieces.model");
  files = tokenizer_files(real_files(), kFixtures + "pieces.model");
  describe_use(files, pieces.get(), {pieces->end_token(), -1, 64});
  EXPECT_EQ(config()["tokenizer_class"], "LlamaTokenizer");
  EXPECT_EQ(config()["eos_token"], "</s>");
}

TEST(TokenizerFiles, OneTokenizerCoversAnotherWhoseIdsStandForTheSame) {
  const auto bytes = open("bytes"), ping = open("ping"), gpt2 = open(kFixtures + "gpt2.tokenizer.json");
  EXPECT_TRUE(covers(*ping, *bytes));
  EXPECT_FALSE(covers(*bytes, *ping));
  EXPECT_FALSE(covers(*gpt2, *bytes));
  EXPECT_TRUE(covers(*gpt2, *gpt2));
}

// `decoded` is in a case where it is not the text itself.
void check_cases(const Path& tokenizer_file, const Path& cases_file) {
  const auto tokenizer = open_tokenizer(tokenizer_file.string(), "test");
  const auto encoder = tokenizer->encoder();
  const io::Json cases = io::read_json(real_files(), cases_file);
  ASSERT_GT(cases.size(), 50u);
  // Twice with one encoder: the second time its cache answers.
  for (int pass = 0; pass < 2; ++pass) {
    for (const io::Json& one : cases) {
      const auto text = one.at("text").get<std::string>();
      const auto expected = one.at("ids").get<std::vector<std::int32_t>>();
      std::vector<std::int32_t> ids = {-7};
      encoder->append(text, ids);
      ASSERT_EQ(ids.front(), -7);
      ids.erase(ids.begin());
      EXPECT_EQ(ids, expected) << text;
      const std::string decoded = one.contains("decoded") ? one.at("decoded").get<std::string>() : text;
      EXPECT_EQ(tokenizer->decode(ids), decoded);
      for (const std::int32_t id : ids) EXPECT_LT(id, tokenizer->vocabulary());
    }
  }
}

class FixtureTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FixtureTest, EncodesAndDecodesAsTheOriginalDoes) {
  const Path folder = kFixtures;
  const std::string name = GetParam();
  check_cases(folder / (name + (name == "pieces" ? ".model" : ".tokenizer.json")), folder / (name + ".cases.json"));
}
INSTANTIATE_TEST_SUITE_P(Tokenizers, FixtureTest, ::testing::Values("gpt2", "llama3", "qwen-odd", "o200k", "pieces"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

class OracleTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(OracleTest, EncodesAndDecodesAsTheOriginalDoes) {
  const char* oracles = std::getenv("REDLINE_ORACLES");
  if (oracles == nullptr) GTEST_SKIP() << "REDLINE_ORACLES does not name the folder of the oracles";
  const Path folder = Path(oracles) / "tokenizers";
  if (!real_files().exists(folder)) GTEST_SKIP() << folder.string() << " is not there";
  check_cases(folder / GetParam().second, folder / (std::string(GetParam().first) + ".cases.json"));
}
INSTANTIATE_TEST_SUITE_P(Tokenizers, OracleTest,
                         ::testing::Values(std::pair("gpt2", "gpt2.tokenizer.json"),
                                           std::pair("llama2", "llama2.model")),
                         [](const auto& test) { return std::string(test.param.first); });

std::int64_t text_bytes_of(const Tokenizer& tokenizer, std::string_view text) {
  std::int64_t sum = 0;
  for (const std::int32_t id : tokenizer.encode(text)) sum += tokenizer.text_bytes(id);
  return sum;
}

const std::string kText = "The quick brown fox, caf\xC3\xA9 \xE4\xB8\x96\xE7\x95\x8C \xF0\x9F\x8C\x8D 12.5";

TEST(TextBytes, OfAllTokensAreThoseOfTheText) {
  for (const std::string& name :
       {std::string("bytes"), kFixtures + "gpt2.tokenizer.json", kFixtures + "llama3.tokenizer.json"}) {
    const auto tokenizer = open_tokenizer(name, "test");
    EXPECT_EQ(text_bytes_of(*tokenizer, kText), static_cast<std::int64_t>(kText.size())) << name;
    ASSERT_TRUE(tokenizer->end_token()) << name;
    EXPECT_EQ(tokenizer->text_bytes(*tokenizer->end_token()), 0) << name;
    const std::vector<std::int32_t> all = bytes_of_ids(*tokenizer);
    EXPECT_EQ(static_cast<std::int64_t>(all.size()), tokenizer->vocabulary());
  }
}

// Sentencepiece begins a text with a space of its own, and may know characters only as "unknown".
TEST(TextBytes, OfSentencepieceCountSpacesAsOne) {
  const auto pieces = open(kFixtures + "pieces.model");
  const std::string plain = "the of and in";
  EXPECT_EQ(text_bytes_of(*pieces, plain), static_cast<std::int64_t>(plain.size()) + 1);
}

}  // namespace
}  // namespace redline::data
