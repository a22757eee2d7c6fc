// Text while it comes: characters and stop strings that several tokens make up.
#include <gtest/gtest.h>

#include "base/random.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/sample.h"
#include "testing/paths.h"

namespace redline::infer {
namespace {

using Tokens = std::vector<std::int32_t>;

std::shared_ptr<const data::Tokenizer> fixture(const std::string& name) {
  return data::open_tokenizer(testing::source_folder() + "/tests/fixtures/tokenizers/" + name, "test");
}

TextStream stream_of(std::shared_ptr<const data::Tokenizer> tokenizer, const Tokens& before,
                     std::vector<std::string> stops = {}) {
  return {[tokenizer](std::span<const std::int32_t> t) { return tokenizer->decode(t); }, before, std::move(stops)};
}

// Whatever the tokenizer, the pieces make up the text, and no piece ends inside a character.
TEST(TextStream, PiecesMakeUpTheText) {
  const std::string text = "Grüße, 世界! 🌍🌍 naïve coöperation \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80 end";
  for (const char* name : {"gpt2.tokenizer.json", "llama3.tokenizer.json", "pieces.model"}) {
    const auto tokenizer = fixture(name);
    const Tokens before = tokenizer->encode("It was. "), tokens = tokenizer->encode(text);
    TextStream stream = stream_of(tokenizer, before);
    std::string together;
    for (const std::int32_t token : tokens) {
      const std::string piece = stream.push(token);
      EXPECT_FALSE(piece.ends_with("\xEF\xBF\xBD")) << name;
      together += piece;
    }
    together += stream.finish();
    Tokens all = before;
    all.insert(all.end(), tokens.begin(), tokens.end());
    EXPECT_EQ(together, tokenizer->decode(all).substr(tokenizer->decode(before).size())) << name;
    EXPECT_EQ(stream.text(), together);
    EXPECT_FALSE(stream.stopped());
  }
}

TEST(TextStream, EndsBeforeTheFirstStopStringAndShowsNoneOfIt) {
  const auto bytes = data::open_tokenizer("bytes", "test");
  for (const auto& [text, stops, want, stopped] :
       std::vector<std::tuple<std::string, std::vector<std::string>, std::string, bool>>{
           {"one two three", {"two"}, "one ", true},
           {"one two three", {"three", "tw"}, "one ", true},
           {"aab", {"ab"}, "a", true},
           {"abcabd", {"abd"}, "abc", true},
           {"one tw", {"two"}, "one tw", false},
           {"one", {"", "x"}, "one", false},
           {"stop", {"stop"}, "", true}}) {
    TextStream stream = stream_of(bytes, bytes->encode("before"), stops);
    std::string shown;
    for (const std::int32_t token : bytes->encode(text)) {
      shown += stream.push(token);
      EXPECT_TRUE(want.starts_with(shown)) << text << ": " << shown;
    }
    shown += stream.finish();
    EXPECT_EQ(shown, want) << text;
    EXPECT_EQ(stream.stopped(), stopped) << text;
  }
}

// A character that never becomes whole is shown at the end, as what the tokenizer makes of it.
TEST(TextStream, AnIncompleteCharacterComesLast) {
  const auto gpt2 = fixture("gpt2.tokenizer.json");
  Tokens tokens = gpt2->encode("🌍");
  ASSERT_GT(tokens.size(), 1u);
  tokens.pop_back();
  TextStream stream = stream_of(gpt2, gpt2->encode("a"));
  for (const std::int32_t token : tokens) EXPECT_EQ(stream.push(token), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace redline::infer
