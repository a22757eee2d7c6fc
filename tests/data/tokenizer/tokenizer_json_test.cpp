// tokenizer.json: what it asks for is done, or refused by name; malformed ones never get through.
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/files.h"
#include "data/tokenizer/tokenizer.h"
#include "io/json.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using io::Json;
using redline::testing::says;
using Ids = std::vector<std::int32_t>;

// a, b, c, the space and "ab" are tokens 0 to 4, <end> is token 5.
Json small() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 5, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
              "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4}, "merges": ["a b"]}
  })");
}

Ids encode(const Json& json, std::string_view text) { return bpe_tokenizer(json.dump(), "t.json")->encode(text); }

std::string error_of(const Json& json) {
  return testing::error_of([&] { bpe_tokenizer(json.dump(), "t.json"); });
}

// The error when one place of the file is changed.
std::string error_with(const char* pointer, const Json& value) {
  Json json = small();
  json[Json::json_pointer(pointer)] = value;
  return error_of(json);
}

void expect_refused(const char* pointer, const Json& value, std::string_view named) {
  const std::string error = error_with(pointer, value);
  EXPECT_TRUE(error.starts_with("t.json: ")) << pointer << ": " << error;
  EXPECT_TRUE(says(error, {named})) << pointer << ": " << error;
}

// <end> before and after a text, in the library's words.
Json with_template() {
  Json json = small();
  json["post_processor"] = Json::parse(R"({"type": "Sequence", "processors": [
    {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<end>", "type_id": 0}}],
     "pair": [], "special_tokens": {"<end>": {"id": "<end>", "ids": [5], "tokens": ["<end>"]}}}]})");
  return json;
}

TEST(TokenizerJsonTest, KeepsWhatATemplatePutsBeforeAText) {
  const auto tokenizer = bpe_tokenizer(with_template().dump(), "t.json");
  EXPECT_EQ(tokenizer->beginning(), (Ids{5}));
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{4})) << "documents have none";
  EXPECT_EQ(bpe_tokenizer(small().dump(), "t.json")->beginning(), Ids{});
  // Notes beside it change nothing: readers of this file ask its post-processor alone.
  EXPECT_EQ(bpe_tokenizer(with_template().dump(), "t.json", {.adds_bos = false})->beginning(), (Ids{5}));
  EXPECT_EQ(bpe_tokenizer(with_template().dump(), "t.json", {.adds_bos = true})->beginning(), (Ids{5}));
  EXPECT_EQ(bpe_tokenizer(small().dump(), "t.json", {.bos = "<end>", .adds_bos = true})->beginning(), Ids{});
  EXPECT_EQ(bpe_tokenizer(small().dump(), "t.json", {.bos = "<end>"})->beginning(), Ids{});
  EXPECT_EQ(bpe_tokenizer(small().dump(), "t.json", {.bos = "<end>"})->bos_token(), 5);
  Json roberta = small();
  roberta["post_processor"] = Json::parse(R"({"type": "RobertaProcessing", "sep": ["b", 1], "cls": ["<end>", 5]})");
  EXPECT_EQ(bpe_tokenizer(roberta.dump(), "t.json")->beginning(), (Ids{5}));
  roberta["post_processor"]["cls"] = Json::parse(R"(["<end>", 99])");
  EXPECT_TRUE(says(error_of(roberta), {"not in the vocabulary"}));
  const auto refused = [](const char* pointer, const Json& value) {
    Json json = with_template();
    json[Json::json_pointer(pointer)] = value;
    return error_of(json);
  };
  const std::string place = "/post_processor/processors/1/";
  EXPECT_TRUE(says(refused((place + "special_tokens/<end>/ids").c_str(), {6}), {"not in the vocabulary"}));
  EXPECT_TRUE(says(refused((place + "special_tokens/<end>/ids").c_str(), {-1}), {"not in the vocabulary"}));
  EXPECT_TRUE(says(refused((place + "special_tokens").c_str(), Json::object()), {"no \"ids\""}));
  EXPECT_TRUE(says(refused((place + "single").c_str(), nullptr), {"\"single\""}));
}

