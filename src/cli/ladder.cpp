// redline ladder and redline tune: two searches that measure, and the table of both in all its forms (with bars for a
// terminal, as Markdown, as JSON, and as the page that draws the JSON).
#include "perf/ladder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/words.h"
#include "cli/commands.h"
#include "cli/measuring.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "config/keys.h"
#include "config/load.h"
#include "io/json.h"
#include "perf/tune.h"
#include "report/figures.h"
#include "report/page.h"

namespace redline::cli {
namespace {

using perf::Trial;
using perf::TrialState;

struct MeasuredTable {
  std::string title;            // "ladder of ping-95m"
  std::string device;           // its name
  std::string about;            // the batch, the data, the peak: a line
  std::string first = "first";  // the row that the last factor refers to
  std::vector<perf::Trial> rows;
  perf::KeyValues result;  // keys of the best
  bool stopped = false;
};

constexpr int kBar = 16;  // characters of the longest bar

double most_tokens(const MeasuredTable& table) {
  double most = 0;
  for (const Trial& row : table.rows)
    if (row.state == TrialState::measured) most = std::max(most, row.measured.tokens_per_s);
  return most;
}

std::string factor(double f) { return f > 0 ? fmt::format("x{:.2f}", f) : "-"; }

struct Cells {
  std::string step, rate, mfu, memory, energy, before, first;
};
Cells cells_of(const Trial& row) {
  const perf::Measured& m = row.measured;
  return {report::duration(m.step_ms / 1e3),
          report::token_rate(m.tokens_per_s),
          report::percent(m.mfu),
          report::bytes(static_cast<double>(m.memory)),
          m.joules_per_token ? report::joules(*m.joules_per_token) : "-",
          factor(row.over_before),
          factor(row.over_first)};
}

// Why it was not measured, or what a fused kernel saves.
std::string why_not(const Trial& row) {
  if (row.state == TrialState::not_separable)
    return fmt::format("not separable: saves {} a step by the plan ({})", report::bytes(row.saved_bytes), row.about);
  return fmt::format("{}: {}", perf::name_of(row.state), row.reason);
}

// The key that switches it, and what else is to be said.
std::string words(const Trial& row) {
  std::string text = fmt::format("{}", fmt::join(row.keys, " "));
  if (row.changes_loss) text += " (another loss)";
  if (!row.reason.empty()) text += fmt::format("{}{}", text.empty() ? "" : "; ", row.reason);
  return text;
}

// One line a name, the first of which has the keys of the whole naive step.
std::string short_words(const Trial& row) {
  constexpr std::size_t kKeys = 3;
  return row.keys.size() > kKeys ? (row.reason.empty() ? row.about : row.reason) : words(row);
}

std::string to_text(const MeasuredTable& table) {
  std::size_t width = 4;
  bool befores = false, joules = false;  // columns that have something in them
  for (const Trial& row : table.rows) {
    width = std::max(width, row.name.size());
    befores = befores || row.over_before > 0;
    joules = joules || row.measured.joules_per_token;
  }
  const auto line = [&](const std::string& name, const std::string& bar, const Cells& c, const std::string& words) {
    std::string out =
        fmt::format("{:<{}}  {:<{}} {:>9} {:>13} {:>6} {:>9}", name, width, bar, kBar, c.step, c.rate, c.mfu, c.memory);
    if (joules) out += fmt::format(" {:>8}", c.energy);
    if (befores) out += fmt::format(" {:>8}", c.before);
    out += fmt::format(" {:>8}", c.first);
    return out + (words.empty() ? "" : "  " + words) + "\n";
  };
  std::string out = table.about + "\n\n";
  out += line("", "", {"step", "real tokens/s", "mfu", "memory", "J/token", "x before", "x " + table.first}, "");
  const double most = most_tokens(table);
  for (const Trial& row : table.rows)
    out += row.state == TrialState::measured
               ? line(row.name, report::bar(kBar * row.measured.tokens_per_s / most, true), cells_of(row),
                      short_words(row))
               : fmt::format("{:<{}}  {}\n", row.name, width, why_not(row));
  return out;
}

std::string to_markdown(const MeasuredTable& table) {
  const auto cell = [](std::string text) {
    std::ranges::replace(text, '|', '/');
    return text;
  };
  std::string out = fmt::format(
      "{}; {}\n\n| | step | real tokens/s | MFU | memory | energy a token | x before | x {} | key |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|---|\n",
      table.device, table.about, table.first);
  for (const Trial& row : table.rows) {
    if (row.state != TrialState::measured) {
      out += fmt::format("| {} | | | | | | | | {} |\n", row.name, cell(why_not(row)));
      continue;
    }
    const Cells c = cells_of(row);
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", row.name, c.step,
                       report::grouped(std::llround(row.measured.tokens_per_s)), c.mfu, c.memory, c.energy, c.before,
                       c.first, cell(short_words(row)));
  }
  return out;
}

io::Json to_json(const MeasuredTable& table) {
  io::Json rows = io::Json::array();
  for (const Trial& row : table.rows) {
    io::Json out = {{"name", row.name},     {"keys", row.keys},
                    {"about", row.about},   {"state", perf::name_of(row.state)},
                    {"reason", row.reason}, {"changes_loss", row.changes_loss}};
    if (row.state == TrialState::not_separable) out["saved_bytes"] = row.saved_bytes;
    if (row.state == TrialState::measured) {
      const perf::Measured& m = row.measured;
      out.update({{"step_ms", m.step_ms},
                  {"tokens_per_s", m.tokens_per_s},
                  {"mfu", m.mfu},
                  {"memory_bytes", m.memory},
                  {"waiting_for_data", m.waiting},
                  {"noise", m.noise},
                  {"steps", m.steps},
                  {"over_before", row.over_before},
                  {"over_first", row.over_first},
                  {"kept", row.kept}});
      if (m.joules_per_token) out["joules_per_token"] = *m.joules_per_token;
    }
    rows.push_back(std::move(out));
  }
  return {{"title", table.title}, {"device", table.device}, {"about", table.about},    {"over", table.first},
          {"rows", rows},         {"result", table.result}, {"stopped", table.stopped}};
}

std::string to_page(const MeasuredTable& table) {
  return report::page(table.title + " – redline", {{"page", "ladder"}}, to_json(table));
}

// The words that both commands take, and the forms in which both give their table.
struct SearchWords {
  ConfigWords config;
  std::string device = "auto", html, json;
  bool markdown = false;

