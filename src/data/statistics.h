// Statistics of a corpus from lengths alone: they are surveyed, summed up, and packed in each way. The results come
// from the packer of training, not from a formula, so a run will do the same.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "data/batch.h"
#include "data/open_corpus.h"
#include "data/packer.h"

namespace redline::data {

// `doing` ("reading", "packing") is `done` of `of` along, in whatever unit suits it.
using Progress = std::function<void(std::string_view doing, double done, double of)>;

// The lengths of a corpus's documents: of all, or of a sample drawn by the seeded permutation. No token is kept.
struct LengthSurvey {
  std::string source;  // "ping (generated)"
  // A length for each document, in the order of the source. Never empty; no entry is below 2.
  std::vector<std::int64_t> lengths = {};
  bool shuffled = true;        // training reads their pieces in another order
  std::int64_t documents = 0;  // of the corpus, of which `lengths` may be a sample
  std::int64_t empty = 0;      // documents of no token or one, which training passes over; not in the counts above
  bool exact = true;
};

struct SurveyOptions {
  std::int64_t sample = 0;           // documents; 0, or more than there are: all
  std::int64_t of_endless = 20'000;  // documents of a source that has no end
  Progress progress = {};
  std::int64_t first = 0;  // of text: so many documents from the front, whatever `sample` says; 0: all
};

// The documents of `corpus.train`, none held out. Bad paths and data without a token are a UserError.
LengthSurvey survey_lengths(CorpusOptions corpus, const SurveyOptions& options, ThreadPool& pool);

inline constexpr std::array kPercents = {1, 5, 25, 50, 75, 90, 95, 99};

struct LengthBin {
  std::int64_t from = 0, to = 0;  // both inside
  std::int64_t documents = 0, tokens = 0;
};

struct LengthSummary {
  std::int64_t documents = 0, tokens = 0;  // measured
  double mean = 0, deviation = 0;
  std::array<std::int64_t, kPercents.size()> percentiles{};  // the shortest length that so many percent do not exceed
  std::int64_t shortest = 0, longest = 0;
  std::vector<LengthBin> bins;  // without gaps, at most kMostBins, edges at equal ratios
};
inline constexpr std::size_t kMostBins = 24;
LengthSummary summarise(std::vector<std::int64_t> lengths);

// Token slots that a piece costs in a bucket with that longest length: the slots of a batch, shared by as many pieces
// as it holds. The cost is the edge itself, or a little more where a batch is no multiple of it.
double slots_per_piece(const BatchShape& shape, std::int64_t edge);

struct BucketEdges {
  std::vector<std::int64_t> edges;  // ascending, none above a row; the last holds the longest piece
  double slots = 0;                 // of all pieces
};

// At most `buckets` edges for so many pieces of each length (none longer than a row). Of equals the fewest edges.
BucketEdges best_bucket_edges(const std::map<std::int64_t, std::int64_t>& pieces, std::int64_t buckets,
                              const BatchShape& shape);

// The FLOPs of a model, counted as MFU counts them.
struct ModelCost {
  double per_slot = 1;  // products of one token slot, real or not
  double per_pair = 0;  // attention: one (query, key) pair that the mask keeps
};

struct ModeFigures {
  Packing packing = Packing::pad;
  std::int64_t rows = 0;
  double tokens_per_row = 0;
  double utilisation = 0;  // real tokens over tokens computed
  // Tokens that data.long_documents = "truncate" drops or would drop; of a stream, which joins documents anyway, only
  // where it is set.
  std::int64_t truncated_tokens = 0;
  std::int64_t dropped_tokens = 0;  // with the setting at hand
  std::int64_t cut_documents = 0;
  bool capped = false;  // max_segments closed more than one batch in a hundred
  double real_tokens = 0;
  double cost = 0;                      // of all of it, in the unit of ModelCost
  double wasted = 0;                    // of that, on slots that hold no token
  double speedup_over_pad = 1;          // at the same row length
  double speedup_over_longest_pad = 1;  // over pad at the row length of the settings
};

struct RowLength {
  BatchShape shape;
  std::int64_t long_documents = 0;   // longer than a row
  std::int64_t split_documents = 0;  // that make several pieces: a token beyond a row is only a target
  std::int64_t tokens_beyond = 0;    // of them, after the first row
  std::array<ModeFigures, kPackings.size()> modes = {};
  const ModeFigures& at(Packing packing) const;
};

struct AnalysisSettings {
  BatchShape shape;
  bool truncate = false;
  std::vector<std::int64_t> edges = {};  // of buckets, as data.buckets gives them; empty: the usual ones
  std::int64_t buckets = 0;              // to find the best edges of; 0: as many as usual_edges has
  std::optional<ModelCost> model;        // none: token slots are counted
  Progress progress;
};

struct Analysis {
  LengthSummary lengths;
  double documents = 0, tokens = 0;       // of the corpus; estimates of a sample
  std::vector<RowLength> row_lengths;     // that of the settings, then half of it, a quarter...
  std::vector<std::int64_t> usual_edges;  // that "bucket" was packed with
  BucketEdges best_edges;                 // of least waste at the row length of the settings
  ModeFigures with_best_edges;
};

// A data.max_segments under which rows of documents with that mean length fill: twice the mean of a row.
std::int64_t enough_segments(std::int64_t seq_len, double mean_length);

// Shorter rows keep the tokens of a batch: twice as many rows of half the length.
Analysis analyse(const LengthSurvey& survey, const AnalysisSettings& settings, ThreadPool& pool);

}  // namespace redline::data
