// Conversations on their way to batches: context is never a target, however they are packed, cut, prepared or mixed,
// and what is malformed is named with its line.
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "data/chat_folder.h"
#include "data/from_config.h"
#include "data/listed.h"
#include "data/shards/prepare.h"
#include "data/shards/shards.h"
#include "data/statistics.h"
#include "data/stream.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using redline::testing::says;

class ChatDataTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    real_files().replace(temp_ / name, text);
    return (temp_ / name).string();
  }
  config::Data data(const std::string& path, const std::string& how = "chatml") {
    config::Data d;
    d.train = {path};
    d.eval = {path};  // nothing is held out
    d.tokenizer = tokenizer_;
    d.chat = how;
    return d;
  }
  Prepared prepared(const std::string& path, const Path& out, bool skip = false) {
    PrepareSettings s;
    s.inputs = {path};
    s.tokenizer = tokenizer_;
    s.chat = "chatml";
    s.out = out;
    s.threads = 2;
    s.shard_tokens = 3000;
    s.skip_bad = skip;
    const std::atomic<int> no_stop{0};
    return prepare(real_files(), s, no_stop, [](const PrepareProgress&) {});
  }
  static LoaderOptions options(const std::string& packing, bool truncate = false) {
    LoaderOptions o = options_for({3, 96, 12}, packing, 0, false);
    o.packer.truncate = truncate;
    o.feed.shuffle_buffer = 20;
    return o;
  }
  static std::string error_of(const config::Data& d) {
    return testing::error_of([&] {
      Loader loader(training_corpus(d), options("pack"));
      Batch batch({3, 96, 12});
      while (loader.next(batch)) continue;
    });
  }

  redline::testing::TempFolder temp_;
  std::string tokenizer_ = write_chat_tokenizer(temp_ / "tokenizer", kChatMl);
};

// Every token once, with its target: whatever the packing, what a token is learned as follows from its document alone.
std::map<std::pair<std::int64_t, std::int64_t>, std::pair<std::int32_t, std::int32_t>> learned_tokens(
    std::unique_ptr<Corpus> corpus, LoaderOptions o) {
  o.feed.shuffle = false;
  Loader loader(std::move(corpus), o);
  std::map<std::pair<std::int64_t, std::int64_t>, std::pair<std::int32_t, std::int32_t>> all;
  std::map<std::int64_t, std::int64_t> seen;  // tokens of a document so far: its pieces come in their order
  for (Batch batch(o.packer.shape); loader.next(batch);) {
    std::int64_t pairs = 0;
    for (std::int64_t d = 0; d < batch.documents; ++d)
      for (std::int64_t i = batch.doc_offsets[static_cast<std::size_t>(d)];
           i < batch.doc_offsets[static_cast<std::size_t>(d) + 1]; ++i) {
        const std::int64_t source = batch.sources[static_cast<std::size_t>(d)];
        const auto at = static_cast<std::size_t>(i);
        EXPECT_GE(batch.tokens[at], 0);
        EXPECT_GE(batch.targets[at], kNoTarget);
        pairs += batch.targets[at] != kNoTarget;
        all[{source, seen[source]++}] = {batch.tokens[at], batch.targets[at]};
      }
    EXPECT_EQ(batch.pairs, pairs);
  }
  return all;
}

TEST_F(ChatDataTest, ATokenHasTheSameTargetHoweverItsDocumentIsPackedAndCut) {
  const std::string file = write("chat.jsonl", many_conversations(60));
  // One document a batch, whole, in its own order.
  LoaderOptions single = options_for({1, 4096, 1}, "stream", 0, false);
  const auto expected = learned_tokens(training_corpus(data(file)), single);
  std::int64_t targets = 0, context = 0;
  for (const auto& [place, token] : expected) (token.second == kNoTarget ? context : targets) += 1;
  EXPECT_GT(targets, 1000);
  EXPECT_GT(context, 1000);
  const auto rows = learned_tokens(training_corpus(data(file)), options("stream"));
  EXPECT_GE(rows.size() + 60, expected.size());  // a last token that would be alone stands in no batch
  for (const auto& [place, token] : rows) EXPECT_EQ(token, expected.at(place));
  // The other packings change the order of a long document's pieces, so that it is cut to its first.
  for (const std::string& packing : kPackingNames) {
    const auto packed = learned_tokens(training_corpus(data(file)), options(packing, true));
    EXPECT_GT(packed.size(), 2000u) << packing;
    for (const auto& [place, token] : packed) EXPECT_EQ(token, expected.at(place)) << packing;
  }
}

TEST_F(ChatDataTest, PreparedIsWhatIsStreamed) {
  const std::string file = write("chat.jsonl", many_conversations(60));
  const Prepared p = prepared(file, temp_ / "shards");
  EXPECT_EQ(p.manifest.chat, "ChatML");
  EXPECT_GT(p.manifest.train.shards.size(), 1u);
  EXPECT_GT(p.manifest.train.learned(), 0);
  EXPECT_LT(p.manifest.train.learned(), p.manifest.train.tokens());
  for (const std::string& packing : kPackingNames)
    for (const bool truncate : {false, true}) {
      LoaderOptions o = options(packing, truncate);
      o.feed.shuffle = false;
      Loader stream(training_corpus(data(file)), o);
      Loader shards(training_corpus(data((temp_ / "shards").string())), o);
      Batch a(o.packer.shape), b(o.packer.shape);
      std::int64_t pairs = 0;
      for (;;) {
        const bool more = stream.next(a);
        ASSERT_EQ(shards.next(b), more);
        if (!more) break;
        EXPECT_EQ(a.tokens, b.tokens) << packing;
        EXPECT_EQ(a.targets, b.targets) << packing;
        EXPECT_EQ(a.doc_offsets, b.doc_offsets) << packing;
        EXPECT_EQ(a.pairs, b.pairs);
        pairs += a.pairs;
      }
      EXPECT_GT(pairs, 0);
    }
  Loader stream(training_corpus(data(file)), options("pack"));
  Loader shards(training_corpus(data((temp_ / "shards").string(), "none")), options("pack"));
  for (const Corpus* corpus : {&stream.corpus(), &shards.corpus()}) {
    EXPECT_TRUE(corpus->masked());
    EXPECT_EQ(corpus->decode({*corpus->end_token()}), "<|im_end|>") << "answers end what a model writes";
    EXPECT_EQ(corpus->bytes_of_ids()->at(static_cast<std::size_t>(*corpus->end_token())), 0) << "it is no text";
  }
}

