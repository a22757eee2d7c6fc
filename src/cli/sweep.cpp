// redline sweep: the runs of a grid, each in a process of its own, so that one that crashes ends nothing but itself.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/words.h"
#include "cli/config.h"
#include "cli/output.h"
#include "cli/processes.h"
#include "cli/sweep_runs.h"
#include "dist/place.h"
#include "io/json.h"
#include "io/new_folder.h"
#include "report/figures.h"
#include "report/live_line.h"
#include "report/page.h"
#include "report/run_record.h"
#include "report/run_summary.h"
#include "report/sweep_table.h"
#include "train/observer.h"
#include "train/run_folder.h"
#include "train/signals.h"

namespace redline::cli {
namespace {

constexpr const char *kLog = "console.log", *kSettings = "settings.toml", *kPage = "sweep.html", *kCsv = "sweep.csv";

struct SweepOptions {
  std::string device = "auto";
  double margin = 0.05;
  bool all = false, dry_run = false, json = false;
};

// Whether this command trains the run, or goes on with it.
bool is_due(const SweptRun& run, const SweepOptions& options) {
  using enum SweptState;
  if (!run.asked) return false;
  return run.state == waiting || run.state == interrupted || run.state == paused || run.state == failed ||
         (run.state == hopeless && options.all);
}

struct Figures {
  report::SweepTable table;
  std::vector<report::RunRecord> runs;  // those that have begun
  std::vector<report::RunSummary> summaries;
  std::vector<std::string> unreadable;
};

Figures read_figures(FileSystem& files, const Sweep& sweep) {
  Figures figures;
  figures.table.keys = sweep.keys;
  figures.table.titles = short_names(sweep.keys);
  for (const SweptRun& run : sweep.runs) {
    report::SweepRow row;
    row.name = run.name;
    row.folder = sweep.folder_of(run).string();
    row.values = sweep.values_of(run);
    row.group = run.group;
    row.state = name_of(run.state);
    row.why = run.why;
    if (train::holds_run(files, sweep.folder_of(run))) try {
        figures.runs.push_back(report::read_run(files, sweep.folder_of(run)));
        const report::RunSummary& s = figures.summaries.emplace_back(report::summarise(figures.runs.back(), {}));
        row.steps = s.steps;
        row.of = s.of;
        row.tokens = s.tokens;
        row.seconds = s.seconds;
        row.loss = s.last_loss;
        row.eval_loss = s.last_eval;
        for (const double tokens : figures.runs.back().column("eval_tokens"))
          if (!std::isnan(tokens)) row.eval_tokens = tokens;
        row.tokens_per_s = s.figure("mean_tokens_per_s");
        row.trained_on = std::ranges::any_of(figures.runs.back().sessions, &report::SessionStart::trained_on);
      } catch (const std::runtime_error& e) {  // a UserError or a MachineError; the other runs are there
        figures.unreadable.emplace_back(e.what());
      }
    figures.table.rows.push_back(std::move(row));
  }
  return figures;
}

void write_figures(FileSystem& files, const Sweep& sweep, const Figures& figures) {
  files.replace(sweep.folder / kCsv, report::to_csv(figures.table));
  if (!figures.runs.empty())
    files.replace(sweep.folder / kPage, report::run_page(figures.runs, figures.summaries, figures.unreadable));
}

// The last sentence that a run ended with, among what it wrote after `begin`.
std::string last_error(FileSystem& files, const Path& log, std::uint64_t begin) {
  constexpr std::string_view kError = "redline: error: ";
  if (!files.exists(log)) return {};
  const std::string text = files.read(log);
  const std::size_t at = text.rfind(kError);
  if (at == text.npos || at < begin) return {};
  return text.substr(at + kError.size(), text.find('\n', at) - at - kError.size());
}

class Sweeping {
 public:
  Sweeping(FileSystem& files, Sweep& sweep, const SweepOptions& options)
      : files_(files), sweep_(sweep), options_(options), line_(stderr) {
    for (const SweptRun& run : sweep.runs) progress_.emplace_back(sweep.folder_of(run)).look();
    asked_ = std::ranges::count_if(sweep.runs, &SweptRun::asked);
  }

