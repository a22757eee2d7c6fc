// Words to keys and values, those to runs and their names, sweep.json, and the rule that --help states.
#include "cli/sweep_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/hash.h"
#include "base/words.h"
#include "cli/config.h"
#include "config/keys.h"
#include "io/json.h"
#include "model/family.h"
#include "optim/schedule.h"
#include "train/run_folder.h"

namespace redline::cli {
namespace {

constexpr std::size_t kLongestName = 120;  // of a folder; file systems take 255 bytes

// At commas outside of brackets and quotes.
std::vector<std::string> split_values(std::string_view text) {
  std::vector<std::string> values(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[') {
      ++depth;
    } else if (c == ']') {
      --depth;
    } else if (c == ',' && depth <= 0) {
      values.emplace_back();
      continue;
    }
    values.back() += c;
  }
  return values;
}

std::string key_of(const std::string& word) { return word.substr(0, word.find('=')); }

constexpr std::int64_t kVersion = 1;  // of sweep.json
constexpr std::string_view kNames[] = {"waiting",  "running", "finished",    "hopeless",
                                       "diverged", "failed",  "interrupted", "paused"};

// Runs with the same text are the same run.
std::string identity(config::Config config) {
  config = train::as_kept(std::move(config));
  config.preset.clear();  // where the values came from does not matter
  return config::dump(config);
}

std::string group_of(config::Config config) {
  config.train.seed = 0;
  return identity(std::move(config));
}

config::Config load_with(config::Sources base, const std::vector<std::string>& overrides) {
  base.overrides.insert(base.overrides.end(), overrides.begin(), overrides.end());
  return load_config(base);
}

std::vector<std::string> overrides_of(const SweptRun& run) {
  std::vector<std::string> words;
  for (const auto& [key, value] : run.values) words.push_back(key + "=" + value);
  return words;
}

void require_rows(const config::Config& config) {
  const std::vector<std::string>& sinks = config.log.sinks;
  if (std::ranges::find(sinks, "jsonl") == sinks.end())
    fail_user("{}log.sinks has no \"jsonl\": a sweep compares what its runs write into metrics.jsonl; add it",
              config.origins.prefix({"log.sinks"}));
}

std::vector<SweptRun> runs_of_grid(const config::Sources& base, const std::vector<GridKey>& grid) {
  std::vector<SweptRun> runs;
  std::map<std::string, std::string> seen;  // what came to a configuration
  for (const std::vector<std::string>& overrides : combinations(grid)) {
    SweptRun run;
    run.asked = true;
    const std::string words = fmt::format("{}", fmt::join(overrides, " "));
    try {
      run.config = load_with(base, overrides);
    } catch (const UserError& e) {
      fail_user("--grid, with {}: {}", words, e.what());
    }
    require_rows(run.config);
    config::require_data(run.config);
    for (const GridKey& key : grid)
      run.values.emplace_back(key.name, config::literal(config::read(*config::find_key(key.name), run.config)));
    if (const auto [it, is_new] = seen.try_emplace(identity(run.config), words); !is_new)
      fail_user("--grid: '{}' and '{}' come to the same configuration; leave one of them out", it->second, words);
    runs.push_back(std::move(run));
  }
  return runs;
}

// The base configuration of the sweep in the folder must be the one that is given now.
void require_same_base(const io::Json& json, const config::Sources& base, const SweptRun& first, const Path& file) {
  const config::Config before =
      config::parse(io::string_at(json, "first_config", file.string()), file.string(), model::settle_family);
  const config::Config now = train::as_kept(load_with(base, overrides_of(first)));
  std::string different;
  for (const std::string& name : config::differing_keys(before, now)) {
    if (name == "preset") continue;
    const config::Key& key = *config::find_key(name);
    different += fmt::format("{}{} was {} and is {}", different.empty() ? "" : ", ", name,
                             config::literal(config::read(key, before)), config::literal(config::read(key, now)));
  }
  if (!different.empty())
    fail_user(
        "{} is the folder of a sweep with another configuration: {}; give what it had, or another folder with --out",
        parent_of(file).string(), different);
}

std::vector<SweptRun> runs_of_file(FileSystem& files, const Path& file, const config::Sources& base) {
  const io::Json json = io::read_json(files, file);
  const std::string name = file.string();
  if (const std::int64_t version = io::integer_at(json, "version", name); version != kVersion)
    fail_user("{}: version {} of the file; this program reads version {}", name, version, kVersion);
  const auto rows = json.find("runs");
  if (rows == json.end() || !rows->is_array() || rows->empty()) fail_user("{}: there are no runs in it", name);
  std::vector<SweptRun> runs;
  for (const io::Json& row : *rows) {
    SweptRun run;
    run.name = io::string_at(row, "run", name);
    if (run.name.empty() || run.name.starts_with('.') || run.name.find('/') != run.name.npos)
      fail_user("{}: {} is no name of a run", name, io::in_quotes(run.name));
    const std::string state = io::string_at(row, "state", name);
    const auto known = std::ranges::find(kNames, state);
    if (known == std::end(kNames)) fail_user("{}: {} is no state of a run", name, io::in_quotes(state));
    run.state = static_cast<SweptState>(known - std::begin(kNames));
    run.why = io::string_at(row, "why", name);
    const auto values = row.find("values");
    if (values == row.end() || !values->is_object()) fail_user("{}: {} has no values", name, run.name);
    for (const auto& [key, value] : values->items()) {
      if (!value.is_string() || !config::find_key(key)) fail_user("{}: {} has a value of no key", name, run.name);
      run.values.emplace_back(key, value.get<std::string>());
    }
    runs.push_back(std::move(run));
  }
  require_same_base(json, base, runs[0], file);
  for (SweptRun& run : runs) run.config = load_with(base, overrides_of(run));
  return runs;
}

// A sweep that was killed has a run that no process trains; one whose folder was deleted is to be done again.
void settle(FileSystem& files, const Sweep& sweep, SweptRun& run) {
  if (run.state == SweptState::running) run.state = SweptState::interrupted;
  if (run.state == SweptState::waiting || train::holds_run(files, sweep.folder_of(run))) return;
  run.state = SweptState::waiting;
  run.why.clear();
}

auto batch_and_length(const config::Train& t) {
  return std::tie(t.batch_size, t.automatic_batch_size, t.accumulate, t.seq_len, t.accumulate_from,
                  t.accumulate_ramp_steps, t.seq_len_from, t.seq_len_ramp_steps, t.max_steps, t.max_tokens, t.epochs,
                  t.max_hours, t.fit_hours, t.eval_tokens, t.eval_batches);
}

auto schedule(const config::Optim& o) {
  return std::tie(o.schedule, o.decay_fraction, o.decay_tokens, o.decay_shape, o.schedule_start);
}

}  // namespace

std::vector<GridKey> read_grid(const std::vector<std::string>& words, const std::vector<std::string>& overrides) {
  std::vector<GridKey> grid;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    GridKey key{key_of(word), {}};
    if (equals == word.npos || key.name.empty())
      fail_user("--grid {}: give a key and its values, as in --grid optim.lr=1e-3,2e-3", word);
    if (!config::find_key(key.name)) fail_user("--grid {}: {}", word, config::unknown_key(key.name));
    if (std::ranges::find(grid, key.name, &GridKey::name) != grid.end())
      fail_user("--grid {}: {} is in the grid already; give all of its values at once", word, key.name);
    if (std::ranges::find(overrides, key.name, key_of) != overrides.end())
      fail_user("--grid {}: {} is also given as key=value; leave one of the two out", word, key.name);
    key.values = split_values(std::string_view(word).substr(equals + 1));
    if (std::ranges::any_of(key.values, [](const std::string& v) { return v.find_first_not_of(" \t") == v.npos; }))
      fail_user("--grid {}: there is a value missing; values stand between commas, as in {}=A,B", word, key.name);
    grid.push_back(std::move(key));
  }
  return grid;
}

