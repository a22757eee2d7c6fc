// Statistics as one JSON document, and as the page that draws it. Other programs rely on its names: docs/data.md
// lists them.
#include <cmath>

#include "io/json.h"
#include "report/data_stats.h"
#include "report/page.h"

namespace redline::report {
namespace {

io::Json mode_json(const data::ModeFigures& m, bool has_model) {
  const io::Json none = nullptr;
  return {{"rows", m.rows},
          {"tokens_per_row", m.tokens_per_row},
          {"utilisation", m.utilisation},
          {"truncated_tokens", m.truncated_tokens},
          {"dropped_tokens", m.dropped_tokens},
          {"cut_documents", m.cut_documents},
          {"flops", has_model ? io::Json(m.cost) : none},
          {"wasted_flops", has_model ? io::Json(m.wasted) : none},
          {"wasted", m.wasted / m.cost},
          {"speedup_over_pad", m.speedup_over_pad}};
}

io::Json modes_json(const data::RowLength& r, bool has_model) {
  io::Json modes = io::Json::object();
  for (const data::ModeFigures& m : r.modes) modes[std::string(data::name_of(m.packing))] = mode_json(m, has_model);
  return modes;
}

io::Json percentiles_json(const data::LengthSummary& s) {
  io::Json out = io::Json::object();
  for (std::size_t p = 0; p < data::kPercents.size(); ++p)
    out["p" + std::to_string(data::kPercents[p])] = s.percentiles[p];
  out["max"] = s.longest;
  return out;
}

}  // namespace

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
  io::Json data = data_stats_json(stats);
  data["sentences"] = {{"settings", settings_sentence(stats)},
                       {"sampling", sampling_sentence(stats)},
                       {"caveat", caveat_sentence(stats)},
                       {"counting", counting_sentence(stats)},
                       {"buckets", buckets_sentence(stats)}};
  return page("Document lengths of " + stats.survey.source, {{"page", "lengths"}}, data);
}

}  // namespace redline::report