TEST(TokenizerJsonTest, TheSmallOneWorks) {
  const auto tokenizer = bpe_tokenizer(small().dump(), "folder/t.json");
  EXPECT_EQ(tokenizer->name(), "t.json");
  EXPECT_EQ(tokenizer->vocabulary(), 6);
  EXPECT_EQ(tokenizer->encode("ab abc<end>b"), (Ids{4, 3, 4, 2, 5, 1}));
  EXPECT_EQ(tokenizer->decode(Ids{4, 3, 4, 2, 5, 1}), "ab abc<end>b");
  EXPECT_EQ(tokenizer->decode(Ids{0, 77, -1}), "a<77><-1>");
  EXPECT_FALSE(tokenizer->end_token()) << "<end> is not known to close documents";
  EXPECT_EQ(bpe_tokenizer(small().dump(), "t.json", {.end = "<end>"})->end_token(), 5);
  EXPECT_NE(bpe_tokenizer(small().dump(), "t.json", {.end = "<end>"})->fingerprint(), tokenizer->fingerprint());
  EXPECT_THROW(tokenizer->encode("a\xff"), UserError);
}

TEST(TokenizerJsonTest, EndTokensAreKnownByName) {
  Json json = small();
  json["added_tokens"][0]["content"] = "<|endoftext|>";
  EXPECT_EQ(bpe_tokenizer(json.dump(), "t.json")->end_token(), 5);
  json["added_tokens"][0]["content"] = "<|im_end|>";
  EXPECT_FALSE(bpe_tokenizer(json.dump(), "t.json")->end_token());
}

TEST(TokenizerJsonTest, MergesAreWrittenInTwoWays) {
  Json json = small();
  json["model"]["merges"] = Json::parse(R"([["a", "b"]])");
  EXPECT_EQ(encode(json, "ab"), (Ids{4}));
  json["model"]["merges"] = Json::parse(R"(["#version: 0.2", "a b"])");
  EXPECT_EQ(encode(json, "ab"), (Ids{4}));
  json["model"]["merges"] = Json::array();
  EXPECT_EQ(encode(json, "ab"), (Ids{0, 1}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(encode(json, "ab"), (Ids{4}));
  EXPECT_EQ(encode(json, "abc"), (Ids{0, 1, 2}));
}

TEST(TokenizerJsonTest, AFeatureThatIsNotSupportedIsNamed) {
  expect_refused("/truncation", {{"max_length", 5}}, "truncation");
  expect_refused("/padding", {{"strategy", "BatchLongest"}}, "padding");
  expect_refused("/normalizer", {{"type", "Lowercase"}}, "Lowercase");
  expect_refused("/normalizer", {{"type", "Prepend"}, {"prepend", "▁"}}, "Prepend");
  expect_refused("/normalizer",
                 Json::parse(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]})"), "NFKC");
  expect_refused("/pre_tokenizer", nullptr, "pre-tokenizer");
  expect_refused("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "▁"}}, "Metaspace");
  expect_refused("/pre_tokenizer", {{"type", "Whitespace"}}, "Whitespace");
  expect_refused("/pre_tokenizer/trim", true, "trim");
  expect_refused("/pre_tokenizer", Json::parse(R"({"type": "Sequence", "pretokenizers": [
      {"type": "ByteLevel", "add_prefix_space": false}, {"type": "Digits", "individual_digits": true}]})"),
                 "Digits");
  expect_refused("/pre_tokenizer", Json::parse(R"({"type": "Sequence", "pretokenizers": [
      {"type": "Digits", "individual_digits": true}]})"),
                 "ByteLevel");
  expect_refused("/pre_tokenizer",
                 Json::parse(R"({"type": "Split", "pattern": {"Regex": "\\h"}, "behavior": "Isolated"})"), "\\h");
  expect_refused("/pre_tokenizer", Json::parse(R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Odd"})"),
                 "Odd");
  expect_refused("/post_processor", {{"type", "Strange"}}, "Strange");
  expect_refused("/decoder", {{"type", "Metaspace"}}, "Metaspace");
  expect_refused("/model/type", "WordPiece", "WordPiece");
  expect_refused("/model/type", "Unigram", "Unigram");
  expect_refused("/model/dropout", 0.1, "dropout");
  expect_refused("/model/continuing_subword_prefix", "##", "continuing_subword_prefix");
  expect_refused("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  expect_refused("/model/byte_fallback", true, "byte_fallback");
  expect_refused("/model/unk_token", "<unk>", "<unk>");
  expect_refused("/model/novelty", 1, "novelty");
  expect_refused("/novelty", 1, "novelty");
  expect_refused("/added_tokens/0/novelty", 1, "novelty");
}

