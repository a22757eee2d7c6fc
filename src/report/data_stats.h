// The statistics of a corpus as text, as a page and as JSON. Each has one recommendation in words.
#pragma once

#include <string>

#include "data/statistics.h"
#include "io/json_fwd.h"

namespace redline::report {

// The statistics and the settings they were made with. The data must outlive it.
struct DataStats {
  const data::LengthSurvey& survey;
  const data::AnalysisSettings& settings;
  const data::Analysis& analysis;
  std::string model;  // FLOPs are counted for it; empty: token slots are counted
};

// The recommendation: what to set, why, and what it gains.
std::string recommendation(const DataStats& stats);

// The sentences of the page, one line each. Settings: "rows of 1024 tokens, batches of 8 rows, ...". Then how speed-ups
// are counted, and how exact a sample's figures are (empty where all documents were measured).
std::string settings_sentence(const DataStats& stats);
std::string counting_sentence(const DataStats& stats);
std::string sampling_sentence(const DataStats& stats);
// Documents that the figures leave out or treat specially: pieces of long files, empty documents. Empty: none.
std::string caveat_sentence(const DataStats& stats);
// The bucket edges that waste least, and how to set them.
std::string buckets_sentence(const DataStats& stats);
// The edges as data.buckets takes them, without the row itself: "[96, 160, 288]".
std::string bucket_list(const std::vector<std::int64_t>& edges, std::int64_t row);

// `blocks`: bars of block characters, for terminals that have them; else of '#'.
std::string data_stats_text(const DataStats& stats, bool blocks);
std::string data_stats_page(const DataStats& stats);
io::Json data_stats_json(const DataStats& stats);

}  // namespace redline::report
