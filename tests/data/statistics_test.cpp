// Figures of every way of packing against counting by hand and against a packing written a second time; percentiles,
// bins and the error of a sample. The bucket edges that waste least are those that trying all of them finds, and
// lengths are those that training is served, from every kind of source.
#include "data/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/random.h"
#include "data/from_config.h"
#include "data/listed.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using Lengths = std::vector<std::int64_t>;

std::int64_t sum(const Lengths& lengths) { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }

double pairs_of(const Lengths& pieces) {
  double pairs = 0;
  for (const std::int64_t piece : pieces)
    for (std::int64_t query = 1; query <= piece; ++query) pairs += static_cast<double>(query);
  return pairs;
}

// Documents in this order, cut where they stand.
Packed packed_of(const PackerSettings& settings, const Lengths& lengths) {
  return run_packer(settings, pieces_of(lengths, settings.cut()));
}

Lengths split(const Lengths& lengths, std::int64_t row) {
  Lengths pieces;
  for (const std::int64_t length : lengths)
    for (std::int64_t at = 0; at + 1 < length; at += row) pieces.push_back(std::min(row, length - at));
  return pieces;
}

TEST(Statistics, PadTakesARowForEachPiece) {
  const Lengths lengths = {3, 10, 11, 1, 25, 7};  // the last token of 11 is only a target, and that of 1 nothing
  const Packed p = packed_of({{4, 10, 8}, Packing::pad, false, {}}, lengths);
  EXPECT_EQ(p.rows, 1 + 1 + 1 + 0 + 3 + 1);
  EXPECT_EQ(p.real_tokens, 55);
  EXPECT_EQ(p.score_pairs, pairs_of({3, 10, 10, 10, 10, 5, 7}));

  const Packed truncated = packed_of({{4, 10, 8}, Packing::pad, true, {}}, lengths);
  EXPECT_EQ(truncated.rows, 5);
  EXPECT_EQ(truncated.real_tokens, 3 + 10 + 10 + 10 + 7);
}

TEST(Statistics, PackByHand) {
  // The oldest opens a batch, then the largest that fits: 6+4, 5+3+2.
  const Packed full = packed_of({{1, 10, 8}, Packing::pack, false, {}}, Lengths{6, 5, 4, 3, 2});
  EXPECT_EQ(full.rows, 2);
  EXPECT_EQ(full.real_tokens, 20);
  const Packed half = packed_of({{1, 10, 8}, Packing::pack, false, {}}, Lengths{6, 6, 6});
  EXPECT_EQ(half.rows, 3);
  // 12 tokens of a batch of 4 rows use two of them; the documents are over, so the others are not counted.
  EXPECT_EQ(packed_of({{4, 10, 8}, Packing::pack, false, {}}, Lengths{6, 6}).rows, 2);
  // Five documents take three rows of two, however short they are.
  EXPECT_EQ(packed_of({{4, 10, 2}, Packing::pack, false, {}}, Lengths{2, 2, 2, 2, 2}).rows, 3);
}

// Best fit written again, for lists that the packer can see whole.
std::int64_t rows_of_best_fit(Lengths waiting, const BatchShape& shape) {
  std::int64_t rows = 0;
  while (!waiting.empty()) {
    std::int64_t used = waiting.front(), pieces = 1;
    waiting.erase(waiting.begin());
    for (; pieces < shape.documents(); ++pieces) {
      auto best = waiting.end();
      for (auto it = waiting.begin(); it != waiting.end(); ++it)
        if (used + *it <= shape.tokens() && (best == waiting.end() || *it > *best)) best = it;
      if (best == waiting.end()) break;
      used += *best;
      waiting.erase(best);
    }
    rows +=
        std::max((used + shape.seq_len - 1) / shape.seq_len, (pieces + shape.max_segments - 1) / shape.max_segments);
  }
  return rows;
}

