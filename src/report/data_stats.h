// The statistics of a corpus as text, as a page and as JSON, with one recommendation in words.
#pragma once

#include <string>
#include <string_view>

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

// A sentence about them: "settings" (rows, batches), "counting" (of speed-ups), "sampling" (how exact the figures of a
// sample are), "caveat" (documents that are left out), "buckets" (the edges that waste least) or "recommendation" (what
// to set, why, and what it gains). Empty: there is nothing to say.
std::string sentence(const DataStats& stats, std::string_view key);

// `blocks`: bars of block characters, for terminals that have them; else of '#'.
std::string data_stats_text(const DataStats& stats, bool blocks);
std::string data_stats_page(const DataStats& stats);
io::Json data_stats_json(const DataStats& stats);

}  // namespace redline::report