  // Every run goes as far as where all can be judged, and then those that are not hopeless to their end: so what comes
  // first is judged as what comes last is.
  int run_all() {
    std::optional<Figures> figures;
    bool stopped = false;
    const auto go = [&](std::size_t r, Turn turn) {
      stopped = run_one(r, turn);
      show(figures.emplace(read_figures(files_, sweep_)));
    };
    for (std::size_t r = 0; r < sweep_.runs.size() && !stopped; ++r) {
      SweptRun& run = sweep_.runs[r];
      if (!is_due(run, options_)) continue;
      if (waits(r))
        run.state = SweptState::paused;  // it was there already
      else
        go(r, Turn::until_judged);
    }
    for (std::size_t r = 0; r < sweep_.runs.size() && !stopped; ++r)
      if (sweep_.runs[r].asked && sweep_.runs[r].state == SweptState::paused && !end_if_hopeless(r))
        go(r, Turn::to_the_end);
    if (!figures || !is_fresh_) show(figures.emplace(read_figures(files_, sweep_)));
    tell_end(*figures, stopped);
    if (stopped) return kStopped;
    const bool undone = std::ranges::any_of(sweep_.runs, [&](const SweptRun& run) { return is_due(run, options_); });
    return undone ? kFailed : kDone;
  }

 private:
  enum class Turn { until_judged, to_the_end };

  JudgedRun judged(std::size_t i) const {
    return {&sweep_.runs[i].config, sweep_.runs[i].group, &progress_[i].evaluations()};
  }
  // The step at which the run waits for the others; 0: it does not.
  std::int64_t pause_of(std::size_t r) const {
    if (options_.all) return 0;
    std::vector<JudgedRun> all;
    for (std::size_t i = 0; i < sweep_.runs.size(); ++i)
      if (sweep_.runs[i].asked) all.push_back(judged(i));
    return pause_step(judged(r), all, progress_[r].steps());
  }
  // Whether it is where it waits.
  bool waits(std::size_t r) const {
    const std::int64_t pause = pause_of(r);
    const auto& evaluations = progress_[r].evaluations();
    return pause > 0 && !evaluations.empty() && evaluations.rbegin()->first >= pause;
  }
  // Of a run that waits, when all are there.
  bool end_if_hopeless(std::size_t r) {
    SweptRun& run = sweep_.runs[r];
    run.why = judge(r);
    if (run.why.empty()) return false;
    run.state = SweptState::hopeless;
    log::note("{} was stopped as hopeless: {}", run.name, run.why);
    sweep_.save(files_);
    is_fresh_ = false;
    return true;
  }

  // True: the sweep was asked to stop.
  bool run_one(std::size_t r, Turn turn) {
    SweptRun& run = sweep_.runs[r];
    const Path folder = sweep_.folder_of(run), log = folder / kLog,
               settings = std::filesystem::absolute(folder) / kSettings;
    files_.create_folders(folder);
    wait_for_orphan(folder);
    if (signals_.caught() != 0) return true;
    files_.replace(settings, config::dump(train::as_kept(run.config)));
    run.state = SweptState::running;
    run.why.clear();
    sweep_.save(files_);
    const std::uint64_t log_begin = files_.exists(log) ? files_.size(log) : 0;

    ProcessToStart process;
    process.program = own_path();
    process.words = {"train", settings.string(), "--resume", "--out", folder.string(), "--device", options_.device};
    process.name = run.name;
    process.log = log.string();
    std::string why;
    bool passed_on = false;  // a signal that came just before the process did
    bool paused = false;
    const auto look = [&](bool asked_to) {
      progress_[r].look();
      show_line(r, asked_to);
      if (signals_.caught() != 0 && !std::exchange(passed_on, true)) return SIGTERM;
      if (asked_to || options_.all || paused || !why.empty()) return 0;
      why = judge(r);
      paused = why.empty() && turn == Turn::until_judged && waits(r);
      return why.empty() && !paused ? 0 : SIGTERM;
    };
    ProcessesEnd end = run_processes({process}, {}, look);
    end.asked_to = end.asked_to || signals_.caught() != 0;
    progress_[r].look();
    line_.clear();
    note_end(run, end, why, last_error(files_, log, log_begin), paused);
    sweep_.save(files_);
    return end.asked_to;
  }