TEST(Statistics, PackAgreesWithBestFitWrittenAgain) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const BatchShape shape{static_cast<std::int64_t>(1 + seed % 3), 50, seed % 5 == 0 ? 2 : 40};
    Lengths lengths = random_lengths(60, 50, seed);
    std::erase(lengths, 1);
    const Packed p = packed_of({shape, Packing::pack, false, {}}, lengths);
    EXPECT_EQ(p.rows, rows_of_best_fit(lengths, shape)) << seed;
    EXPECT_EQ(p.real_tokens, sum(lengths));
    EXPECT_EQ(p.score_pairs, pairs_of(lengths));
  }
}

TEST(Statistics, AStreamFillsEveryRow) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const BatchShape shape{static_cast<std::int64_t>(1 + seed % 4), 32, 64};
    const Lengths lengths = random_lengths(200, 90, seed);
    const Packed p = packed_of({shape, Packing::stream, false, {}}, lengths);
    // Pieces end with their document, with the batch, or with a row's worth of tokens from their document's first.
    Lengths pieces;
    std::int64_t at = 0, cut = 0;
    for (const std::int64_t length : lengths) {
      if (length < 2) continue;
      const std::size_t before = pieces.size();
      for (std::int64_t begin = 0; begin < length - 1; begin += pieces.back(), at += pieces.back())
        pieces.push_back(
            std::min({length - begin, shape.seq_len - begin % shape.seq_len, shape.tokens() - at % shape.tokens()}));
      cut += length <= shape.seq_len + 1 && pieces.size() > before + 1;
    }
    EXPECT_EQ(p.rows, (at + 31) / 32);
    EXPECT_EQ(p.pieces, static_cast<std::int64_t>(pieces.size()));
    EXPECT_EQ(p.cut_pieces, cut);
    EXPECT_EQ(p.score_pairs, pairs_of(pieces));
    EXPECT_EQ(p.real_tokens, at);
  }
}

TEST(Statistics, BucketsByHand) {
  // A batch of 16 tokens: four pieces of up to 4 (13 tokens), then two of up to 8 (15).
  const Packed p = packed_of({{2, 8, 8}, Packing::bucket, false, {4}}, Lengths{3, 4, 8, 2, 7, 4});
  EXPECT_EQ(p.batches, 2);
  EXPECT_EQ(p.rows, 4);
  EXPECT_EQ(p.real_tokens, 28);
  // Short pieces take the whole of their bucket's length: four of 4 slots are two rows.
  EXPECT_EQ(packed_of({{2, 8, 8}, Packing::bucket, false, {4}}, Lengths{2, 2, 2, 2}).rows, 2);
  // One piece more opens a batch of which it uses one row.
  EXPECT_EQ(packed_of({{2, 8, 8}, Packing::bucket, false, {4}}, Lengths{3, 4, 8, 2, 7, 4, 2}).rows, 5);
}

TEST(Statistics, BucketsCostWhatTheRuleSays) {
  const BatchShape shape{4, 64, 32};
  Lengths lengths = random_lengths(20000, 64, 5);
  std::erase(lengths, 1);
  const Packed p = packed_of({shape, Packing::bucket, false, {10, 30}}, lengths);
  double slots = 0;
  for (const std::int64_t length : lengths) slots += slots_per_piece(shape, length <= 10 ? 10 : length <= 30 ? 30 : 64);
  EXPECT_NEAR(static_cast<double>(p.rows * 64), slots, 3.0 * static_cast<double>(shape.tokens()));
}

TEST(Statistics, MaxSegmentsIsSeenWhenItBinds) {
  const Lengths lengths(1000, 2);
  EXPECT_GT(packed_of({{2, 64, 4}, Packing::pack, false, {}}, lengths).capped_batches, 10);
  EXPECT_EQ(packed_of({{2, 64, 40}, Packing::pack, false, {}}, lengths).capped_batches, 0);
}