std::vector<std::vector<std::string>> combinations(const std::vector<GridKey>& grid) {
  std::vector<std::vector<std::string>> all = {{}};
  for (const GridKey& key : grid) {
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& before : all)
      for (const std::string& value : key.values) {
        longer.push_back(before);
        longer.back().push_back(key.name + "=" + value);
      }
    all = std::move(longer);
  }
  return all;
}

std::vector<std::string> short_names(const std::vector<std::string>& keys) {
  const auto last_part = [](const std::string& key) { return key.substr(key.rfind('.') + 1); };
  std::vector<std::string> names;
  for (const std::string& key : keys)
    names.push_back(std::ranges::count(keys, last_part(key), last_part) == 1 ? last_part(key) : key);
  return names;
}

std::string shown_value(const config::Config& config, const std::string& key) {
  const config::Value value = config::read(*config::find_key(key), config);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value))
    return fmt::format("{}", fmt::join(*texts, ","));
  return config::literal(value);
}

std::string run_folder_name(const std::vector<std::string>& titles, const std::vector<std::string>& values,
                            const std::vector<std::string>& taken) {
  std::string whole;
  for (std::size_t k = 0; k < titles.size(); ++k)
    whole += fmt::format("{}{}={}", k == 0 ? "" : ",", titles[k], values[k]);
  std::string name;
  for (const char c : whole) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    name += plain || std::string_view("=,._+-").find(c) != std::string_view::npos ? c : '_';
  }
  if (name.size() > kLongestName) name = name.substr(0, kLongestName - 17) + "-" + hex64(hash64(whole));
  std::string free = name;
  for (int n = 2; std::ranges::find(taken, free) != taken.end(); ++n) free = fmt::format("{}-{}", name, n);
  return free;
}