TEST_F(ChatDataTest, AnyPlaceIsGoneOnFromAndAnyRankReadsItsOwn) {
  const std::string file = write("chat.jsonl", many_conversations(80)),
                    text = write("text.jsonl", R"({"text": "plain and simple text"})"
                                               "\n");
  prepared(file, temp_ / "shards");
  config::Data mixed = data(file);
  mixed.train = {file, text, (temp_ / "shards").string()};
  mixed.weights = {0.5, 0.2, 0.3};
  config::Data of_shards = data((temp_ / "shards").string());
  for (const char* packing : {"pack", "stream"}) {
    LoaderOptions o = options(packing);
    o.feed.repeat = true;
    for (const config::Data& d : {data(file), of_shards, mixed}) {
      expect_goes_on([&] { return training_corpus(d); }, o);
      expect_rounds([&] { return training_corpus(d); }, o);
    }
  }
}

TEST_F(ChatDataTest, WhatIsMalformedIsToldWithItsLineOrPassedOver) {
  const std::string good = messages_line({{"user", "x"}, {"assistant", "y"}});
  const std::pair<const char*, std::pair<const char*, const char*>> bad[] = {
      {R"({"messages": [{"content": "x"}]})", {"bad.jsonl:2:1: message 1", "\"role\""}},
      {R"({"messages": [{"role": "robot", "content": "x"}]})", {"bad.jsonl:2:1: message 1", "\"robot\""}},
      {R"({"messages": [{"role": "user", "content": "x"}]})", {"bad.jsonl:2:1", "answer"}},
      {R"({"messages": [{"role": "assistant", "content": 5}]})", {"bad.jsonl:2:1: message 1", "number"}},
      {R"({"messages": [}])", {"bad.jsonl:2:15", "value"}},
  };
  for (const auto& [line, told] : bad) {
    const std::string file = write("bad.jsonl", good + line + "\n" + good);
    config::Data d = data(file);
    EXPECT_TRUE(says(error_of(d), {told.first, told.second, "data.on_error=skip"}));
    d.on_error = "skip";
    EXPECT_EQ(error_of(d), "no error");
    EXPECT_TRUE(says(testing::error_of([&] { prepared(file, temp_ / "out"); }), {told.first, told.second})) << line;
    const Prepared p = prepared(file, temp_ / "out", true);
    EXPECT_EQ(p.manifest.skipped_malformed, 1);
    EXPECT_EQ(p.total.documents, 2);
    std::filesystem::remove_all(temp_ / "out");
  }
}

TEST_F(ChatDataTest, WhatCannotBeDoneIsNotPassedOver) {
  const std::string file = write("chat.jsonl", messages_line({{"user", "x"}, {"assistant", "y"}}));
  config::Data d = data(file, "auto");
  d.tokenizer = write_chat_tokenizer(temp_ / "plain", "");
  d.on_error = "skip";
  EXPECT_TRUE(says(error_of(d), {"chat_template", "data.chat"}));
  d.tokenizer = "bytes";
  d.chat = "chatml";
  EXPECT_TRUE(says(error_of(d), {"<|im_start|>", "bytes"}));
  // A few conversations, of which one is to be held out, and nobody has said that they are any.
  d = data(file, "none");
  d.eval.clear();
  EXPECT_TRUE(says(error_of(d), {"chat.jsonl:1:1", "data.chat=auto"}));
  d = data(write("a.txt", "no conversations in here"));
  EXPECT_TRUE(says(error_of(d), {"data.chat", "\"chatml\"", "data.train", ".jsonl"}));
}

TEST_F(ChatDataTest, LengthsAreThoseOfWhatIsTrainedOn) {
  const std::string file = write("chat.jsonl", many_conversations(20));
  prepared(file, temp_ / "shards");
  ThreadPool pool(2);
  const LengthSurvey stream = survey_lengths(corpus_options(data(file)), {}, pool),
                     shards = survey_lengths(corpus_options(data((temp_ / "shards").string())), {}, pool);
  EXPECT_EQ(stream.lengths, shards.lengths);
  EXPECT_NE(stream.lengths,
            survey_lengths(corpus_options(data(write("b.jsonl", many_conversations(21)))), {}, pool).lengths);
}

TEST_F(ChatDataTest, AnotherTemplateIsOtherData) {
  const std::string file = write("chat.jsonl", many_conversations(20));
  EXPECT_NE(training_corpus(data(file))->fingerprint(), training_corpus(data(file, "llama3"))->fingerprint());
  EXPECT_EQ(training_corpus(data(file))->fingerprint(), training_corpus(data(file, "auto"))->fingerprint());
}

}  // namespace
}  // namespace redline::data