TEST(Statistics, PercentilesAreLengthsOfDocuments) {
  Lengths lengths(200);
  std::iota(lengths.begin(), lengths.end(), 1);
  std::ranges::reverse(lengths);
  const LengthSummary s = summarise(lengths);
  EXPECT_EQ(s.percentiles, (std::array<std::int64_t, 8>{2, 10, 50, 100, 150, 180, 190, 198}));
  EXPECT_EQ(s.documents, 200);
  EXPECT_EQ(s.tokens, 20100);
  EXPECT_EQ(s.mean, 100.5);
  EXPECT_NEAR(s.deviation, 57.8792, 1e-4);  // of 1 to 200, over n - 1
  EXPECT_EQ(s.shortest, 1);
  EXPECT_EQ(s.longest, 200);
  EXPECT_EQ(summarise({7}).percentiles[0], 7);
  EXPECT_EQ(summarise({7}).deviation, 0);
}

TEST(Statistics, BinsHoldEveryDocumentOnce) {
  for (const std::uint64_t most : {1ull, 2ull, 30ull, 1000ull, 1ull << 20, 1ull << 40}) {
    const Lengths lengths = random_lengths(3000, most, most);
    const LengthSummary s = summarise(lengths);
    EXPECT_LE(s.bins.size(), kMostBins);
    std::int64_t documents = 0, tokens = 0;
    for (std::size_t b = 0; b < s.bins.size(); ++b) {
      const LengthBin& bin = s.bins[b];
      documents += bin.documents;
      tokens += bin.tokens;
      EXPECT_EQ(bin.documents,
                std::ranges::count_if(lengths, [&](std::int64_t l) { return l >= bin.from && l <= bin.to; }));
      if (b > 0) {
        EXPECT_EQ(bin.from, s.bins[b - 1].to + 1);
      }
    }
    EXPECT_EQ(documents, s.documents);
    EXPECT_EQ(tokens, s.tokens);
    EXPECT_LE(s.bins.front().from, s.shortest);
    EXPECT_GE(s.bins.front().to, s.shortest);
    EXPECT_LE(s.bins.back().from, s.longest);
  }
}

LengthSurvey survey_of(Lengths lengths) {
  LengthSurvey survey;
  std::erase(lengths, 1);
  survey.documents = static_cast<std::int64_t>(lengths.size());
  survey.lengths = std::move(lengths);
  return survey;
}

TEST(Statistics, SpeedupFollowsTheCostOfTheModel) {
  ThreadPool pool(2);
  const LengthSurvey survey = survey_of(random_lengths(3000, 100, 1));
  const Analysis tokens = analyse(survey, {.shape = {4, 128, 32}, .model = {}, .progress = {}}, pool);
  const Analysis model = analyse(survey, {.shape = {4, 128, 32}, .model = ModelCost{100, 1}, .progress = {}}, pool);
  for (const Packing packing : kPackings) {
    const ModeFigures& t = tokens.row_lengths[0].at(packing);
    EXPECT_NEAR(t.speedup_over_pad, t.utilisation / tokens.row_lengths[0].at(Packing::pad).utilisation, 1e-9);
    EXPECT_NEAR(t.wasted / t.cost, 1 - t.utilisation, 1e-9);
    // A stream leaves a last token out where it would open a batch.
    EXPECT_NEAR(t.utilisation * 128 * static_cast<double>(t.rows), tokens.tokens,
                packing == Packing::stream ? 20 : 1e-3);
  }
  // Counted again, for pad: every row pays its products, pairs are those of the documents.
  const double pairs = pairs_of(survey.lengths), slots = static_cast<double>(survey.lengths.size()) * 128;
  const ModeFigures& pad = model.row_lengths[0].at(Packing::pad);
  EXPECT_NEAR(pad.cost, 100 * slots + pairs, 1e-3);
  EXPECT_NEAR(pad.wasted, 100 * (slots - model.tokens), 1e-3);
  const ModeFigures& pack = model.row_lengths[0].at(Packing::pack);
  EXPECT_NEAR(pack.speedup_over_pad, pad.cost / (100.0 * 128 * static_cast<double>(pack.rows) + pairs), 1e-9);
  EXPECT_LT(pack.speedup_over_pad, tokens.row_lengths[0].at(Packing::pack).speedup_over_pad);
}

