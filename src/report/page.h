// Makes an HTML page of one file that fetches nothing: page.html with the data that its script draws.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace redline::report {

struct RunNorms;
struct RunRecord;
struct RunSummary;

// drawing["page"] ("runs", "lengths", "doctor" or "ladder") chooses the page that the script makes of `drawing` and
// `data`. Where scripts may not run, the reader sees the data as tables.
std::string page(std::string_view title, io::Json drawing, const io::Json& data);

// A page that is served (report/page_server.h) asks whether its state is still this one, and loads itself anew where it
// is not. It fetches that, and nothing else.
struct Followed {
  std::string state;
  double written = 0;     // seconds since 1970: the last row of metrics
  bool can_stop = false;  // with a button, for whoever knows the token
};

// The page of one or several runs: curves, speed, memory, events, settings. `unreadable` has a sentence for each run
// that was asked for and could not be read.
std::string run_page(const std::vector<RunRecord>& runs, const std::vector<RunSummary>& summaries,
                     const std::vector<std::string>& unreadable, const Followed* followed = nullptr);

// The norms of a run for its page, at these looks: kinds of tensors, and those tensors whose updates are largest
// relative to their weights at the last look.
io::Json norms_json(const RunNorms& norms, const std::vector<std::size_t>& looks);

}  // namespace redline::report
