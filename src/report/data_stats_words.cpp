// The sentences that the terminal, the page and JSON share.
#include <fmt/ranges.h>

#include <bit>
#include <cmath>

#include "base/words.h"
#include "report/data_stats.h"
#include "report/figures.h"

namespace redline::report {
namespace {

using data::ModeFigures;
using data::Packing;

constexpr double kLittlePadding = 0.97;  // utilisation of pad from which padding is no matter
constexpr double kWorthCutting = 0.02;   // what a stream must gain over packing for its cuts
constexpr double kManyLong = 0.01;       // share of tokens beyond a row that is worth a word

std::string which_to_use(const DataStats& stats, const data::RowLength& row) {
  const ModeFigures &pad = row.at(Packing::pad), &pack = row.at(Packing::pack), &stream = row.at(Packing::stream);
  if (pad.utilisation >= kLittlePadding)
    return fmt::format(
        "Padding costs little here, {} of the tokens that pad computes are real; keep data.packing = \"pack\", the "
        "default, which fills {} and cuts no document that fits a row.",
        percent(pad.utilisation), percent(pack.utilisation));
  const std::string by = stats.model.empty() ? "by token counts" : "by the FLOPs of " + stats.model;
  const auto gain = [&](const ModeFigures& m) {
    return fmt::format(
        "{} of the computed tokens are real, against {} with pad, which takes {:.2f} times the "
        "compute for the same documents ({})",
        percent(m.utilisation), percent(pad.utilisation), m.speedup_over_pad, by);
  };
  const double margin = stats.survey.exact ? kWorthCutting : 2 * kWorthCutting;  // a sample must say it clearly
  if (!pack.capped && stream.utilisation - pack.utilisation > margin)
    return fmt::format(
        "Train with data.packing = \"stream\": {}. \"pack\" fills {}; the price is that {} of {} "
        "are cut where a batch ends.",
        gain(stream), percent(pack.utilisation), grouped(stream.cut_documents),
        grouped(std::llround(stats.analysis.documents), "document"));
  return fmt::format("Train with data.packing = \"pack\", the default: {}; no document that fits a row is cut.",
                     gain(pack));
}

}  // namespace

std::string recommendation(const DataStats& stats) {
  const data::Analysis& a = stats.analysis;
  const data::RowLength& row = a.row_lengths[0];
  std::string words = which_to_use(stats, row);
  if (row.at(Packing::pack).capped) {
    const double a_row = static_cast<double>(row.shape.seq_len) / a.lengths.mean;
    words += fmt::format(" But data.max_segments = {} closes batches before they are full: set it to {}.",
                         row.shape.max_segments, std::bit_ceil(static_cast<std::uint64_t>(std::ceil(2 * a_row))));
  }
  const double beyond = static_cast<double>(row.tokens_beyond);
  if (beyond < kManyLong * a.tokens) return words;
  const std::string longer = fmt::format(" {} of the documents are longer than a row",
                                         percent(static_cast<double>(row.long_documents) / a.documents));
  if (stats.settings.truncate)
    return words +
           fmt::format("{}, and truncating them drops {} of the tokens: data.long_documents = \"split\" keeps them.",
                       longer, percent(beyond / a.tokens));
  return words + fmt::format(
                     "{}: data.long_documents = \"split\", the default, keeps their rest as further documents; "
                     "\"truncate\" would drop {} of the tokens.",
                     longer, percent(beyond / a.tokens));
}

std::string settings_sentence(const DataStats& stats) {
  const data::BatchShape& shape = stats.settings.shape;
  return fmt::format("rows of {}, batches of {}, at most {} a row in the mean; longer documents are {}",
                     counted(shape.seq_len, "token"), counted(shape.rows, "row"),
                     counted(shape.max_segments, "document"), stats.settings.truncate ? "truncated" : "split");
}

std::string counting_sentence(const DataStats& stats) {
  if (stats.model.empty())
    return "speed-up over pad and waste by token counts (a model, --preset NAME or --model CONFIG, counts its FLOPs)";
  return fmt::format(
      "speed-up over pad and waste by the FLOPs of {}: {} for each token slot, padding included, and attention for the "
      "pairs that the mask keeps",
      stats.model, flops(stats.settings.model->per_slot));
}

std::string sampling_sentence(const DataStats& stats) {
  if (stats.survey.exact) return {};
  return fmt::format("{} of {}, drawn by the seeded permutation; what is said of all of them is an estimate",
                     grouped(stats.analysis.lengths.documents), grouped(stats.survey.documents, "document"));
}

std::string caveat_sentence(const DataStats& stats) {
  if (stats.survey.empty == 0) return {};
  return fmt::format("{} without two tokens left out", grouped(stats.survey.empty, "document"));
}

std::string buckets_sentence(const DataStats& stats) {
  const data::Analysis& a = stats.analysis;
  const std::int64_t row = stats.settings.shape.seq_len;
  const auto& best = a.best_edges.edges;
  if (best.front() == row) return "every document takes a whole row, so buckets gain nothing";
  const std::string edges = bucket_list(best, row);
  return fmt::format(
      "edges {} and the row waste least of {}: {} utilisation, against {} with {}, {}; "
      "data.buckets={} sets them",
      edges, counted(best.size() + (best.back() < row ? 1 : 0), "bucket"), percent(a.with_best_edges.utilisation),
      percent(a.row_lengths[0].at(Packing::bucket).utilisation), bucket_list(a.usual_edges, row),
      stats.settings.edges.empty() ? "the usual ones" : "those given", edges);
}

std::string bucket_list(const std::vector<std::int64_t>& edges, std::int64_t row) {
  std::vector<std::int64_t> below;
  for (const std::int64_t edge : edges)
    if (edge < row) below.push_back(edge);
  return fmt::format("[{}]", fmt::join(below, ", "));
}

}  // namespace redline::report