TEST(Statistics, ShorterRowsKeepTheTokensOfABatch) {
  ThreadPool pool(1);
  const Lengths lengths = {100, 5, 40, 64, 33};
  for (const bool truncate : {false, true}) {
    AnalysisSettings settings{.shape = {2, 64, 8}, .truncate = truncate, .model = {}, .progress = {}};
    const Analysis a = analyse(survey_of(lengths), settings, pool);
    ASSERT_EQ(a.row_lengths.size(), 3u);  // 64, 32, 16
    for (std::size_t i = 0; i < 3; ++i) {
      const RowLength& r = a.row_lengths[i];
      const std::int64_t row = 64 >> i;
      EXPECT_EQ(r.shape.seq_len, row);
      EXPECT_EQ(r.shape.tokens(), 128);
      std::int64_t beyond = 0;
      for (const std::int64_t l : lengths) beyond += std::max<std::int64_t>(0, l - row);
      EXPECT_EQ(r.long_documents, std::ranges::count_if(lengths, [&](std::int64_t l) { return l > row; }));
      for (const Packing packing : kPackings) {
        const bool keeps = packing == Packing::stream && !truncate;
        EXPECT_EQ(r.at(packing).truncated_tokens, keeps ? 0 : beyond);
        EXPECT_EQ(r.at(packing).dropped_tokens, truncate ? beyond : 0);
      }
      EXPECT_EQ(r.at(Packing::pad).rows, static_cast<std::int64_t>(truncate ? 5 : split(lengths, row).size()));
    }
  }
}

// 20 documents of 8 tokens: rows of 64 padded compute 20 * 64 slots, rows of 32 packed 20 * 8.
TEST(Statistics, SpeedupAcrossRowLengths) {
  ThreadPool pool(1);
  const Analysis a = analyse(survey_of(Lengths(20, 8)), {.shape = {2, 64, 16}, .model = {}, .progress = {}}, pool);
  ASSERT_GE(a.row_lengths.size(), 2u);
  const RowLength &longest = a.row_lengths[0], &half = a.row_lengths[1];
  EXPECT_DOUBLE_EQ(longest.at(Packing::pad).speedup_over_longest_pad, 1);
  EXPECT_DOUBLE_EQ(half.at(Packing::pad).speedup_over_longest_pad, 2);
  EXPECT_DOUBLE_EQ(half.at(Packing::pack).speedup_over_longest_pad, 8);
  EXPECT_DOUBLE_EQ(half.at(Packing::pack).speedup_over_pad, 4);
}

TEST(Statistics, TheSameForAnyNumberOfThreads) {
  const LengthSurvey survey = survey_of(random_lengths(2000, 300, 2));
  ThreadPool one(1), three(3);
  const AnalysisSettings settings{.shape = {4, 128, 32}, .model = {}, .progress = {}};
  const Analysis a = analyse(survey, settings, one), b = analyse(survey, settings, three);
  for (std::size_t i = 0; i < a.row_lengths.size(); ++i)
    for (const Packing packing : kPackings)
      EXPECT_EQ(a.row_lengths[i].at(packing).utilisation, b.row_lengths[i].at(packing).utilisation);
  EXPECT_EQ(a.best_edges.edges, b.best_edges.edges);
}

TEST(Statistics, BestEdgesAreThoseOfThePieces) {
  ThreadPool pool(1);
  const Lengths lengths = {100, 5, 40, 64, 33, 128, 7, 7};
  for (const bool truncate : {false, true}) {
    std::map<std::int64_t, std::int64_t> pieces;
    if (truncate)
      for (const std::int64_t length : lengths) ++pieces[std::min<std::int64_t>(length, 64)];
    else
      for (const std::int64_t piece : split(lengths, 64)) ++pieces[piece];
    const Analysis a = analyse(
        survey_of(lengths),
        {.shape = {2, 64, 8}, .truncate = truncate, .edges = {}, .buckets = 3, .model = {}, .progress = {}}, pool);
    EXPECT_EQ(a.best_edges.edges, best_bucket_edges(pieces, 3, {2, 64, 8}).edges);
    EXPECT_EQ(a.best_edges.slots, best_bucket_edges(pieces, 3, {2, 64, 8}).slots);
  }
}

