// Training: the same file for any number of threads, merges by count, and text that comes back.
#include "data/tokenizer/train_bpe.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "data/tokenizer/split.h"
#include "data/tokenizer/tokenizer.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

// Words that occur the more often the shorter they are, with some of everything between; `bytes` of it.
std::string corpus(std::size_t bytes) {
  const Random random(3, 1);
  std::string text;
  for (std::uint64_t i = 0; text.size() < bytes; ++i) {
    const std::uint64_t word = random.below(i * 4, 40) * random.below(i * 4 + 1, 40);
    for (std::uint64_t w = word + 3; w > 0; w /= 5) text += "aeiou"[w % 5], text += "kltrn"[w * 7 % 5];
    text += random.below(i * 4 + 2, 9) == 0 ? ". 世界 é\n" : " ";
    if (i % 1000 == 0) text += "<|endoftext|>";
  }
  return text.substr(0, text.find_last_of(' '));
}

std::string train(const TrainFamily& family, int threads, std::int64_t vocabulary, const std::string& text) {
  ThreadPool pool(threads);
  const std::vector<std::string> specials = {"<|endoftext|>"};
  PieceCounter counter(family, specials, pool);
  counter.add({text, "a second text"});
  return tokenizer_json_of(train_bpe(counter.take(), vocabulary, [](std::int64_t) {}), family, specials);
}

TEST(TrainTest, TheNumberOfThreadsDoesNotShow) {
  const std::string text = corpus(1'500'000);  // several chunks
  for (const TrainFamily& family : train_families()) {
    const std::string one = train(family, 1, 400, text);
    EXPECT_EQ(one, train(family, 3, 400, text)) << family.name;
    const auto tokenizer = bpe_tokenizer(one, "trained.json");
    EXPECT_EQ(tokenizer->vocabulary(), 401);
    EXPECT_EQ(tokenizer->end_token(), 400);
    const std::string some = text.substr(0, 20'000);
    const std::string whole = some.substr(0, some.find_last_of(' '));
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(whole)), whole);
    EXPECT_LT(tokenizer->encode(whole).size(), whole.size() / 2);
  }
}

TEST(TrainTest, LongTextsAreCutWhereNoPieceIs) {
  // The counts of a long text are those of its pieces found in one go.
  const std::string text = corpus(900'000);
  for (const TrainFamily& family : train_families()) {
    ThreadPool pool(2);
    PieceCounter counter(family, {"<|endoftext|>"}, pool);
    counter.add({text});
    const auto pattern = compile_split(family.pattern, "test");
    const auto splitter = pattern->splitter();
    std::unordered_map<std::string, std::int64_t> expected;
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view part = rest.substr(0, std::min(rest.find("<|endoftext|>"), rest.size()));
      for (std::size_t at = 0; at < part.size(); at = splitter->next(part, at).end)
        ++expected[std::string(part.substr(at, splitter->next(part, at).end - at))];
      rest.remove_prefix(std::min(part.size() + 13, rest.size()));
    }
    const std::vector<CountedPiece> pieces = counter.take();
    EXPECT_EQ(pieces.size(), expected.size());
    for (const CountedPiece& piece : pieces) ASSERT_EQ(piece.count, expected[piece.bytes]) << piece.bytes;
  }
}

TEST(TrainTest, TheCommonestPairIsMergedFirst) {
  const TrainedBpe bpe = train_bpe({{"abab", 3}, {"bc", 7}, {"xyz", 5}}, 261, [](std::int64_t) {});
  const auto token = [&](std::size_t i) { return bpe.tokens[256 + i]; };
  ASSERT_EQ(bpe.tokens.size(), 261u);
  EXPECT_EQ(token(0), "bc");    // 7
  EXPECT_EQ(token(1), "ab");    // 6
  EXPECT_EQ(token(2), "xy");    // 5, before yz by its ids
  EXPECT_EQ(token(3), "xyz");   // 5
  EXPECT_EQ(token(4), "abab");  // 3
}

TEST(TrainTest, RunsOfOneLetterAreCountedRight) {
  // aaaaa becomes aa aa a; (aa a) and (aa aa) are as common, and the first has the lower ids.
  const TrainedBpe bpe = train_bpe({{"aaaaa", 2}}, 300, [](std::int64_t) {});
  ASSERT_EQ(bpe.tokens.size(), 259u);  // nothing is left to merge
  EXPECT_EQ(bpe.tokens[256], "aa");
  EXPECT_EQ(bpe.tokens[257], "aaa");
  EXPECT_EQ(bpe.tokens[258], "aaaaa");
}

}  // namespace
}  // namespace redline::data
