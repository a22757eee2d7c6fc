// Statistics of a corpus as text, JSON and a page, from two tables: the sentences, and the figures of a packing mode.
#include "report/data_stats.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/words.h"
#include "io/json.h"
#include "report/figures.h"
#include "report/page.h"

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

std::string recommendation(const DataStats& stats) {
  const data::Analysis& a = stats.analysis;
  const data::RowLength& row = a.row_lengths[0];
  std::string words = which_to_use(stats, row);
  if (row.at(Packing::pack).capped) {
    words += fmt::format(" But data.max_segments = {} closes batches before they are full: set it to {}.",
                         row.shape.max_segments, data::enough_segments(row.shape.seq_len, a.lengths.mean));
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

// Documents that the figures leave out.
std::string caveat_sentence(const DataStats& stats) {
  if (stats.survey.empty == 0) return {};
  return fmt::format("{} without two tokens left out", grouped(stats.survey.empty, "document"));
}

// The edges as data.buckets takes them, without the row itself: "[96, 160, 288]".
std::string bucket_list(const std::vector<std::int64_t>& edges, std::int64_t row) {
  std::vector<std::int64_t> below;
  for (const std::int64_t edge : edges)
    if (edge < row) below.push_back(edge);
  return fmt::format("[{}]", fmt::join(below, ", "));
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

// The speed-up across row lengths: what shorter rows give over padding the long ones.
std::string shorter_rows_sentence(const DataStats& stats) {
  const std::vector<data::RowLength>& rows = stats.analysis.row_lengths;
  std::vector<std::string> parts;
  for (std::size_t i = 1; i < rows.size(); ++i)
    parts.push_back(fmt::format("rows of {}: {:.2f} times packed, {:.2f} padded", rows[i].shape.seq_len,
                                rows[i].at(Packing::pack).speedup_over_longest_pad,
                                rows[i].at(Packing::pad).speedup_over_longest_pad));
  if (parts.empty()) return {};
  return fmt::format("over rows of {} padded, tokens for the same compute; {}", rows[0].shape.seq_len,
                     fmt::join(parts, "; "));
}

// The sentences, with their names on the page and in the terminal. Empty: there is nothing to say.
struct Sentence {
  std::string_view key, lead;
  std::string (*text)(const DataStats&);
};
constexpr Sentence kSentences[] = {
    {"settings", "shape", settings_sentence},      {"sampling", "sample", sampling_sentence},
    {"caveat", "note", caveat_sentence},           {"counting", "counted", counting_sentence},
    {"shorter", "shorter", shorter_rows_sentence}, {"buckets", "buckets", buckets_sentence},
    {"recommendation", "advice", recommendation}};

const Sentence& sentence_called(std::string_view key) {
  const auto it = std::ranges::find(kSentences, key, &Sentence::key);
  REDLINE_CHECK(it != std::end(kSentences), "there is no sentence '{}'", key);
  return *it;
}

// A figure of a packing mode: its name and value in JSON, and its column in the terminal and on the page. Other
// programs rely on the names.
struct ModeCell {
  std::string_view key;
  io::Json value;
  std::string_view title = {};  // none: no column
  int width = 0;                // in the terminal
  std::string words = {};
};

std::vector<ModeCell> cells_of(const ModeFigures& m, bool has_model) {
  const io::Json none = nullptr;
  const double share = m.wasted / m.cost;
  return {{"rows", m.rows, "rows", 12, grouped(m.rows)},
          {"tokens_per_row", m.tokens_per_row, "tokens/row", 10, plain(m.tokens_per_row, 1)},
          {"utilisation", m.utilisation, "utilisation", 14, percent(m.utilisation)},
          {"flops", has_model ? io::Json(m.cost) : none},
          {"wasted_flops", has_model ? io::Json(m.wasted) : none},
          {"wasted", share, has_model ? "FLOPs wasted" : "wasted", has_model ? 19 : 6,
           has_model ? fmt::format("{} ({})", flops(m.wasted), percent(share)) : percent(share)},
          {"truncated_tokens", m.truncated_tokens, "truncated", 10, count(static_cast<double>(m.truncated_tokens))},
          {"dropped_tokens", m.dropped_tokens},
          {"cut_documents", m.cut_documents},
          {"speedup_over_pad", m.speedup_over_pad, "speed-up", 8, fmt::format("{:.2f}x", m.speedup_over_pad)},
          {"speedup_over_longest_pad", m.speedup_over_longest_pad}};
}

constexpr double kBarColumns = 48;

std::string histogram(const DataStats& stats, bool blocks) {
  const data::LengthSummary& s = stats.analysis.lengths;
  const std::int64_t row = stats.settings.shape.seq_len;
  std::int64_t most = 0;
  std::size_t width = 6;  // "tokens"
  for (const data::LengthBin& bin : s.bins) {
    most = std::max(most, bin.documents);
    width = std::max(width, 2 * fmt::formatted_size("{}", bin.to) + 3);
  }
  std::string out = fmt::format("\n{:>{}}  {:>9}  {:>9}\n", "tokens", width, "documents", "of tokens");
  const auto row_line = [&] { return fmt::format("{:>{}}  -- a row of {} ends here --\n", "", width, row); };
  for (const data::LengthBin& bin : s.bins) {
    if (&bin != s.bins.data() && bin.from > row && (&bin - 1)->from <= row) out += row_line();
    const double of_documents = static_cast<double>(bin.documents) / static_cast<double>(s.documents);
    const double of_tokens = static_cast<double>(bin.tokens) / static_cast<double>(s.tokens);
    const std::string range =
        bin.from == bin.to ? fmt::format("{}", bin.from) : fmt::format("{} - {}", bin.from, bin.to);
    out += fmt::format("{:>{}}  {:>9}  {:>9}  {}\n", range, width, percent(of_documents), percent(of_tokens),
                       bar(kBarColumns * static_cast<double>(bin.documents) / static_cast<double>(most), blocks));
  }
  return out;
}

std::string percentiles(const data::LengthSummary& s) {
  std::string out;
  for (std::size_t p = 0; p < data::kPercents.size(); ++p)
    out += fmt::format("p{} {}, ", data::kPercents[p], s.percentiles[p]);
  return out + fmt::format("max {}, mean {}", s.longest, plain(s.mean, 1));
}

std::string modes_text(const DataStats& stats, const data::RowLength& r) {
  std::string head = fmt::format("\n{:<14}", fmt::format("rows of {}", r.shape.seq_len)), rows;
  for (const ModeFigures& m : r.modes) {
    rows += fmt::format("\n{:<14}", data::name_of(m.packing));
    for (const ModeCell& cell : cells_of(m, !stats.model.empty())) {
      if (cell.title.empty()) continue;
      if (&m == &r.modes[0]) head += fmt::format("  {:>{}}", cell.title, cell.width);
      rows += fmt::format("  {:>{}}", cell.words, cell.width);
    }
  }
  return head + rows + "\n";
}

io::Json mode_json(const ModeFigures& m, bool has_model) {
  io::Json out = io::Json::object();
  for (ModeCell& cell : cells_of(m, has_model)) out[std::string(cell.key)] = std::move(cell.value);
  return out;
}

io::Json modes_json(const data::RowLength& r, bool has_model) {
  io::Json modes = io::Json::object();
  for (const ModeFigures& m : r.modes) modes[std::string(data::name_of(m.packing))] = mode_json(m, has_model);
  return modes;
}

// What the page writes into its tables: the titles of the columns, and the words of each mode.
io::Json page_tables(const DataStats& stats) {
  const auto column = [&](const ModeFigures& m, auto part) {
    io::Json all = io::Json::array();
    for (const ModeCell& cell : cells_of(m, !stats.model.empty()))
      if (!cell.title.empty()) all.push_back(cell.*part);
    return all;
  };
  const ModeFigures& best = stats.analysis.with_best_edges;
  io::Json tables = io::Json::array();
  for (const data::RowLength& r : stats.analysis.row_lengths) {
    io::Json& modes = tables.emplace_back(io::Json::object());
    for (const ModeFigures& m : r.modes) modes[std::string(data::name_of(m.packing))] = column(m, &ModeCell::words);
  }
  return {{"titles", column(best, &ModeCell::title)},
          {"modes", std::move(tables)},
          {"best_edges", column(best, &ModeCell::words)}};
}

io::Json percentiles_json(const data::LengthSummary& s) {
  io::Json out = io::Json::object();
  for (std::size_t p = 0; p < data::kPercents.size(); ++p)
    out["p" + std::to_string(data::kPercents[p])] = s.percentiles[p];
  out["max"] = s.longest;
  return out;
}

}  // namespace

std::string sentence(const DataStats& stats, std::string_view key) { return sentence_called(key).text(stats); }

std::string data_stats_text(const DataStats& stats, bool blocks) {
  const data::Analysis& a = stats.analysis;
  const auto say = [&](std::string_view key) {
    const Sentence& s = sentence_called(key);
    const std::string text = s.text(stats);
    return text.empty() ? text : paragraph(fmt::format("{:<9}", s.lead), text);
  };
  std::string out =
      fmt::format("data     {}: {}, {}{}\n", stats.survey.source, grouped(std::llround(a.documents), "document"),
                  stats.survey.exact ? "" : "about ", grouped(std::llround(a.tokens), "token"));
  out += say("sampling") + say("caveat") + paragraph("length   ", percentiles(a.lengths)) + histogram(stats, blocks);
  out += "\n" + say("settings") + say("counting");
  for (const data::RowLength& r : a.row_lengths) out += modes_text(stats, r);
  const bool any_long = std::ranges::any_of(a.row_lengths, [](const auto& r) { return r.tokens_beyond > 0; });
  if (any_long && !stats.settings.truncate)
    out += "\n" + paragraph("note     ",
                            "truncated: tokens that data.long_documents = \"truncate\" would drop; split, as here, "
                            "drops none. Shorter rows stand in batches of as many tokens.");
  return out + "\n" + say("shorter") + say("buckets") + "\n" + say("recommendation");
}

io::Json data_stats_json(const DataStats& stats) {
  const data::Analysis& a = stats.analysis;
  const bool has_model = !stats.model.empty();
  io::Json out = {{"data", stats.survey.source},
                  {"seq_len", stats.settings.shape.seq_len},
                  {"batch_size", stats.settings.shape.rows},
                  {"max_segments", stats.settings.shape.max_segments},
                  {"long_documents", stats.settings.truncate ? "truncate" : "split"},
                  {"documents", std::llround(a.documents)},
                  {"tokens", std::llround(a.tokens)},
                  {"exact", stats.survey.exact},
                  {"empty_documents", stats.survey.empty}};
  out["sample"] = nullptr;
  if (!stats.survey.exact) out["sample"] = {{"documents", a.lengths.documents}};
  out["mean"] = a.lengths.mean;
  out["standard_deviation"] = a.lengths.deviation;
  out["min"] = a.lengths.shortest;
  out["percentiles"] = percentiles_json(a.lengths);
  io::Json& histogram = out["histogram"] = io::Json::array();
  for (const data::LengthBin& bin : a.lengths.bins)
    histogram.push_back({{"from", bin.from}, {"to", bin.to}, {"documents", bin.documents}, {"tokens", bin.tokens}});
  out["model"] = nullptr;
  if (has_model)
    out["model"] = {{"name", stats.model},
                    {"flops_per_token_slot", stats.settings.model->per_slot},
                    {"flops_per_attention_pair", stats.settings.model->per_pair}};
  out["modes"] = modes_json(a.row_lengths[0], has_model);
  io::Json& rows = out["row_lengths"] = io::Json::array();
  for (const data::RowLength& r : a.row_lengths)
    rows.push_back({{"seq_len", r.shape.seq_len},
                    {"batch_size", r.shape.rows},
                    {"longer_documents", r.long_documents},
                    {"tokens_beyond_a_row", r.tokens_beyond},
                    {"modes", modes_json(r, has_model)}});
  out["buckets"] = {{"usual_edges", a.usual_edges},
                    {"best_edges", a.best_edges.edges},
                    {"with_best_edges", mode_json(a.with_best_edges, has_model)}};
  out["recommendation"] = recommendation(stats);
  return out;
}

std::string data_stats_page(const DataStats& stats) {
  io::Json data = data_stats_json(stats), sentences = io::Json::object();
  for (const Sentence& s : kSentences) sentences[std::string(s.key)] = s.text(stats);
  data["sentences"] = std::move(sentences);
  return page("Document lengths of " + stats.survey.source, {{"page", "lengths"}, {"tables", page_tables(stats)}},
              data);
}

}  // namespace redline::report