TEST(Statistics, GivenEdgesAreUsed) {
  ThreadPool pool(1);
  const LengthSurvey survey = survey_of(random_lengths(2000, 60, 4));
  AnalysisSettings settings{.shape = {4, 64, 32}, .model = {}, .progress = {}};
  settings.edges = {20, 40};
  const Analysis a = analyse(survey, settings, pool);
  const Packed packed = run_packer({settings.shape, Packing::bucket, false, {20, 40}},
                                   pieces_of(survey.lengths, {64, false}, survey.shuffled));
  EXPECT_EQ(a.row_lengths[0].at(Packing::bucket).rows, packed.rows);
  EXPECT_EQ(a.usual_edges, (Lengths{20, 40, 64}));
}

TEST(Statistics, BestEdgesDoNotLoseToTheUsualOnes) {
  ThreadPool pool(2);
  const Analysis a = analyse(survey_of(random_lengths(20000, 700, 9)),
                             {.shape = {8, 1024, 32}, .buckets = 5, .model = {}, .progress = {}}, pool);
  EXPECT_GT(a.with_best_edges.utilisation, a.row_lengths[0].at(Packing::bucket).utilisation);
  // The prediction is for endless data; at the end of these, each bucket leaves less than a batch.
  EXPECT_NEAR(a.with_best_edges.utilisation, a.tokens / a.best_edges.slots, 0.01);
}

BucketEdges best(const Lengths& pieces, std::int64_t buckets, const BatchShape& shape) {
  std::map<std::int64_t, std::int64_t> counts;
  for (const std::int64_t piece : pieces) ++counts[piece];
  return best_bucket_edges(counts, buckets, shape);
}

double slots_of(const Lengths& pieces, const Lengths& edges, const BatchShape& shape) {
  double slots = 0;
  for (const std::int64_t length : pieces) slots += slots_per_piece(shape, *std::ranges::lower_bound(edges, length));
  return slots;
}

// Every set of at most `buckets` distinct lengths that ends with the longest.
double least_by_trying(const Lengths& pieces, std::int64_t buckets, const BatchShape& shape) {
  const std::set<std::int64_t> set(pieces.begin(), pieces.end());
  const Lengths distinct(set.begin(), set.end());
  double least = 1e300;
  for (std::uint32_t chosen = 0; chosen < 1u << (distinct.size() - 1); ++chosen) {
    Lengths edges;
    for (std::size_t i = 0; i + 1 < distinct.size(); ++i)
      if (chosen >> i & 1) edges.push_back(distinct[i]);
    edges.push_back(distinct.back());
    if (static_cast<std::int64_t>(edges.size()) <= buckets) least = std::min(least, slots_of(pieces, edges, shape));
  }
  return least;
}

TEST(BucketEdges, APieceCostsItsShareOfTheBatch) {
  EXPECT_EQ(slots_per_piece({8, 1024, 32}, 1024), 1024);
  EXPECT_EQ(slots_per_piece({8, 1024, 32}, 256), 256);
  EXPECT_EQ(slots_per_piece({8, 1024, 32}, 300), 8192.0 / 27);  // 27 pieces of 300 in a batch of 8192
  EXPECT_EQ(slots_per_piece({8, 1024, 4}, 16), 256);            // max_segments: no more than 32 pieces
}

TEST(BucketEdges, ByHand) {
  const BatchShape shape{1, 64, 64};
  EXPECT_EQ(best(Lengths{8, 8, 16, 32}, 4, shape).edges, (Lengths{8, 16, 32}));
  EXPECT_EQ(best(Lengths{8, 8, 16, 32}, 4, shape).slots, 64);
  EXPECT_EQ(best(Lengths{8, 8, 16, 32}, 2, shape).edges, (Lengths{8, 32}));  // 80; {16, 32} is 80 as well
  EXPECT_EQ(best(Lengths{8, 8, 16, 32}, 1, shape).edges, (Lengths{32}));
  EXPECT_EQ(best(Lengths{5}, 9, shape).edges, (Lengths{5}));
  // A longer edge that costs no more takes its place: eight pieces a batch either way.
  EXPECT_EQ(best(Lengths{1000, 1010}, 2, {8, 1024, 32}).edges, (Lengths{1024}));
}

