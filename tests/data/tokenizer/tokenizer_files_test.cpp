// The files of a tokenizer say the same wherever they are read: by redline again, and by whoever reads a
// tokenizer.json.
#include <gtest/gtest.h>

#include "data/tokenizer/tokenizer.h"
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
    const auto as_bpe = bpe_tokenizer(files.at("tokenizer.json"), "tokenizer.json", "<end>");
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

}  // namespace
}  // namespace redline::data