std::string_view name_of(SweptState state) { return kNames[static_cast<std::size_t>(state)]; }

std::vector<std::string> Sweep::values_of(const SweptRun& run) const {
  std::vector<std::string> values;
  for (const std::string& key : keys) values.push_back(shown_value(run.config, key));
  return values;
}

void Sweep::save(FileSystem& files) const {
  io::Json rows = io::Json::array();
  for (const SweptRun& run : runs) {
    io::Json values = io::Json::object();
    for (const auto& [key, value] : run.values) values[key] = value;
    rows.push_back({{"run", run.name}, {"state", name_of(run.state)}, {"why", run.why}, {"values", std::move(values)}});
  }
  const io::Json json = {
      {"version", kVersion}, {"first_config", config::dump(train::as_kept(runs[0].config))}, {"runs", std::move(rows)}};
  files.replace(folder / kSweepState, json.dump(1, ' ', false, io::Json::error_handler_t::replace) + "\n");
}

Sweep read_sweep(FileSystem& files, const Path& folder, const config::Sources& base, const std::vector<GridKey>& grid) {
  Sweep sweep;
  sweep.folder = folder;
  sweep.runs = runs_of_grid(base, grid);
  if (files.exists(folder) && !std::filesystem::is_directory(folder))
    fail_user("--out {}: not a folder", folder.string());
  if (train::holds_run(files, folder))
    fail_user("--out {}: that is the folder of one run; a sweep needs one of its own", folder.string());
  const Path file = folder / kSweepState;
  std::vector<std::string> taken = files.list(folder);
  const bool holds_others = std::ranges::any_of(
      taken, [](const std::string& name) { return !name.starts_with('.') && !name.starts_with(kSweepState); });
  if (holds_others && !files.exists(file))
    fail_user("--out {}: the folder is not empty and has no {}, so it is not that of a sweep; give another one",
              folder.string(), kSweepState);
  if (files.exists(file)) {
    std::map<std::string, std::size_t> asked;
    for (std::size_t r = 0; r < sweep.runs.size(); ++r) asked[identity(sweep.runs[r].config)] = r;
    for (SweptRun& before : runs_of_file(files, file, base)) {
      taken.push_back(before.name);
      settle(files, sweep, before);
      const auto same = asked.find(identity(before.config));
      before.asked = same != asked.end();
      if (before.asked)
        sweep.runs[same->second] = std::move(before);
      else
        sweep.runs.push_back(std::move(before));
    }
  }
  for (const GridKey& key : grid) sweep.keys.push_back(key.name);
  for (const SweptRun& run : sweep.runs)
    for (const auto& [key, value] : run.values)
      if (std::ranges::find(sweep.keys, key) == sweep.keys.end()) sweep.keys.push_back(key);
  const std::vector<std::string> titles = short_names(sweep.keys);
  for (SweptRun& run : sweep.runs) {
    // A later grid may leave a key to the base configuration, with a value of its own.
    run.values.clear();
    for (const std::string& key : sweep.keys)
      run.values.emplace_back(key, config::literal(config::read(*config::find_key(key), run.config)));
    if (run.name.empty()) {
      run.name = run_folder_name(titles, sweep.values_of(run), taken);
      taken.push_back(run.name);
    }
    run.group = group_of(run.config);
  }
  return sweep;
}

