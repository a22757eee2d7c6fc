// The table of ladder and tune in all its forms: with bars for a terminal, as Markdown, as JSON, and as the page that
// draws the JSON.
#pragma once

#include <string>
#include <vector>

#include "io/json_fwd.h"
#include "perf/ladder.h"

namespace redline::cli {

struct MeasuredTable {
  std::string title;            // "ladder of ping-95m"
  std::string device;           // its name
  std::string about;            // the batch, the data, the peak: a line
  std::string first = "first";  // the row that the last factor refers to
  std::vector<perf::LadderRow> rows;
  perf::KeyValues result;  // keys of the best
  bool stopped = false;
};

std::string to_text(const MeasuredTable& table);
std::string to_markdown(const MeasuredTable& table);
io::Json to_json(const MeasuredTable& table);
std::string to_page(const MeasuredTable& table);

}  // namespace redline::cli