TEST(TokenizerJsonTest, WhatIsMalformedIsSaid) {
  expect_refused("/model", nullptr, "model");
  expect_refused("/model", 5, "model");
  expect_refused("/model/vocab", Json::array(), "vocab");
  expect_refused("/model/vocab/a", "x", "id of \"a\"");
  expect_refused("/model/vocab/a", -1, "out of range");
  expect_refused("/model/vocab/a", 1, "twice");
  expect_refused("/model/vocab/a", 5'000'000, "out of range");
  expect_refused("/model/vocab/a", 18446744073709551615u, "2^30");
  expect_refused("/model/merges", nullptr, "merges");
  expect_refused("/model/merges/0", "a b c", "merge 0");
  expect_refused("/model/merges/0", 7, "merge 0");
  expect_refused("/model/merges/0", "a x", "\"x\"");
  expect_refused("/model/merges/0", "b a", "\"ba\"");
  expect_refused("/added_tokens", 3, "added_tokens");
  expect_refused("/added_tokens/0/content", "", "0 bytes");
  expect_refused("/added_tokens/0/content", std::string(5000, 'x'), "5000 bytes");
  expect_refused("/added_tokens/0/id", 9, "its place in the vocabulary is 5");
  expect_refused("/added_tokens/0/special", "yes", "special");
  EXPECT_THROW(bpe_tokenizer("", "t.json"), UserError);
  EXPECT_THROW(bpe_tokenizer("[1]", "t.json"), UserError);
  const std::string whole = small().dump();
  for (std::size_t n = 0; n < whole.size(); n += 7)
    EXPECT_THROW(bpe_tokenizer(whole.substr(0, n), "t.json"), UserError);
  Json json = small();
  json["added_tokens"].push_back(json["added_tokens"][0]);
  EXPECT_TRUE(says(error_of(json), {"there twice"}));
}

TEST(TokenizerJsonTest, WithoutADecoderItEncodesOnly) {
  Json json = small();
  json["decoder"] = nullptr;
  const auto tokenizer = bpe_tokenizer(json.dump(), "t.json");
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{4}));
  EXPECT_THROW(tokenizer->decode(Ids{4}), UserError);
}

TEST(TokenizerJsonTest, FlagsOfAddedTokens) {
  const auto with = [](const char* flag, const char* content, std::string_view text) {
    Json json = small();
    json["added_tokens"][0]["content"] = content;
    json["added_tokens"][0][flag] = true;
    return encode(json, text);
  };
  EXPECT_EQ(with("lstrip", "<x>", "a  <x> b"), (Ids{0, 5, 3, 1}));
  EXPECT_EQ(with("rstrip", "<x>", "a <x> \n b"), (Ids{0, 3, 5, 1}));
  EXPECT_EQ(with("single_word", "bb", "bb abb bb."), (Ids{5, 3, 4, 1, 3, 5}));  // "." is outside the vocabulary
  EXPECT_EQ(with("single_word", "bb", "ébb"), (Ids{1, 1}));
}