bool comparable(const config::Config& a, const config::Config& b) {
  return a.data == b.data && a.model.vocab == b.model.vocab && batch_and_length(a.train) == batch_and_length(b.train) &&
         schedule(a.optim) == schedule(b.optim);
}

namespace {

using Curve = std::array<double, kJudgedEvaluations>;
using CurveSteps = std::array<std::int64_t, kJudgedEvaluations>;

std::int64_t warm_up_of(const JudgedRun& run, std::int64_t steps) { return optim::warmup_steps(*run.config, steps, 1); }

// A quarter of the steps behind the warm-up is done.
std::int64_t judged_from(const JudgedRun& run, std::int64_t steps) {
  const std::int64_t warm_up = std::min(warm_up_of(run, steps), steps);
  return warm_up + (steps - warm_up + 3) / 4;
}

// The losses of a run at these steps; nothing where one is missing, not finite, or within its warm-up.
std::optional<Curve> curve_of(const JudgedRun& run, const CurveSteps& at, std::int64_t steps) {
  if (at.front() < warm_up_of(run, steps)) return {};
  Curve curve{};
  for (std::size_t i = 0; i < at.size(); ++i) {
    const auto found = run.evaluations->find(at[i]);
    if (found == run.evaluations->end() || !std::isfinite(found->second)) return {};
    curve[i] = found->second;
  }
  return curve;
}

Curve lowest(Curve a, const Curve& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = std::min(a[i], b[i]);
  return a;
}

// How far the middle value lies off the line between its neighbours, squared, as the variance of one value.
double off_the_line(const Curve& c) {
  const double off = c[1] - (c[0] + c[2]) / 2;
  return off * off / 1.5;
}

// The settings that a run is held against at three of its evaluations, its own among them.
struct Comparison {
  CurveSteps at{};
  Curve own{}, median{};  // own: of the run itself
  Curve share{};          // of its setting, as a share of the median
  double scatter = 0;     // of such shares
  std::size_t others = 0;

