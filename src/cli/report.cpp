// redline report.
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "dist/token.h"
#include "io/json.h"
#include "report/figures.h"
#include "report/live_line.h"
#include "report/page.h"
#include "report/page_server.h"
#include "report/run_record.h"
#include "report/run_summary.h"
#include "train/run_folder.h"

namespace redline::cli {
namespace {

struct Read {
  std::vector<report::RunRecord> runs;
  std::vector<std::string> unreadable;
};

// The runs of the folders that were named, each once.
std::vector<Path> runs_named(FileSystem& files, const std::vector<std::string>& given) {
  std::vector<Path> folders;
  for (const std::string& folder : given)
    for (const Path& run : report::runs_of(files, folder))
      if (std::ranges::find(folders, run) == folders.end()) folders.push_back(run);
  return folders;
}

// One that cannot be read costs a warning, as long as another can.
Read read_all(FileSystem& files, const std::vector<Path>& folders, bool show = true) {
  Read read;
  report::LiveLine progress(stderr);
  for (const Path& folder : folders) {
    const auto pass_over = [&](const std::exception& e) {
      if (folders.size() == 1) throw;
      read.unreadable.emplace_back(e.what());
    };
    try {
      read.runs.push_back(report::read_run(files, folder, [&](double share) {
        if (show) progress.show(fmt::format("reading {}, {:.0f}%", folder.string(), 100 * share));
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

std::vector<std::string> files_read(const Path& run) {
  std::vector<std::string> names;
  for (const char* name : {"metrics.jsonl", "events.jsonl", "goodput.jsonl", "samples.jsonl", "data_pipeline.jsonl",
                           "config.toml", "profile.json"})
    names.push_back((run / name).string());
  return names;
}

std::vector<report::RunSummary> summaries_of(const std::vector<report::RunRecord>& runs, double tokens) {
  const std::vector<double> lengths = tokens > 0 ? std::vector<double>{tokens} : std::vector<double>{1e9, 1e10, 1e11};
  std::vector<report::RunSummary> summaries;
  for (const report::RunRecord& run : runs) summaries.push_back(report::summarise(run, lengths));
  return summaries;
}

// The page as it is served. It is made anew when the files of a run have changed, and never more than a tenth of the
// time, however long the run has become.
class FollowedPage {
 public:
  FollowedPage(std::vector<std::string> given, double tokens, bool can_stop)
      : given_(std::move(given)), tokens_(tokens), can_stop_(can_stop) {}

  std::string state() {
    if (steady_seconds() < next_look_) return state_;
    constexpr double kBetweenLooks = 1;
    next_look_ = steady_seconds() + kBetweenLooks;
    std::string now;
    std::error_code none;
    for (const Path& run : runs_named(real_files(), given_)) {
      now += report::is_running(real_files(), run) ? "running\n" : "";  // one that is killed writes nothing
      for (const std::string& file : files_read(run)) {
        const auto bytes = std::filesystem::file_size(file, none);
        const auto written = std::filesystem::last_write_time(file, none);
        now += fmt::format("{}:{}:{}\n", file, bytes, written.time_since_epoch().count());
      }
    }
    return state_ = hex64(hash64(now));
  }
  std::string html() {
    const std::string now = state();
    if (now == made_of_) return html_;
    const double began = steady_seconds();
    const Read read = read_all(real_files(), runs_named(real_files(), given_), false);
    double written = 0;
    for (const report::RunRecord& run : read.runs)
      if (struct stat file = {}; ::stat((run.folder / "metrics.jsonl").c_str(), &file) == 0)
        written = std::max(written, static_cast<double>(file.st_mtim.tv_sec));
    const report::Followed followed{now, written, can_stop_};
    html_ = report::run_page(read.runs, summaries_of(read.runs, tokens_), read.unreadable, &followed);
    made_of_ = now;
    constexpr double kRest = 10;
    next_look_ = std::max(next_look_, steady_seconds() + kRest * (steady_seconds() - began));
    return html_;
  }
  // As `touch RUN/stop` does, where somebody hears it: a run that has ended would keep the file.
  std::string stop() const {
    std::vector<std::string> asked;
    for (const Path& run : runs_named(real_files(), given_)) {
      if (!report::is_running(real_files(), run)) continue;
      real_files().replace(run / train::kStopFile, "");
      asked.push_back(run.string());
    }
    if (asked.empty()) return "Nothing is running here, so that nothing was asked to stop.";
    return fmt::format("Asked {} to stop: {} state, and --resume goes on with it.", fmt::join(asked, ", "),
                       asked.size() == 1 ? "it saves its" : "each saves its");
  }

 private:
  std::vector<std::string> given_;
  double tokens_;
  bool can_stop_;
  std::string state_, made_of_, html_;
  double next_look_ = 0;
};

// Until a signal.
int watch(const std::vector<std::string>& given, double tokens, std::int64_t port, bool can_stop) {
  StopAtOnce stopping("stopped; the page is no longer served");
  FollowedPage page(given, tokens, can_stop);
  page.html();  // a folder without a run is an error now, not in the browser
  const std::string token = can_stop ? dist::new_token() : "";
  report::ServedPage served{[&] { return page.html(); }, [&] { return page.state(); }, {}, token};
  if (can_stop) served.stop = [&] { return page.stop(); };
  report::PageServer server(std::move(served), static_cast<int>(port));
  print(fmt::format("http://127.0.0.1:{}/{}{}\nFollows the run on this machine until Ctrl-C{}.\n", server.port(),
                    can_stop ? "#" : "", token, can_stop ? "; whoever has the whole address can stop the run" : ""));
  flush_output();
  server.serve(std::numeric_limits<double>::infinity());
  return kDone;
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
      "RUN... [--out FILE] [--json] [--tokens N] | RUN... --watch [--port N] [--allow-stop] | --metrics",
      {"redline report runs/a                          writes runs/a/report.html",
       "redline report runs/a --watch                  serves the page on this machine, and it follows the run",
       "redline report runs                            all runs in it beside each other: runs/report.html",
       "redline report runs/a runs/b --out both.html   curves over each other, and what differs",
       "redline report runs/a --json --tokens 100e9    figures, and how long 100 billion tokens take"});
  std::vector<std::string> given;
  std::string out;
  double tokens = 0;
  bool json = false, metrics = false, watches = false, allow_stop = false;
  std::int64_t port = 0;
  arguments.words("RUN", given, "the folder of a run, or a folder of runs; several are compared");
  arguments.text("--out", "FILE", out, "where the page goes (default: report.html in the first folder)");
  arguments.number("--tokens", "N", tokens, 1, 1e18,
                   "how long this many tokens would take at the run's pace (default: 1, 10 and 100 billion)");
  arguments.flag("--json", json,
                 "print the figures as one JSON document; a page is written only where --out asks for it");
  arguments.flag("--watch", watches,
                 "serve the page on this machine, to its own browsers alone; it follows the run until Ctrl-C");
  arguments.integer("--port", "N", port, 0, 65535, "with --watch: the port (default: any that is free)");
  arguments.flag("--allow-stop", allow_stop,
                 "with --watch: a button that stops the run, for who has the whole address");
  arguments.flag("--metrics", metrics,
                 "what each key of metrics.jsonl means and where it is shown, as a Markdown table");
  arguments.exits(kDone, "done; a run of several that cannot be read is a warning");
  arguments.exits(kStopped, "stopped by a signal: nothing was written; so ends --watch");
  if (!arguments.parse(words)) return kDone;
  if (metrics) {
    if (words.size() > 1) fail_user("--metrics prints the table of metrics and cannot be combined with anything else");
    print(report::metrics_as_markdown());
    return kDone;
  }
  if (given.empty()) fail_user("report needs a run: redline report runs/NAME");

  if (!watches && (allow_stop || port > 0))
    fail_user("{} is for a page that is served: it needs --watch", allow_stop ? "--allow-stop" : "--port");
  if (watches && (json || !out.empty()))
    fail_user("--watch serves the page and writes nothing: leave {} out", json ? "--json" : "--out");
  if (watches) return watch(given, tokens, port, allow_stop);

  StopAtOnce stopping("stopped; nothing was written");
  FileSystem& files = real_files();
  const std::vector<Path> folders = runs_named(files, given);
  const Read read = read_all(files, folders);
  const std::vector<report::RunSummary> summaries = summaries_of(read.runs, tokens);

  const Path home = folders[0] == given[0] ? read.runs[0].folder : Path(given[0]);  // a folder of runs is its own
  const Path page = out.empty() ? home / "report.html" : Path(out);
  const bool writes = !json || !out.empty();
  std::string text;
  if (writes) {
    check_output_file("--out", page.string(), kPageFile);
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
