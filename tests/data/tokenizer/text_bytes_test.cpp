// Bytes of text that tokens stand for: together those of the text, whatever the tokenizer.
#include <gtest/gtest.h>

#include <numeric>

#include "data/open_corpus.h"
#include "data/tokenizer/tokenizer.h"
#include "testing/paths.h"

namespace redline::data {
namespace {

std::int64_t bytes_behind(const Tokenizer& tokenizer, std::string_view text) {
  std::int64_t sum = 0;
  for (const std::int32_t id : tokenizer.encode(text)) sum += tokenizer.text_bytes(id);
  return sum;
}

const std::string kText = "The quick brown fox, caf\xC3\xA9 \xE4\xB8\x96\xE7\x95\x8C \xF0\x9F\x8C\x8D 12.5";

TEST(TextBytes, OfAllTokensAreThoseOfTheText) {
  const std::string fixtures = testing::source_folder() + "/tests/fixtures/tokenizers/";
  for (const std::string& name :
       {std::string("bytes"), fixtures + "gpt2.tokenizer.json", fixtures + "llama3.tokenizer.json"}) {
    const auto tokenizer = open_tokenizer(name, "test");
    EXPECT_EQ(bytes_behind(*tokenizer, kText), static_cast<std::int64_t>(kText.size())) << name;
    ASSERT_TRUE(tokenizer->end_token()) << name;
    EXPECT_EQ(tokenizer->text_bytes(*tokenizer->end_token()), 0) << name;
    const std::vector<std::int32_t> all = bytes_of_ids(*tokenizer);
    EXPECT_EQ(static_cast<std::int64_t>(all.size()), tokenizer->vocabulary());
  }
}

// Sentencepiece begins a text with a space of its own, and may know characters only as "unknown".
TEST(TextBytes, OfSentencepieceCountSpacesAsOne) {
  const auto pieces = open_tokenizer(testing::source_folder() + "/tests/fixtures/tokenizers/pieces.model", "test");
  const std::string plain = "the of and in";
  EXPECT_EQ(bytes_behind(*pieces, plain), static_cast<std::int64_t>(plain.size()) + 1);
}

}  // namespace
}  // namespace redline::data