TEST(BucketEdges, AsGoodAsTryingAll) {
  const Random random(3, 0);
  std::uint64_t draws = 0;
  for (int round = 0; round < 60; ++round) {
    const BatchShape shape{1 + round % 5, 100, round % 3 == 0 ? 2 : 50};
    Lengths values, pieces;
    for (int i = 0; i < 11; ++i) values.push_back(static_cast<std::int64_t>(1 + random.below(draws++, 100)));
    for (int i = 0; i < 60; ++i) pieces.push_back(values[random.below(draws++, values.size())]);
    for (std::int64_t buckets = 1; buckets <= 6; ++buckets) {
      const BucketEdges found = best(pieces, buckets, shape);
      ASSERT_LE(static_cast<std::int64_t>(found.edges.size()), buckets);
      ASSERT_NEAR(found.slots, least_by_trying(pieces, buckets, shape), 1e-9 * found.slots);
      ASSERT_NEAR(found.slots, slots_of(pieces, found.edges, shape), 1e-9 * found.slots);
    }
  }
}

TEST(BucketEdges, ManyDistinctLengths) {
  Lengths pieces(131072);
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i] = static_cast<std::int64_t>(i) + 1;
  const BucketEdges found = best(pieces, 4, {1, 131072, 131072});
  ASSERT_EQ(found.edges.size(), 4u);  // of a flat spread, about equal steps
  EXPECT_LE(found.slots, slots_of(pieces, {32768, 65536, 98304, 131072}, {1, 131072, 131072}));
}

Lengths sorted(Lengths lengths) {
  std::ranges::sort(lengths);
  return lengths;
}

config::Data data_at(std::vector<std::string> paths) {
  config::Data data;
  data.train = std::move(paths);
  return data;
}

class LengthsTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    real_files().replace(folder_ / name, text);
    return (folder_ / name).string();
  }
  testing::TempFolder folder_;
  ThreadPool pool_{2};
};

TEST_F(LengthsTest, PingIsReadWhole) {
  config::Data data = data_at({"ping"});
  data.documents = 5000;
  const auto source = training_corpus(data);
  Lengths expected;
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < 5000; ++i) {
    dynamic_cast<const DocumentSource&>(*source).read(i, tokens);
    expected.push_back(static_cast<std::int64_t>(tokens.size()));
  }
  const LengthSurvey survey = survey_lengths(corpus_options(data), {}, pool_);
  EXPECT_TRUE(survey.exact);
  EXPECT_EQ(survey.documents, 5000);
  EXPECT_EQ(survey.lengths, expected);
  EXPECT_TRUE(survey.shuffled);
}

TEST_F(LengthsTest, OfAnEndlessSourceTheFirst) {
  const LengthSurvey survey =
      survey_lengths(corpus_options(data_at({"ping"})), {.of_endless = 300, .progress = {}}, pool_);
  EXPECT_EQ(survey.lengths.size(), 300u);
  EXPECT_EQ(survey.documents, 300);
  const LengthSurvey noise =
      survey_lengths(corpus_options(data_at({"random:100"})), {.of_endless = 3, .progress = {}}, pool_);
  EXPECT_EQ(noise.lengths, Lengths(3, (1 << 16) + 1));
  EXPECT_FALSE(noise.shuffled);
}

TEST_F(LengthsTest, TextFilesAreDocuments) {
  write("a.txt", std::string(1'000'000, 'a'));
  write("b.txt", std::string(99, 'b'));
  const LengthSurvey survey = survey_lengths(corpus_options(data_at({folder_.path().string()})), {}, pool_);
  EXPECT_EQ(survey.lengths, (Lengths{1'000'001, 100}));  // and <end>
}