  // A run whose sweep was killed hears of it, and saves its state before it ends. One that stays is another's: the new
  // process says so.
  void wait_for_orphan(const Path& folder) const {
    constexpr double kPatience = 60;
    for (const double began = steady_seconds(); steady_seconds() - began < kPatience;) {
      if (signals_.caught() != 0 || !report::is_running(files_, folder)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  void note_end(SweptRun& run, const ProcessesEnd& end, const std::string& verdict, const std::string& error,
                bool waits) {
    using enum SweptState;
    if (end.status == kDone) {
      run.state = finished;
    } else if (end.asked_to) {
      run.state = interrupted;
    } else if (end.status == kStopped && !verdict.empty()) {
      run.state = hopeless;
      run.why = verdict;
    } else if (end.status == kStopped && waits) {
      run.state = paused;
    } else if (end.status == kStopped) {
      run.state = interrupted;
      run.why = "a signal that was not the sweep's stopped it";
    } else {
      run.state = error.find(troubleshooting::kNotFinite) != error.npos ? diverged : failed;
      run.why = error.empty() ? end.how : error;
    }
    if (run.why.empty()) return;
    const std::string log = (sweep_.folder_of(run) / kLog).string();
    if (run.state == failed) return log::warn("{} failed: {}; what it said is in {}", run.name, run.why, log);
    log::note("{} {}: {}", run.name, run.state == hopeless ? "was stopped as hopeless" : name_of(run.state), run.why);
  }

  std::string judge(std::size_t r) const {
    std::vector<JudgedRun> others;
    for (std::size_t i = 0; i < sweep_.runs.size(); ++i)
      if (i != r) others.push_back(judged(i));
    return hopeless(judged(r), others, progress_[r].steps(), options_.margin);
  }

  void show_line(std::size_t r, bool asked_to) {
    const report::RunProgress& p = progress_[r];
    std::string text = fmt::format("[{}/{}] {}", r + 1, asked_, sweep_.runs[r].name);
    if (p.step() == 0) {
      text += "  starting";
    } else {
      text += fmt::format("  step {}", p.step());
      if (p.steps() > 0) text += fmt::format("/{}", p.steps());
      text += "  loss " + report::plain(p.loss(), 4);
      if (!p.evaluations().empty()) text += "  evaluated " + report::plain(p.evaluations().rbegin()->second, 4);
      const double whole = p.seconds_a_step() * static_cast<double>(p.steps());
      const double rest = p.seconds_a_step() * static_cast<double>(p.steps() - p.step());
      if (p.steps() > 0 && std::isfinite(rest)) {
        const double each = std::isnan(mean_seconds_) ? whole : mean_seconds_;
        text += fmt::format("  eta {}, sweep {}", report::duration(rest),
                            report::duration(rest + each * static_cast<double>(others_due(r))));
      }
    }
    if (asked_to) text += "  stopping; again: at once";
    line_.show(text);
  }

  std::ptrdiff_t others_due(std::size_t r) const {
    const auto due = [&](const SweptRun& run) { return &run != &sweep_.runs[r] && is_due(run, options_); };
    return std::ranges::count_if(sweep_.runs, due);
  }

  // Writes the figures so far, for whoever looks while the sweep goes on.
  void show(const Figures& figures) {
    write_figures(files_, sweep_, figures);
    is_fresh_ = true;
    double sum = 0, n = 0;
    for (const report::SweepRow& row : figures.table.rows)
      if (row.finished()) sum += row.seconds, n += 1;
    mean_seconds_ = sum / n;
    if (options_.json) return;
    print((shown_ ? "\n" : "") + report::to_text(figures.table));
    flush_output();
    shown_ = true;
  }

  void tell_end(const Figures& figures, bool stopped) {
    const std::string page = (sweep_.folder / kPage).string(), csv = (sweep_.folder / kCsv).string();
    for (const std::string& sentence : figures.unreadable) log::warn("{}", sentence);
    for (const std::string& sentence : report::unlike_in_words(figures.table)) log::warn("{}", sentence);
    if (options_.json) {
      io::Json json = {{"folder", sweep_.folder.string()}};
      json.update(report::to_json(figures.table));
      json.update({{"report", page}, {"csv", csv}});
      return print_json(json);
    }
    if (const std::string groups = report::groups_to_text(figures.table); !groups.empty()) print("\n" + groups);
    if (const auto best = figures.table.best()) {
      const report::SweepRow& row = figures.table.rows[*best];
      const std::string over =
          std::isnan(row.eval_tokens) ? "" : " over " + report::grouped(std::llround(row.eval_tokens), "token");
      print(fmt::format("\n* best: {}, {} {}{}\n", row.folder, train::evaluated_loss(row.trained_on),
                        report::plain(row.eval_loss, 4), over));
    }
    print(fmt::format("table: {}\nreport: {}\n", csv, page));
    const auto due = std::ranges::count_if(sweep_.runs, [&](const SweptRun& run) { return is_due(run, options_); });
    if (due > 0)
      print(fmt::format("{}{} of {} left; the same command goes on\n", stopped ? "stopped: " : "", due,
                        counted(asked_, "run")));
  }

  FileSystem& files_;
  Sweep& sweep_;
  const SweepOptions& options_;
  const train::StopSignals signals_;  // while no run is under way; processes.h hears them else
  report::LiveLine line_;
  std::vector<report::RunProgress> progress_;  // of each run
  std::ptrdiff_t asked_ = 0;                   // runs of the grid
  double mean_seconds_ = std::nan("");         // of finished runs
  bool shown_ = false;
  bool is_fresh_ = false;  // what was shown last is how things are
};

int list_runs(FileSystem& files, const Sweep& sweep, const SweepOptions& options) {
  const Figures figures = read_figures(files, sweep);
  if (options.json) {
    io::Json json = {{"folder", sweep.folder.string()}};
    json.update(report::to_json(figures.table));
    print_json(json);
    return kDone;
  }
  std::size_t width = 0;
  for (const SweptRun& run : sweep.runs) width = std::max(width, run.name.size());
  for (const SweptRun& run : sweep.runs) print(fmt::format("{:<{}}  {}\n", run.name, width, name_of(run.state)));
  const auto due = std::ranges::count_if(sweep.runs, [&](const SweptRun& run) { return is_due(run, options); });
  print(fmt::format("dry run: {} in {}, {} to do; nothing was written\n", counted(sweep.runs.size(), "run"),
                    sweep.folder.string(), due));
  return kDone;
}

// Keeps a second sweep out of the folder while it lives.
io::FileLock locked(FileSystem& files, const Path& folder) {
  files.create_folders(folder);
  return io::FileLock(folder / ".lock", io::FileLock::IfBusy::leave);
}

void check_lock(const io::FileLock& lock, const Path& folder) {
  if (lock.held()) return;
  if (lock.busy())
    fail_user("another sweep is under way in {}; wait for its end, or give another folder with --out", folder.string());
  log::warn("{} cannot be locked ({}): nothing keeps a second sweep out of it", folder.string(),
            std::strerror(lock.why_not()));
}

}  // namespace

int run_sweep(const Words& words) {
  Arguments arguments("sweep", "train every combination of some settings, one after another, and compare them",
                      "[CONFIG] --grid KEY=VALUE,VALUE... [--grid ...] [key=value ...] [--out FOLDER]",
                      {"redline sweep quick --grid optim.lr=1e-3,2e-3,4e-3",
                       "redline sweep my.toml --grid optim.lr=1e-3,2e-3 --grid train.seed=1,2 --out runs/lr   4 runs, "
                       "seeds as mean ± sd",
                       "redline sweep my.toml --grid optim.lr=1e-3,2e-3 --grid train.seed=1,2 --out runs/lr   again: "
                       "goes on, or is done",
                       "redline sweep my.toml --grid optim.schedule=cosine,wsd train.max_steps=500 --all --dry-run"});
  ConfigWords config;
  SweepOptions options;
  std::vector<std::string> grid_words;
  std::string out;
  config.declare(arguments);
  arguments.repeated("--grid", "KEY=VALUE,VALUE...", grid_words,
                     "a key and the values to try; several are combined, and the last one's values change fastest");
  arguments.text("--out", "FOLDER", out,
                 "where the runs' folders, sweep.csv and sweep.html go (default: runs/NAME-sweep); a sweep that is "
                 "there goes on");
  arguments.flag("--all", options.all, "stop no run as hopeless; those that were stopped go on");
  arguments.number("--margin", "SHARE", options.margin, 0, 1e6,
                   "without --all, a run is hopeless and stopped where, from a quarter of its steps behind the warm-up "
                   "on, its held-out losses are above the median of at least three other settings at the same steps "
                   "by more than this share of it and their scatter, and do not catch up (default: 0.05); seeds of one "
                   "setting count as their best");
  arguments.device(options.device);
  arguments.flag("--json", options.json, "print the table as one JSON document at the end, and nothing else");
  arguments.flag("--dry-run", options.dry_run, "check every combination and list the runs; writes nothing");
  arguments.exits(kDone, "every run is finished, diverged or was stopped as hopeless");
  arguments.exits(kFailed, "a run failed, or the machine did");
  arguments.exits(kStopped, "stopped by a signal: the same command goes on");
  if (!arguments.parse(words)) return kDone;
  if (grid_words.empty())
    fail_user("redline sweep needs something to try: --grid optim.lr=1e-3,2e-3; for one run there is redline train");
  if (const dist::Place place = dist::place_of_process(); !place.alone())
    fail_user("redline sweep was started as rank {} of {} by {}; its runs are on one rank each: start it alone",
              place.rank, place.ranks, place.launcher);

  FileSystem& files = real_files();
  const config::Sources sources = sources_of(config);
  const Path folder = out.empty() ? Path(fmt::format("runs/{}-sweep", name_of(sources))) : Path(out);
  const std::vector<GridKey> grid = read_grid(grid_words, sources.overrides);
  if (options.dry_run) return list_runs(files, read_sweep(files, folder, sources, grid), options);
  read_sweep(files, folder, sources, grid);  // an error comes before a folder is made
  const io::FileLock lock = locked(files, folder);
  check_lock(lock, folder);
  Sweep sweep = read_sweep(files, folder, sources, grid);  // as the last sweep there has left it
  sweep.save(files);
  return Sweeping(files, sweep, options).run_all();
}

}  // namespace redline::cli