TEST(TokenizerJsonTest, ALongerAddedTokenWins) {
  Json json = small();
  Json more = json["added_tokens"][0];
  more["id"] = 6;
  more["content"] = "<end>more";
  json["added_tokens"].push_back(more);
  EXPECT_EQ(encode(json, "<end>more<end>mo<en"), (Ids{6, 5}));
}

TEST(TokenizerJsonTest, OpensByFileAndByFolder) {
  redline::testing::TempFolder folder;
  const auto write = [&](const char* name, const std::string& text) { real_files().replace(folder / name, text); };
  write("tokenizer.json", small().dump());
  EXPECT_FALSE(open_tokenizer(folder.path().string(), "test")->end_token());
  write("tokenizer_config.json", R"({"eos_token": {"content": "<end>", "lstrip": false}})");
  EXPECT_EQ(open_tokenizer(folder.path().string(), "test")->end_token(), 5);
  write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  EXPECT_EQ(open_tokenizer((folder / "tokenizer.json").string(), "test")->end_token(), 5);
  write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_FALSE(open_tokenizer(folder.path().string(), "test")->end_token());
  write("odd.txt", "x");
  redline::testing::TempFolder empty;
  for (const std::string& name :
       {(folder / "odd.txt").string(), (folder / "none.json").string(), empty.path().string()}) {
    try {
      open_tokenizer(name, "data.tokenizer");
      ADD_FAILURE() << name;
    } catch (const UserError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("data.tokenizer: ")) << error.what();
    }
  }
}

TEST(SentencePieceTest, ADamagedModelIsAnError) {
  const Path path = Path(testing::source_folder()) / "tests/fixtures/tokenizers/pieces.model";
  const std::string model = real_files().read(path);
  redline::testing::TempFolder folder;
  const auto error_with_bytes = [&](std::string_view bytes) {
    real_files().replace(folder / "t.model", bytes);
    return testing::error_of([&] { open_tokenizer((folder / "t.model").string(), "test"); });
  };
  EXPECT_EQ(error_with_bytes(model), "no error");
  for (const std::string_view bytes :
       {std::string_view(""), std::string_view("text"), std::string_view(model).substr(0, 1001)})
    EXPECT_TRUE(says(error_with_bytes(bytes), {"t.model"}));
  const auto tokenizer = open_tokenizer(path.string(), "test");
  EXPECT_EQ(tokenizer->end_token(), 2);
  EXPECT_EQ(tokenizer->decode(Ids{100'000}), "<100000>");
  EXPECT_THROW(tokenizer->encode("a\xff"), UserError);
}

// The model itself does not say it.
TEST(SentencePieceTest, BeginsATextAsTheConfigurationBesideItSays) {
  redline::testing::TempFolder folder;
  const Path pieces = Path(testing::source_folder()) / "tests/fixtures/tokenizers/pieces.model";
  real_files().replace(folder / "tokenizer.model", real_files().read(pieces));
  const auto beginning = [&](const char* config) {
    real_files().replace(folder / "tokenizer_config.json", config);
    return open_tokenizer(folder.path().string(), "test")->beginning();
  };
  EXPECT_EQ(beginning("{}"), Ids{});
  EXPECT_EQ(beginning(R"({"add_bos_token": null})"), Ids{});
  EXPECT_EQ(beginning(R"({"add_bos_token": true})"), (Ids{1}));
  EXPECT_EQ(beginning(R"({"add_bos_token": false})"), Ids{});
  EXPECT_TRUE(says(testing::error_of([&] { beginning(R"({"add_bos_token": "yes"})"); }), {"add_bos_token"}));
  EXPECT_EQ(document_marks(*open_tokenizer(pieces.string(), "test"), "always", "k").begin, (Ids{1}));
}

}  // namespace
}  // namespace redline::data
