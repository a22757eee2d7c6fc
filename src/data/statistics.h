// Statistics of a corpus from lengths alone: their distribution, and the result of each way of packing. They come from
// the packer of training, not from a formula, so a run will do the same.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "data/bucket_edges.h"
#include "data/length_survey.h"
#include "data/packer.h"

namespace redline::data {

inline constexpr std::array kPackings = {Packing::pad, Packing::bucket, Packing::pack, Packing::stream};
std::string_view name_of(Packing packing);

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

// The result of packing pieces of given lengths once.
struct Packed {
  std::int64_t batches = 0, rows = 0, pieces = 0;
  std::int64_t real_tokens = 0;
  std::int64_t cut_pieces = 0;      // the only ones of their documents that a stream cut all the same
  std::int64_t capped_batches = 0;  // closed by max_segments with room for more tokens
  double score_pairs = 0;           // (query, key) pairs that the mask keeps
  // Of the batches before the documents ran out, which stand for a longer corpus. 0: there was none.
  std::int64_t steady_tokens = 0, steady_slots = 0;
};

// Rows have settings.shape.seq_len tokens. The last batches, which are not full, count with the rows they use: in
// training the next epoch fills the rest. `tick` hears of pieces now and then as they are offered.
Packed run_packer(const PackerSettings& settings, std::span<const PieceLength> pieces,
                  const std::function<void(std::int64_t pieces)>& tick = {});

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
  double cost = 0;    // of all of it, in the unit of ModelCost
  double wasted = 0;  // of that, on slots that hold no token
  double speedup_over_pad = 1;
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

// Shorter rows keep the tokens of a batch: twice as many rows of half the length.
Analysis analyse(const LengthSurvey& survey, const AnalysisSettings& settings, ThreadPool& pool);

}  // namespace redline::data
