// Words to keys and values, those to runs and their names, sweep.json, and the rule that --help states.
#include "cli/sweep_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/hash.h"
#include "base/words.h"
#include "cli/config.h"
#include "config/keys.h"
#include "io/json.h"
#include "model/family.h"
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
constexpr std::string_view kNames[] = {"waiting",  "running", "finished",   "hopeless",
                                       "diverged", "failed",  "interrupted"};

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

std::string hopeless(const JudgedRun& run, const std::vector<JudgedRun>& others, std::int64_t steps, double margin) {
  if (run.evaluations->empty()) return {};
  const auto [step, own] = *run.evaluations->rbegin();
  if (steps == 0 || step * 4 < steps || step >= steps) return {};
  if (!std::isfinite(own)) return fmt::format("its held-out loss at step {} is not finite", step);
  std::map<std::string, double> worth = {{run.group, own}};
  for (const JudgedRun& other : others) {
    const auto at = other.evaluations->find(step);
    if (at == other.evaluations->end() || !comparable(*run.config, *other.config)) continue;
    const auto [it, is_new] = worth.try_emplace(other.group, at->second);
    if (!is_new) it->second = std::min(it->second, at->second);
  }
  const double own_worth = worth.extract(run.group).mapped();
  std::vector<double> losses;
  for (const auto& [group, loss] : worth) losses.push_back(loss);
  if (losses.empty()) return {};
  std::ranges::sort(losses);
  const double middle = losses[(losses.size() - 1) / 2];
  if (!(own_worth > middle * (1 + margin))) return {};
  return fmt::format("held-out loss {:.4f} at step {}, {:.1f}% above {:.4f}, the median of {} there", own, step,
                     100 * (own / middle - 1), middle, counted(losses.size(), "other setting"));
}

}  // namespace redline::cli