  void declare_search(Arguments& arguments, perf::SearchOptions& options, std::string_view what) {
    config.declare(arguments);
    arguments.number("--seconds", "N", options.seconds, 1, 1e6,
                     fmt::format("how long {} should take, about (default: 120); tuning products for the first time "
                                 "comes on top",
                                 what));
  }
  void declare_output(Arguments& arguments) {
    arguments.device(device);
    arguments.text("--html", "FILE", html, "the table as a page with bars, in one file");
    arguments.json_or_file(json, "print the table as one JSON document instead, or write that to FILE as well");
    arguments.flag("--markdown", markdown, "print the table as Markdown");
  }

  bool prints_json() const { return json == Arguments::kStandardOutput; }  // and nothing else

  // A file that cannot be written is a UserError.
  void check() const {
    if (prints_json() && markdown) fail_user("--json and --markdown: one of them goes to a file, --json FILE");
    if (!html.empty()) check_output_file("--html", html, kPageFile);
    if (!json.empty() && !prints_json()) check_output_file("--json", json, kTableFile);
  }

  // Prints the table, and says where the files are. The document has `more` at its end.
  void write(const MeasuredTable& table, const io::Json& more = io::Json::object()) const {
    io::Json document = to_json(table);
    document.update(more);
    if (prints_json())
      print_json(document);
    else
      print(markdown ? to_markdown(table) : fmt::format("{} on {}\n", table.title, table.device) + to_text(table));
    if (!json.empty() && !prints_json())
      real_files().replace(json, document.dump(2, ' ', false, io::Json::error_handler_t::replace) + "\n");
    if (!html.empty()) real_files().replace(html, to_page(table));
    if (markdown || prints_json()) return;
    for (const std::string& file : {json, html})
      if (!file.empty()) print(fmt::format("table: {}\n", file));
  }
};

void read_allowed(const std::vector<std::string>& words, perf::TuneOptions& options) {
  for (const std::string& word : words) {
    if (word == "batch")
      options.allow_batch = true;
    else if (word == "fp8")
      options.allow_fp8 = true;
    else
      fail_user("--allow takes batch or fp8, not '{}'", word);
  }
}

}  // namespace

namespace {

int ladder_as(const SearchWords& given, const std::string& tier, perf::LadderOptions options, Ranks& ranks) {
  const config::Sources sources = sources_of(given.config);
  given.check();
  const perf::LoadConfig load = with_keys(sources, ranks.count());
  const config::Config own = load({});  // what is wrong with it is said before anything runs
  Measuring measuring("ladder", given.device, options.seconds, &ranks);
  measuring.take(options);
  const perf::Ladder ladder = tier.empty() ? perf::climb(load, measuring.bench(), options)
                                           : perf::climb_tiers(load, measuring.bench(), options, tier);
  measuring.clear();
  if (!ranks.leads()) return kDone;

  MeasuredTable table;
  table.title = fmt::format("{} of {}", tier.empty() ? "ladder" : "tiers", name_of(sources));
  table.device = measuring.device().name();
  if (!ranks.alone()) table.device += fmt::format(", {}", counted(ranks.count(), "rank"));
  table.about = measuring.about(own);
  if (options.without) table.first = "full";
  table.rows = ladder.rows;
  table.result = ladder.full;
  table.stopped = ladder.stopped;
  given.write(table);
  if (ladder.stopped) {
    if (!given.prints_json()) print("stopped: these are the rungs that were measured\n");
    return kStopped;
  }
  if (tier.empty() && !options.without && !given.markdown && !given.prints_json())
    print(fmt::format("\nthe full step: {}\n", fmt::join(ladder.full, " ")));
  return kDone;
}

}  // namespace