  double mean() const { return (share[0] + share[1] + share[2]) / 3; }
  double at_the_end(std::int64_t steps) const {
    const double slope = (share[2] - share[0]) / static_cast<double>(at[2] - at[0]);
    return share[2] + slope * static_cast<double>(steps - at[2]);
  }
};

std::optional<Comparison> compare(const JudgedRun& run, const std::vector<JudgedRun>& others, const CurveSteps& at,
                                  std::int64_t steps) {
  const std::optional<Curve> own = curve_of(run, at, steps);
  if (!own) return {};
  std::map<std::string, Curve> worth = {{run.group, *own}};
  for (const JudgedRun& other : others) {
    if (!comparable(*run.config, *other.config)) continue;
    const std::optional<Curve> curve = curve_of(other, at, steps);
    if (!curve) continue;
    const auto [it, is_new] = worth.try_emplace(other.group, *curve);
    if (!is_new) it->second = lowest(it->second, *curve);
  }
  Comparison c;
  c.at = at;
  c.own = *own;
  c.others = worth.size() - 1;
  if (c.others < kFewestOthers) return {};
  for (std::size_t i = 0; i < at.size(); ++i) {
    std::vector<double> losses;
    for (const auto& [group, curve] : worth)
      if (group != run.group) losses.push_back(curve[i]);
    std::ranges::sort(losses);
    c.median[i] = losses[(losses.size() - 1) / 2];
  }
  double variance = 0;
  for (const auto& [group, curve] : worth) {
    Curve share{};
    for (std::size_t i = 0; i < at.size(); ++i) share[i] = curve[i] / c.median[i] - 1;
    variance += off_the_line(share) / static_cast<double>(worth.size());
    if (group == run.group) c.share = share;
  }
  c.scatter = std::sqrt(variance);
  return c;
}

// The newest of its evaluations at which enough others can be compared.
std::optional<Comparison> newest_comparison(const JudgedRun& run, const std::vector<JudgedRun>& others,
                                            std::int64_t steps) {
  std::vector<std::int64_t> at;
  for (const auto& [step, loss] : *run.evaluations) at.push_back(step);
  for (std::size_t end = at.size(); end >= kJudgedEvaluations; --end) {
    if (at[end - 1] < judged_from(run, steps)) break;
    CurveSteps three{};
    std::copy_n(at.begin() + static_cast<std::ptrdiff_t>(end - kJudgedEvaluations), kJudgedEvaluations, three.begin());
    if (auto found = compare(run, others, three, steps)) return found;
  }
  return {};
}

}  // namespace

std::string hopeless(const JudgedRun& run, const std::vector<JudgedRun>& others, std::int64_t steps, double margin) {
  if (run.evaluations->empty() || steps == 0) return {};
  const auto [step, newest] = *run.evaluations->rbegin();
  if (step >= steps) return {};
  if (!std::isfinite(newest) && step * 4 >= steps)
    return fmt::format("its held-out loss at step {} is not finite", step);
  const std::optional<Comparison> c = newest_comparison(run, others, steps);
  if (!c || !(std::ranges::min(c->share) > margin) || !(c->mean() > margin + 2 * c->scatter) ||
      !(c->at_the_end(steps) > margin))
    return {};
  return fmt::format(
      "held-out loss {:.4f} at step {}, {:.1f}% above {:.4f}, the median of {} there, and above it from step {} on",
      c->own[2], c->at[2], 100 * (c->own[2] / c->median[2] - 1), c->median[2], counted(c->others, "other setting"),
      c->at[0]);
}

std::int64_t pause_step(const JudgedRun& run, const std::vector<JudgedRun>& all, std::int64_t steps) {
  const std::int64_t every = run.config->train.eval_every;
  if (every == 0 || steps == 0) return 0;
  std::set<std::string> groups;
  std::int64_t latest = 0;
  for (const JudgedRun& other : all) {
    if (!comparable(*run.config, *other.config)) continue;
    constexpr std::int64_t kBefore = kJudgedEvaluations - 1;
    const std::int64_t first =
        (warm_up_of(other, steps) + every - 1) / every + kBefore;  // evaluations before it are too early
    const std::int64_t at = every * std::max({first, kBefore + 1, (judged_from(other, steps) + every - 1) / every});
    if (at >= steps) continue;  // it goes to its end unjudged
    groups.insert(other.group);
    latest = std::max(latest, at);
  }
  return groups.contains(run.group) && groups.size() > kFewestOthers ? latest : 0;
}

}  // namespace redline::cli
