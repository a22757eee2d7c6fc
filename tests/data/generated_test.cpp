// Generated corpora. Ping: the same on every machine, as long as real logs are, with something in it to learn. Random
// tokens: full rows in which every token has a target, spread over the vocabulary.
#include "data/generated.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <unordered_set>

#include "base/error.h"
#include "base/hash.h"
#include "data/from_config.h"
#include "data/listed.h"
#include "data/loader.h"

namespace redline::data {
namespace {

Tokens document(const DocumentSource& source, std::int64_t index) {
  Tokens tokens;
  source.read(index, tokens);
  return tokens;
}

TEST(Ping, TheFirstDocumentsAreTheseOnEveryMachine) {
  const auto ping = make_ping(0, 0, Part::training);
  EXPECT_EQ(
      ping->decode(document(*ping, 0)),
      "<begin><source>10.42.69.35<target>10.113.195.3<size>1400<time>71945<sequence>1<ttl>55<rtt>14.6<received>1<end>");
  Tokens all;
  for (int i = 0; i < 100; ++i) {
    const Tokens tokens = document(*ping, i);
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  EXPECT_EQ(hex64(hash64(std::as_bytes(std::span(all)))), "d561f949e7b6ec79");
}

TEST(Ping, LengthsAreThoseOfRealLogs) {
  const auto ping = make_ping(0, 0, Part::training);
  std::int64_t total = 0, longest = 0, over_800 = 0;
  constexpr int kDocuments = 30000;
  Tokens tokens;
  for (int i = 0; i < kDocuments; ++i) {
    ping->read(i, tokens);
    const auto length = static_cast<std::int64_t>(tokens.size());
    total += length;
    longest = std::max(longest, length);
    over_800 += length > 800;
  }
  EXPECT_NEAR(static_cast<double>(total) / kDocuments, 200.0, 5.0);
  EXPECT_LE(longest, 1024);
  EXPECT_GT(longest, 1000);
  EXPECT_GT(over_800, kDocuments / 200);  // the tail is there
}

// One document taken apart.
struct Log {
  std::string source, target;
  int size = 0, received = 0;
  std::vector<int> times, sequences, ttls, rtts;  // rtt in tenths
  int lost = 0;
};

Log read_log(const std::string& text) {
  Log log;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t close = text.find('>', at);
    const std::string role = text.substr(at + 1, close - at - 1);
    const std::size_t next = std::min(text.find('<', close), text.size());
    std::string value = text.substr(close + 1, next - close - 1);
    if (role == "source") log.source = value;
    if (role == "target") log.target = value;
    if (role == "size") log.size = std::stoi(value);
    if (role == "time") log.times.push_back(std::stoi(value));
    if (role == "sequence") log.sequences.push_back(std::stoi(value));
    if (role == "ttl") log.ttls.push_back(std::stoi(value));
    if (role == "rtt") log.rtts.push_back(std::stoi(value.erase(value.find('.'), 1)));
    if (role == "lost") ++log.lost;
    if (role == "received") log.received = std::stoi(value);
    at = next;
  }
  return log;
}

TEST(Ping, DocumentsHoldWhatThereIsToLearn) {
  const auto ping = make_ping(3, 0, Part::training);
  std::map<std::set<std::string>, std::map<int, std::pair<int, int>>>
      fastest;  // pair -> size -> fastest of two documents
  std::set<std::string> hosts;
  int lost = 0, probes = 0, recurring = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string text = ping->decode(document(*ping, i));
    ASSERT_TRUE(text.starts_with("<begin><source>10.") && text.ends_with("<end>")) << text;
    const Log log = read_log(text);
    hosts.insert(log.source);
    ASSERT_NE(log.source, log.target);
    for (std::size_t k = 0; k < log.sequences.size(); ++k) {
      ASSERT_EQ(log.sequences[k], static_cast<int>(k) + 1);
      if (k > 0) {
        ASSERT_GT(log.times[k], log.times[k - 1]);
      }
    }
    ASSERT_EQ(log.received, static_cast<int>(log.rtts.size()));
    ASSERT_EQ(log.received + log.lost, static_cast<int>(log.sequences.size()));
    lost += log.lost;
    probes += static_cast<int>(log.sequences.size());
    if (log.rtts.size() < 4) continue;
    // The pair says the time, whichever way the probe goes: fastest answers differ by jitter alone.
    const int best = *std::ranges::min_element(log.rtts);
    const auto [it, first] = fastest[{log.source, log.target}].try_emplace(log.size, best, log.ttls[0]);
    if (first) continue;
    ++recurring;
    EXPECT_LE(std::abs(it->second.first - best), 12) << text;
    EXPECT_EQ(it->second.second, log.ttls[0]) << text;
  }
  EXPECT_EQ(hosts.size(), 400u);
  EXPECT_GT(recurring, 500);
  EXPECT_GT(lost, probes / 200);
  EXPECT_LT(lost, probes / 10);
}

TEST(Ping, HeldOutDocumentsAreOfTheSameWorldAndNeverTrainedOn) {
  const auto training = make_ping(0, 0, Part::training), held_out = make_ping(0, 0, Part::held_out);
  std::unordered_set<std::string> seen;
  std::set<std::string> hosts;
  for (int i = 0; i < 20000; ++i) {
    const std::string text = training->decode(document(*training, i));
    seen.insert(text);
    hosts.insert(read_log(text).source);
  }
  for (int i = 0; i < 10000; ++i) {
    const std::string text = held_out->decode(document(*held_out, i));
    EXPECT_FALSE(seen.contains(text));
    EXPECT_TRUE(hosts.contains(read_log(text).source));
  }
}

TEST(Ping, EachDocumentIsAFunctionOfSeedAndIndex) {
  const auto a = make_ping(5, 0, Part::training), b = make_ping(5, 10, Part::training),
             c = make_ping(6, 0, Part::training);
  EXPECT_EQ(document(*a, 9), document(*b, 9));
  EXPECT_NE(document(*a, 9), document(*c, 9));
  EXPECT_NE(document(*a, 8), document(*a, 9));
  EXPECT_FALSE(document(*a, std::int64_t{1} << 61).empty());
  EXPECT_EQ(b->documents(), 10);
  EXPECT_ANY_THROW(document(*b, 10));
}

TEST(Ping, TextAndTokensAreInverse) {
  const auto ping = make_ping(0, 0, Part::training);
  EXPECT_EQ(ping->vocabulary(), 267);
  for (int i = 0; i < 100; ++i) {
    const Tokens tokens = document(*ping, i);
    EXPECT_EQ(ping->encode(ping->decode(tokens)), tokens);
  }
  EXPECT_EQ(ping->encode("<begin>1<nobody>"), (Tokens{257, '1', '<', 'n', 'o', 'b', 'o', 'd', 'y', '>'}));
  EXPECT_EQ(ping->decode({256, 266, 'x', 5000}), "<end><received>x<5000>");
}

TEST(RandomTokens, FillsEveryRowAndUsesTheWholeVocabulary) {
  config::Data data;
  data.train = {"random:1000"};
  const BatchShape shape{.rows = 8, .seq_len = 512, .max_segments = 4};
  Loader loader(training_corpus(data), options_for(shape, "pack")),
      again(training_corpus(data), options_for(shape, "pack"));
  Loader held_out(held_out_corpus(data), options_for(shape, "pack"));
  Batch batch(shape), same(shape), other(shape);
  std::vector<int> seen(1000);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(loader.next(batch));
    again.next(same);
    held_out.next(other);
    EXPECT_EQ(batch.pairs, shape.tokens());
    EXPECT_EQ(batch.documents, shape.rows);
    EXPECT_EQ(batch.tokens, same.tokens);
    EXPECT_NE(batch.tokens, other.tokens);
    for (const std::int32_t t : batch.tokens) ++seen.at(static_cast<std::size_t>(t));
  }
  const auto [least, most] = std::ranges::minmax(seen);  // 82 of each in the mean
  EXPECT_GT(least, 40);
  EXPECT_LT(most, 130);
}

// Rows that are longer than documents, or that do not divide them, would have padding.
TEST(RandomTokens, FillsRowsOfAnyLength) {
  for (const std::int64_t length : {std::int64_t{3000}, std::int64_t{65'536}, std::int64_t{131'072}}) {
    config::Config config;
    config.data.train = {"random:50"};
    config.train.seq_len = length;
    const BatchShape shape{.rows = 1, .seq_len = length, .max_segments = 2};
    Loader loader(open_training_corpus(corpus_options(config)), options_for(shape, "pack"));
    Batch batch(shape);
    for (int i = 0; i < 25; ++i) {
      ASSERT_TRUE(loader.next(batch));
      ASSERT_EQ(batch.pairs, length) << "row " << i;
      ASSERT_EQ(batch.documents, 1) << "row " << i;
    }
  }
}

TEST(RandomTokens, ANameWithoutAVocabularyIsRefused) {
  config::Data data;
  for (const char* name : {"random:", "random:x", "random:0", "random:-3", "random:5x", "random:16777217"}) {
    data.train = {name};
    EXPECT_THROW(training_corpus(data), UserError) << name;
  }
}

}  // namespace
}  // namespace redline::data