int run_ladder(const Words& words) {
  Arguments arguments(
      "ladder", "what each optimisation gives on this machine, from the naive step to the full one",
      "[CONFIG] [key=value ...] [--seconds N] [--without] [--html FILE]",
      {"redline ladder ping-95m                            22 rungs in about two minutes",
       "redline ladder my.toml --seconds 300 --html ladder.html",
       "redline ladder my.toml --without                   each left out of the full step",
       "redline ladder my.toml --tier fastest              what the tiers safe, fast and fastest reach here",
       "redline launch -n 8 -- ladder my.toml              on 8 cards, with rungs for parallel.mode",
       "redline ladder quick --device cpu --seconds 20"});
  SearchWords given;
  perf::LadderOptions options;
  given.declare_search(arguments, options, "all of it");
  arguments.flag("--without", options.without, "leave each rung out of the full step, instead of climbing up to it");
  given.declare_output(arguments);
  arguments.exits(kStopped, "stopped by a signal: the rungs so far are shown");
  if (!arguments.parse(words)) return kDone;
  const std::string tier = std::exchange(given.config.tier, "");
  if (options.without && !tier.empty()) fail_user("--without and --tier cannot be combined: a tier has no rungs");

  Ranks ranks(words);
  return ranks.run([&] { return ladder_as(given, tier, options, ranks); });
}

int run_tune(const Words& words) {
  Arguments arguments(
      "tune", "search the settings that train a configuration fastest on this machine, and write them down",
      "[CONFIG] [key=value ...] [--seconds N] [--allow batch|fp8] [--out FILE]",
      {"redline tune my.toml --seconds 300                 writes my.tuned.toml",
       "redline train my.toml --overlay my.tuned.toml      trains with what was found",
       "redline tune my.toml --allow fp8 --allow batch     also what changes the loss or the rows of a step"});
  SearchWords given;
  std::string out;
  std::vector<std::string> allowed;
  perf::TuneOptions options;
  given.declare_search(arguments, options, "the search");
  arguments.repeated("--allow", "WHAT", allowed,
                     "what else may change: fp8 (products in eight bits), batch (the rows of a step, and the learning "
                     "rate with the root of them); without it the loss means the same");
  arguments.text("--out", "FILE", out, "where the overlay goes (default: NAME.tuned.toml)");
  given.declare_output(arguments);
  arguments.exits(kDone, "done, also where nothing was faster");
  arguments.exits(kStopped, "stopped by a signal: the rows so far are shown, and no overlay was written");
  if (!arguments.parse(words)) return kDone;
  read_allowed(allowed, options);

  const config::Sources sources = sources_of(given.config);
  if (out.empty()) out = name_of(sources) + ".tuned.toml";
  check_output_file("--out", out, kOverlayFile, {sources.file, given.config.overlay});
  given.check();
  const perf::LoadConfig load = with_keys(sources);
  const config::Config own = load({});
  Measuring measuring("tune", given.device, options.seconds);
  measuring.take(options);
  const perf::Tuned tuned = perf::tune(load, measuring.bench(), options);
  measuring.clear();

  MeasuredTable table;
  table.first = "start";
  table.rows = tuned.rows;
  table.stopped = tuned.stopped;
  table.title = "tuning of " + name_of(sources);
  table.device = measuring.device().name();
  table.about = measuring.about(own);
  for (const std::string& key : config::differing_keys(tuned.start, tuned.best))
    table.result.push_back(
        fmt::format("{}={}", key, config::literal(config::read(*config::find_key(key), tuned.best))));
  given.write(table, {{"overlay", tuned.stopped ? io::Json(nullptr) : io::Json(out)}, {"faster", tuned.faster}});
  if (tuned.stopped) {
    if (!given.prints_json()) print("stopped: no overlay was written\n");
    return kStopped;
  }
  real_files().replace(out,
                       perf::overlay_of(tuned, table.device, fmt::format("redline tune {}", fmt::join(words, " "))));
  if (given.prints_json()) return kDone;
  if (tuned.faster)
    print(fmt::format("\nin turns: {} at the start, {} now (x{:.3f})\n",
                      report::token_rate(tuned.start_again.tokens_per_s),
                      report::token_rate(tuned.best_again.tokens_per_s),
                      tuned.best_again.tokens_per_s / tuned.start_again.tokens_per_s));
  else
    print("\nnothing was faster than the configuration as it is, beyond noise\n");
  for (const std::string& key : table.result) print(fmt::format("  {}\n", key));
  print(fmt::format("overlay: {} (redline train CONFIG --overlay {})\n", out, out));
  return kDone;
}

}  // namespace redline::cli
