// Statistics of a corpus as people and programs read them: a terminal, a page, JSON. One recommendation in words in
// each.
#pragma once

#include <string>

#include "data/statistics.h"
#include "io/json.h"

namespace redline::report {

// What was measured and what came out. The data must outlive it.
struct DataStats {
  const data::LengthSurvey& survey;
  const data::AnalysisSettings& settings;
  const data::Analysis& analysis;
  std::string model;  // whose FLOPs are counted; empty: token slots are
};

// What to set, why, and what it brings.
std::string recommendation(const DataStats& stats);

// "rows of 1024 tokens, batches of 8 rows, ..."; how speed-ups are counted; what a sample's figures are worth (empty
// where all documents were measured). One line each.
std::string settings_sentence(const DataStats& stats);
std::string counting_sentence(const DataStats& stats);
std::string sampling_sentence(const DataStats& stats);
// What the figures leave out or treat in their own way: pieces of long files, empty documents. Empty: nothing.
std::string caveat_sentence(const DataStats& stats);
// Which bucket edges waste least, and how to set them.
std::string buckets_sentence(const DataStats& stats);
// "[96, 160, 288]": what data.buckets takes, without the row itself.
std::string bucket_list(const std::vector<std::int64_t>& edges, std::int64_t row);

// `blocks`: bars of block characters, for terminals that have them; else of '#'.
std::string data_stats_text(const DataStats& stats, bool blocks);
std::string data_stats_page(const DataStats& stats);
io::Json data_stats_json(const DataStats& stats);

}  // namespace redline::report
