// redline report.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "io/json.h"
#include "report/figures.h"
#include "report/live_line.h"
#include "report/page.h"
#include "report/run_record.h"
#include "report/run_summary.h"

namespace redline::cli {
namespace {

struct Read {
  std::vector<report::RunRecord> runs;
  std::vector<std::string> unreadable;
};

// One that cannot be read costs a warning, as long as another can.
Read read_all(FileSystem& files, const std::vector<Path>& folders) {
  Read read;
  report::LiveLine progress(stderr);
  for (const Path& folder : folders) {
    const auto pass_over = [&](const std::exception& e) {
      if (folders.size() == 1) throw;
      read.unreadable.emplace_back(e.what());
    };
    try {
      read.runs.push_back(report::read_run(files, folder, [&](double share) {
        progress.show(fmt::format("reading {}, {:.0f}%", folder.string(), 100 * share));
      }));
    } catch (const UserError& e) {
      pass_over(e);
    } catch (const MachineError& e) {  // a file that may not be read, a disk that fails
      pass_over(e);
    }
  }
  progress.clear();
  if (read.runs.empty()) fail_user("none of the {} runs can be read: {}", folders.size(), read.unreadable.front());
  std::map<std::string, int> names;
  for (const report::RunRecord& run : read.runs) ++names[run.name];
  for (report::RunRecord& run : read.runs)
    if (names[run.name] > 1) run.name = run.folder.string();
  return read;
}

std::vector<std::string> files_read(const std::vector<report::RunRecord>& runs) {
  std::vector<std::string> names;
  for (const report::RunRecord& run : runs)
    for (const char* name : {"metrics.jsonl", "events.jsonl", "goodput.jsonl", "samples.jsonl", "data_pipeline.jsonl",
                             "config.toml", "profile.json"})
      names.push_back((run.folder / name).string());
  return names;
}

std::string summary_line(const report::RunRecord& run, const report::RunSummary& s) {
  if (run.rows() == 0) return fmt::format("{}: {}, without metrics\n", run.name, s.state);
  std::string line = fmt::format("{}: {} after {}, {} in {}", run.name, s.state, report::grouped(s.steps, "step"),
                                 report::count(s.tokens, "token"), report::duration(s.seconds));
  const auto add = [&](double value, std::string_view words, const std::string& written) {
    if (!std::isnan(value)) line += fmt::format("; {}{}", words, written);
  };
  add(s.last_loss, "loss ", report::plain(s.last_loss, 4));
  add(s.last_eval, !run.sessions.empty() && run.sessions.back().trained_on ? "on training data " : "held out ",
      report::plain(s.last_eval, 4));
  const double rate = s.figure("mean_tokens_per_s"), mfu = s.figure("mean_mfu"), gib = s.figure("memory_gib");
  add(rate, "", report::token_rate(rate));
  add(mfu, "mfu ", fmt::format("{} (peak {})", report::percent(mfu), report::percent(s.figure("peak_mfu"))));
  const double card = !run.sessions.empty() && run.sessions.back().card ? run.sessions.back().device_memory : 0;
  add(gib, "",
      report::bytes(gib * 0x1p30) +
          (card > 0 ? fmt::format(" ({} of the card)", report::percent(gib * 0x1p30 / card)) : ""));
  const train::Account account = run.goodput.account();
  if (account.wall() > 0) line += fmt::format("; {} in steps", report::percent(account.share(train::Part::steps)));
  if (account.joules) line += "; " + report::energy(*account.joules);
  return line + "\n";
}

}  // namespace

int run_report(const Words& words) {
  Arguments arguments(
      "report", "a run, or several beside each other, as one HTML file",
      "RUN... [--out FILE] [--json] [--tokens N] | --metrics",
      {"redline report runs/a                          writes runs/a/report.html",
       "redline report runs                            all runs in it beside each other: runs/report.html",
       "redline report runs/a runs/b --out both.html   curves over each other, and what differs",
       "redline report runs/a --json --tokens 100e9    figures, and how long 100 billion tokens take"});
  std::vector<std::string> given;
  std::string out;
  double tokens = 0;
  bool json = false, metrics = false;
  arguments.words("RUN", given, "the folder of a run, or a folder of runs; several are compared");
  arguments.text("--out", "FILE", out, "where the page goes (default: report.html in the first folder)");
  arguments.number("--tokens", "N", tokens, 1, 1e18,
                   "how long this many tokens would take at the run's pace (default: 1, 10 and 100 billion)");
  arguments.flag("--json", json,
                 "print the figures as one JSON document; a page is written only where --out asks for it");
  arguments.flag("--metrics", metrics,
                 "what each key of metrics.jsonl means and where it is shown, as a Markdown table");
  arguments.exits(kDone, "done; a run of several that cannot be read is a warning");
  arguments.exits(kStopped, "stopped by a signal: nothing was written");
  if (!arguments.parse(words)) return kDone;
  if (metrics) {
    if (words.size() > 1) fail_user("--metrics prints the table of metrics and cannot be combined with anything else");
    print(report::metrics_as_markdown());
    return kDone;
  }
  if (given.empty()) fail_user("report needs a run: redline report runs/NAME");

  StopAtOnce stopping("stopped; nothing was written");
  FileSystem& files = real_files();
  std::vector<Path> folders;
  for (const std::string& folder : given)
    for (const Path& run : report::runs_of(files, folder))
      if (std::ranges::find(folders, run) == folders.end()) folders.push_back(run);
  const Read read = read_all(files, folders);
  const std::vector<double> lengths = tokens > 0 ? std::vector<double>{tokens} : std::vector<double>{1e9, 1e10, 1e11};
  std::vector<report::RunSummary> summaries;
  for (const report::RunRecord& run : read.runs) summaries.push_back(report::summarise(run, lengths));

  const Path home = folders[0] == given[0] ? read.runs[0].folder : Path(given[0]);  // a folder of runs is its own
  const Path page = out.empty() ? home / "report.html" : Path(out);
  const bool writes = !json || !out.empty();
  std::string text;
  if (writes) {
    check_output_file("--out", page.string(), files_read(read.runs));
    text = report::run_page(read.runs, summaries, read.unreadable);
  }
  stopping.hold();
  if (writes) files.replace(page, text);
  for (const std::string& sentence : read.unreadable) log::warn("{}", sentence);
  for (const report::RunRecord& run : read.runs)
    for (const std::string& sentence : run.problems) log::warn("{}: {}", run.folder.string(), sentence);
  if (json) {
    nlohmann::ordered_json runs = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < summaries.size(); ++i) runs.push_back(report::to_json(read.runs[i], summaries[i]));
    print_json({{"runs", std::move(runs)}, {"unreadable", read.unreadable}});
    return kDone;
  }
  for (std::size_t i = 0; i < summaries.size(); ++i) print(summary_line(read.runs[i], summaries[i]));
  print(fmt::format("report: {}\n", page.string()));
  return kDone;
}

}  // namespace redline::cli