TEST_F(LengthsTest, LinesOfJsonAreTokenized) {
  std::string lines;
  Lengths expected;
  for (int i = 0; i < 3000; ++i) {
    const int n = i % 37;
    lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(n), 'x') + "\"}\n";
    if (n > 0) expected.push_back(n + 1);
  }
  config::Data data = data_at({write("a.jsonl", lines)});
  EXPECT_THROW(survey_lengths(corpus_options(data), {}, pool_), UserError);  // no tokenizer
  data.tokenizer = "bytes";
  const LengthSurvey survey = survey_lengths(corpus_options(data), {}, pool_);
  EXPECT_EQ(sorted(survey.lengths), sorted(expected));
  EXPECT_EQ(survey.empty, 82);
  EXPECT_EQ(survey.documents, 3000 - 82);

  const LengthSurvey sample = survey_lengths(corpus_options(data), {.sample = 500, .progress = {}}, pool_);
  EXPECT_FALSE(sample.exact);
  EXPECT_EQ(static_cast<std::int64_t>(sample.lengths.size()) + sample.empty, 500);
  EXPECT_NEAR(static_cast<double>(sample.documents), 3000 - 82, 60);
  EXPECT_EQ(survey_lengths(corpus_options(data), {.sample = 4000, .progress = {}}, pool_).lengths, survey.lengths);
}

TEST_F(LengthsTest, SeparatorsCutText) {
  config::Data data = data_at({write("a.txt", "one\n---\nthree\n---\nx")});
  data.separator = "\n---\n";
  EXPECT_EQ(sorted(survey_lengths(corpus_options(data), {}, pool_).lengths), (Lengths{2, 4, 6}));
}

TEST_F(LengthsTest, NothingToMeasureIsAUsersMistake) {
  config::Data data = data_at({write("a.jsonl", "{\"text\": \"\"}\n")});
  data.tokenizer = "bytes";
  EXPECT_THROW(survey_lengths(corpus_options(data), {}, pool_), UserError);
  EXPECT_THROW(survey_lengths(corpus_options(data_at({"nowhere.txt"})), {}, pool_), UserError);
}

TEST_F(LengthsTest, ProgressReachesTheEnd) {
  config::Data data = data_at({"ping"});
  data.documents = 40'000;
  double last = 0, of = 0;
  const auto progress = [&](std::string_view, double done, double all) {
    EXPECT_GE(done, last);
    last = done;
    of = all;
  };
  survey_lengths(corpus_options(data), {.progress = progress}, pool_);
  EXPECT_EQ(of, 40'000);
  EXPECT_GT(last, 20'000);
}

TEST_F(LengthsTest, ASampleIsNearTheTruth) {
  for (std::int64_t seed = 0; seed < 12; ++seed) {
    config::Data data = data_at({"ping"});
    data.documents = 6000;
    data.seed = seed;
    const AnalysisSettings settings{.shape = {8, 1024, 32}, .model = {}, .progress = {}};
    const Analysis truth = analyse(survey_lengths(corpus_options(data), {}, pool_), settings, pool_);
    const LengthSurvey survey = survey_lengths(corpus_options(data), {.sample = 1500, .progress = {}}, pool_);
    const Analysis sample = analyse(survey, settings, pool_);
    EXPECT_EQ(sample.documents, 6000);
    EXPECT_NEAR(sample.lengths.mean, truth.lengths.mean, 0.08 * truth.lengths.mean) << seed;
    EXPECT_NEAR(sample.tokens, truth.tokens, 0.08 * truth.tokens) << seed;
    for (const Packing packing : kPackings) {
      const ModeFigures &a = sample.row_lengths[0].at(packing), &b = truth.row_lengths[0].at(packing);
      EXPECT_NEAR(a.utilisation, b.utilisation, 0.06) << seed;
      EXPECT_NEAR(static_cast<double>(a.rows), static_cast<double>(b.rows), 0.12 * static_cast<double>(b.rows));
    }
  }
}

}  // namespace
}  // namespace redline::data
