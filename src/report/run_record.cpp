// Reads the files of a run line by line; every line stands for itself. A session of goodput.jsonl ends with its last
// row; its steps after the checkpoint that a later session resumed were done again.
#include "report/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/words.h"
#include "config/toml.h"
#include "io/json.h"
#include "io/new_folder.h"
#include "report/json_rows.h"
#include "report/rows_file.h"

namespace redline::report {
namespace {

constexpr double kMostSeconds = 1e10;  // three hundred years

struct GoodputRow {
  std::int64_t step = 0;
  train::Account account;
};

bool is_time(double seconds) { return seconds >= 0 && seconds < kMostSeconds; }

// False where the row is none of ours.
bool read_account(const io::Json& row, train::Account& account) {
  const auto seconds = row.find("seconds");
  if (seconds == row.end() || !seconds->is_object()) return false;
  for (std::size_t p = 0; p < train::kParts.size(); ++p) {
    // Rows of before there were ranks say nothing of them.
    const double without = static_cast<train::Part>(p) == train::Part::ranks ? 0 : -1;
    account.seconds[p] = number_or(*seconds, train::kParts[p].key, without);
    if (!is_time(account.seconds[p])) return false;
  }
  account.tokens = std::max<std::int64_t>(integer_or(row, "tokens", 0), 0);
  if (const double joules = number_or(row, "joules", -1); joules >= 0) account.joules = joules;
  return true;
}

io::Json parts(const train::Account& account) {
  io::Json out = io::Json::object();
  for (std::size_t p = 0; p < train::kParts.size(); ++p) out[std::string(train::kParts[p].key)] = account.seconds[p];
  return out;
}

// Without the layer.
std::string kind_of(const std::string& name) {
  const std::size_t slash = name.find('/');
  return name.starts_with("layer ") && slash != name.npos ? name.substr(slash + 1) : name;
}

// Whether there is anything to read.
bool holds_run(FileSystem& files, const Path& folder) {
  return files.exists(folder / "metrics.jsonl") || files.exists(folder / "events.jsonl") ||
         files.exists(folder / "config.toml");
}

// One row of metrics.jsonl, read without an object in between: long runs have a million of them. Members of members are
// passed over.
class MetricsRow {
 public:
  using Json = io::Json;
  bool read(std::string_view text) {
    *this = {};
    values.fill(kUnknown);
    return Json::sax_parse(text, this) && whole_ && step >= 0;
  }

  std::int64_t step = -1;
  std::array<double, kMetrics.size()> values{};
  std::vector<std::pair<std::string, double>> named;  // KEY/NAME
  bool has_throttle = false;
  std::string throttle;

  // The parser's events.
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(Json::number_integer_t v) { return number(static_cast<double>(v), true); }
  bool number_unsigned(Json::number_unsigned_t v) { return number(static_cast<double>(v), true); }
  bool number_float(Json::number_float_t v, const Json::string_t&) { return number(v, false); }
  bool string(Json::string_t& v) {
    if (depth_ == 1 && key_ == "gpu_throttle") throttle = v;
    return true;
  }
  bool binary(Json::binary_t&) { return true; }
  bool start_object(std::size_t) {
    ++depth_;
    return true;
  }
  bool key(Json::string_t& name) {
    if (depth_ != 1) return true;
    key_ = name;
    has_throttle = has_throttle || key_ == "gpu_throttle";
    return true;
  }
  bool end_object() {
    whole_ = --depth_ == 0;
    return true;
  }
  bool start_array(std::size_t) { return ++depth_ > 1; }  // a row is no array
  bool end_array() {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) { return false; }

 private:
  bool number(double v, bool integer) {
    if (depth_ != 1 || !plausible(v)) return true;
    if (key_ == "step" && integer && v < 0x1p53) step = static_cast<std::int64_t>(v);
    const auto metric = std::ranges::find(kMetrics, key_, &Metric::key);
    if (metric != kMetrics.end()) values[Column(*metric).index] = v;
    if (key_.find('/') != key_.npos) named.emplace_back(key_, v);
    return true;
  }

  int depth_ = 0;
  bool whole_ = false;
  std::string key_;
};

void drop_rows_from(RunRecord& run, std::int64_t step) {
  while (!run.steps.empty() && run.steps.back() >= step) {
    run.steps.pop_back();
    for (auto& column : run.columns) column.pop_back();
  }
  for (NamedHistory& of : run.named)
    for (; !of.steps.empty() && of.steps.back() >= step; of.values.pop_back()) of.steps.pop_back();
}

void add_named(RunRecord& run, std::int64_t step, const std::string& key, double value) {
  const std::size_t slash = key.find('/');
  const auto metric = std::ranges::find(kNamedMetrics, std::string_view(key).substr(0, slash), &NamedMetric::key);
  if (metric == kNamedMetrics.end()) return;
  const std::string_view name = std::string_view(key).substr(slash + 1);
  auto of =
      std::ranges::find_if(run.named, [&](const NamedHistory& h) { return h.key == metric->key && h.name == name; });
  if (of == run.named.end()) of = run.named.insert(of, {metric->key, std::string(name), {}, {}});
  of->steps.push_back(step);
  of->values.push_back(value);
}

void add_row(RunRecord& run, const MetricsRow& row) {
  drop_rows_from(run, row.step);  // a later row of a step is the one that holds
  run.steps.push_back(row.step);
  for (std::size_t c = 0; c < kMetrics.size(); ++c) run.columns[c].push_back(row.values[c]);
  for (const auto& [key, value] : row.named) add_named(run, row.step, key, value);
  if (!row.has_throttle) return;
  ++run.gpu_rows;
  if (row.throttle.empty()) return;
  ++run.throttled_rows;
  if (std::ranges::find(run.throttle_reasons, row.throttle) == run.throttle_reasons.end())
    run.throttle_reasons.push_back(row.throttle);
}

// Figures that every version has written so far; one that no row has is worth a word.
void report_missing_columns(RunRecord& run) {
  std::string missing;
  for (const Metric& m : kMetrics)
    if (m.required && std::ranges::all_of(run.column(Column(m)), [](double v) { return std::isnan(v); }))
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", m.key);
  if (run.rows() > 0 && run.steps.back() > 0 && !missing.empty())
    run.problems.push_back(fmt::format(
        "metrics.jsonl has no {}: another version or another program wrote it; the rest is shown", missing));
}

SessionStart session_of(const io::Json& row) {
  SessionStart s;
  s.time = number_or(row, "time", 0);
  s.first_step = integer_or(row, "first_step", 0);
  s.steps = integer_or(row, "steps", 0);
  s.parameters = integer_or(row, "parameters", 0);
  s.device_memory = number_or(row, "device_memory", 0);
  s.peak_flops = number_or(row, "peak_flops", 0);
  s.program = text_or(row, "program");
  s.device = text_or(row, "device");
  s.data = text_or(row, "data");
  s.ranks = integer_or(row, "ranks", 1);
  s.restart = text_or(row, "restart");
  const auto of_loss = row.find("loss_trained_on");  // earlier versions wrote the names of all such sets alone
  if (of_loss != row.end() && of_loss->is_boolean())
    s.trained_on = of_loss->get<bool>();
  else if (const io::Json* sets = list_in(row, "trained_on"))
    s.trained_on = !sets->empty();
  const auto card = row.find("card");  // which earlier versions did not write
  s.card = card != row.end() && card->is_boolean() ? card->get<bool>() : !s.device.starts_with("CPU");
  if (const auto memory = row.find("memory"); memory != row.end() && memory->is_object())
    for (const auto& entry : memory->items())
      if (const double bytes = number_or(*memory, entry.key(), 0); bytes > 0) s.memory.emplace_back(entry.key(), bytes);
  if (const io::Json* header = list_in(row, "header"))
    for (const io::Json& line : *header)
      if (line.is_string()) s.header.push_back(line.get<std::string>());
  return s;
}

bool take_event(RunRecord& run, const io::Json& row) {
  Event e{number_or(row, "time", 0), integer_or(row, "step", 0), text_or(row, "kind"), text_or(row, "text")};
  if (e.kind.empty()) return false;
  if (e.kind == "started") {
    run.sessions.push_back(session_of(row));
    const SessionStart& s = run.sessions.back();
    if (const std::int64_t version = integer_or(row, "version", 1); version != kEventsVersion)
      run.problems.push_back(
          fmt::format("events.jsonl is of version {}, and this program writes {}: what it knows of it "
                      "is shown",
                      version, kEventsVersion));
    e.text = fmt::format("{}{} on {}{}", s.restart.empty() ? "" : s.restart + "; ",
                         s.first_step > 0 ? fmt::format("resumed after step {}", s.first_step) : "started", s.device,
                         s.ranks > 1 ? fmt::format(", {}", counted(s.ranks, "rank")) : "");
  } else if (e.kind == "checkpoint") {
    e.seconds = number_or(row, "seconds", 0);
    e.held = number_or(row, "held_seconds", 0);
    e.text = fmt::format("saved {} in {:.2g} s", text_or(row, "folder"), e.seconds);
    if (e.held > 0) e.text += fmt::format(", of which training waited {:.2g} s", e.held);
  } else if (e.kind == "rolled_back") {
    e.step = integer_or(row, "to", e.step);
    e.from = integer_or(row, "from", e.step);
  } else if (e.kind == "note" && !run.sessions.empty()) {  // which may count the steps anew
    run.sessions.back().steps = integer_or(row, "steps", run.sessions.back().steps);
  }
  run.events.push_back(std::move(e));
  return true;
}

void read_pipeline(FileSystem& files, RunRecord& run) {
  std::map<std::string, std::int64_t> slowest;
  std::map<std::string, double> counts;
  io::Json means = io::Json::array();
  const auto take = [&](const io::Json& row) {
    const io::Json* stages = list_in(row, "stages");
    if (!stages) return false;
    ++slowest[text_or(row, "slowest")];
    for (const io::Json& stage : *stages) {
      if (!stage.is_object()) continue;
      const std::string name = text_or(stage, "name");
      const double n = ++counts[name];
      if (n == 1) means.push_back({{"name", name}});
      io::Json& mean = *std::ranges::find_if(means, [&](const io::Json& m) { return m["name"] == name; });
      for (const char* key : {"threads", "tokens_per_s", "busy", "waiting"}) {
        const double before = number_or(mean, key, 0);
        mean[key] = before + (number_or(stage, key, 0) - before) / n;
      }
    }
    return true;
  };
  JsonRows(files, run.folder / "data_pipeline.jsonl", run.problems).read_objects(take);
  if (slowest.empty()) return;
  std::int64_t intervals = 0;
  for (const auto& [stage, times] : slowest) intervals += times;
  const auto most = std::ranges::max_element(slowest, {}, [](const auto& entry) { return entry.second; });
  run.pipeline = std::make_shared<io::Json>(
      io::Json{{"intervals", intervals}, {"slowest", most->first}, {"stages", std::move(means)}});
}

void read_samples(FileSystem& files, RunRecord& run) {
  const Path path = run.folder / "samples.jsonl";
  JsonRows(files, path, run.problems).read_lists("samples", [&](std::int64_t step, const io::Json& samples) {
    while (!run.samples.empty() && run.samples.back().step >= step) run.samples.pop_back();  // as for metrics
    for (const io::Json& sample : samples)
      if (sample.is_object()) run.samples.push_back({step, text_or(sample, "prompt"), text_or(sample, "text")});
  });
}

void read_fp8(FileSystem& files, RunRecord& run) {
  const Path path = run.folder / "fp8.jsonl";
  JsonRows(files, path, run.problems).read_lists("tensors", [&](std::int64_t step, const io::Json& tensors) {
    run.fp8.begin(step);
    for (const io::Json& t : tensors) {
      if (!t.is_object() || text_or(t, "name").empty()) continue;
      Fp8History& of = run.fp8.of(text_or(t, "name"));
      if (of.format.empty()) of.format = text_or(t, "format");
      of.scale.back() = number_or(t, "scale", kUnknown);
      of.amax.back() = number_or(t, "amax", kUnknown);
      of.saturated.back() = number_or(t, "saturated", kUnknown);
      of.zero.back() = number_or(t, "zero", kUnknown);
    }
  });
}

// All looks have the same layers and experts: a row of others is of another program, and is passed over.
void read_routers(FileSystem& files, RunRecord& run) {
  const Path path = run.folder / "router.jsonl";
  std::int64_t odd = 0;
  JsonRows(files, path, run.problems).read_lists("layers", [&](std::int64_t step, const io::Json& layers) {
    std::vector<LayerLoads> look;
    for (const io::Json& of : layers) {
      const io::Json* loads = of.is_object() ? list_in(of, "loads") : nullptr;
      if (!loads) break;
      std::vector<float> values;
      for (const io::Json& load : *loads) values.push_back(load.is_number() ? load.get<float>() : 0);
      look.push_back({integer_or(of, "layer", -1), {number_or(of, "entropy", kUnknown)}, {std::move(values)}});
    }
    RunRouters& all = run.routers;
    const auto experts = [](const LayerLoads& of) { return of.loads[0].size(); };
    const bool whole = !look.empty() && look.size() == layers.size() && experts(look[0]) > 0;
    const bool fits =
        whole && std::ranges::all_of(look, [&](const LayerLoads& of) { return experts(of) == experts(look[0]); }) &&
        (all.steps.empty() || (all.experts() == experts(look[0]) &&
                               std::ranges::equal(look, all.layers, {}, &LayerLoads::layer, &LayerLoads::layer)));
    if (!fits) {
      ++odd;
      return;
    }
    if (all.layers.empty()) all.layers.assign(look.size(), {});
    while (!all.steps.empty() && all.steps.back() >= step) {  // a later row is the one that holds
      all.steps.pop_back();
      for (LayerLoads& of : all.layers) of.entropy.pop_back(), of.loads.pop_back();
    }
    all.steps.push_back(step);
    for (std::size_t i = 0; i < look.size(); ++i) {
      all.layers[i].layer = look[i].layer;
      all.layers[i].entropy.push_back(look[i].entropy[0]);
      all.layers[i].loads.push_back(std::move(look[i].loads[0]));
    }
  });
  if (odd > 0)
    run.problems.push_back(
        fmt::format("router.jsonl: {} that cannot be read, or of other experts than the first; "
                    "passed over",
                    counted(odd, "row")));
}

void read_config(FileSystem& files, RunRecord& run) {
  const Path path = run.folder / "config.toml";
  if (!files.exists(path)) {
    run.problems.push_back("there is no config.toml: the settings are not known");
    return;
  }
  run.config_text = read_at_most(files, path, config::kMostTomlBytes);
  try {
    for (const config::Setting& s : config::read_toml(run.config_text, path.string()))
      if (!s.table) run.settings.emplace_back(s.name, config::literal(s.value));
  } catch (const UserError& e) {
    run.problems.push_back(fmt::format("the settings cannot be compared: {}", e.what()));
  }
}

void read_profile(FileSystem& files, RunRecord& run) {
  const Path path = run.folder / "profile.json";
  if (!files.exists(path)) return;
  try {
    io::Json profile = io::read_json(files, path);
    if (profile.is_object() && list_in(profile, "kinds"))
      run.profile = std::make_shared<io::Json>(std::move(profile));
    else
      run.problems.push_back("profile.json is not what redline profile writes; it is not shown");
  } catch (const UserError& e) {
    run.problems.push_back(fmt::format("the profile is not shown: {}", e.what()));
  }
}

// Rows of a metrics.jsonl in its order. A row that goes back begins a session that made those steps anew, and the rows
// from it on hold; where the next row goes on as if it had not been there, its number is damaged.
class RowsInOrder {
 public:
  explicit RowsInOrder(RunRecord& run) : run_(run) {}
  void add(const MetricsRow& row) {
    if (back_ && row.step > run_.steps.back())
      run_.problems.push_back(fmt::format("metrics.jsonl: a row of step {} stands after that of step {}; passed over",
                                          back_->step, run_.steps.back()));
    else if (back_)
      add_row(run_, *back_);
    back_.reset();
    if (!run_.steps.empty() && row.step <= run_.steps.back())
      back_ = row;
    else
      add_row(run_, row);
  }
  void end() {
    if (back_) add_row(run_, *back_);
  }

 private:
  RunRecord& run_;
  std::optional<MetricsRow> back_;
};

// The number of steps without a row before each row. Zeros where most steps have none: such a file is not one row a
// step.
std::vector<double> missing_before(RunRecord& run) {
  std::vector<double> missing(run.rows());
  double all = 0;
  std::int64_t last = 0, first_missing = 0;
  for (std::size_t i = 0; i < run.rows(); last = run.steps[i++]) {
    missing[i] = static_cast<double>(std::max<std::int64_t>(run.steps[i] - last - 1, 0));
    if (missing[i] > 0 && all == 0) first_missing = last + 1;
    all += missing[i];
  }
  if (all > static_cast<double>(run.rows())) return std::vector<double>(run.rows());
  if (all > 0)
    run.problems.push_back(
        fmt::format("metrics.jsonl has no row for {}, the first is step {}; in the totals each "
                    "counts as the step after it",
                    counted(static_cast<std::int64_t>(all), "step"), first_missing));
  return missing;
}

// Sums of the rows. A session that went on from a checkpoint begins where the row before it ended. A time that is not
// between those beside it is of a damaged row, or of a clock that was set: such a step counts for as long as it says it
// took.
void accumulate(RunRecord& run) {
  double tokens = 0, seconds = 0;
  const auto &time = run.column("time"), &ms = run.column("step_ms"), &n = run.column("tokens");
  const std::vector<double> missing = missing_before(run);
  double counted_to = kUnknown;  // the time up to which `seconds` has all
  for (std::size_t i = 0; i < run.rows(); ++i) {
    const double steps = 1 + missing[i], own = std::isnan(ms[i]) ? 0 : ms[i] * 1e-3 * steps;
    const bool resumed = i > 0 && std::ranges::any_of(run.sessions, [&](const SessionStart& s) {
                           return s.first_step > 0 && s.first_step >= run.steps[i - 1] && s.first_step < run.steps[i];
                         });
    if (resumed) counted_to = kUnknown;
    const bool odd = time[i] < counted_to || (i + 1 < run.rows() && time[i + 1] < time[i]);
    const double passed = odd ? own : time[i] - counted_to;
    seconds += passed >= 0 ? passed : own;
    counted_to = odd ? counted_to + own : time[i];
    tokens += std::isnan(n[i]) ? 0 : n[i] * steps;
    run.seconds_so_far.push_back(seconds);
    run.tokens_so_far.push_back(tokens);
  }
}

}  // namespace

train::Account RunGoodput::account() const {
  train::Account all;
  for (const SessionGoodput& s : sessions) {
    for (std::size_t p = 0; p < all.seconds.size(); ++p) all.seconds[p] += s.account.seconds[p];
    all.of(train::Part::standing_still) += s.until_next;
    if (!s.account.joules) continue;
    all.joules = all.joules.value_or(0) + *s.account.joules;
    all.tokens += s.account.tokens;
  }
  return all;
}

RunGoodput read_goodput(FileSystem& files, const Path& path, std::vector<std::string>& problems) {
  RunGoodput run;
  std::vector<std::vector<GoodputRow>> rows;  // of each session
  JsonRows(files, path, problems).read_objects([&](const io::Json& row) {
    const double time = number_or(row, "time", -1), began = number_or(row, "began", -1);
    GoodputRow read{.step = integer_or(row, "step", -1), .account = {}};
    if (!is_time(time) || !is_time(began) || read.step < 0 || !read_account(row, read.account)) return false;
    if (run.sessions.empty() || run.sessions.back().began != began) {
      run.sessions.push_back({.began = began, .first_step = integer_or(row, "first_step", 0)});
      rows.emplace_back();
    }
    run.sessions.back().ended = time;
    rows.back().push_back(std::move(read));
    return true;
  });
  std::int64_t kept_step = std::numeric_limits<std::int64_t>::max();  // that no later session has made again
  for (std::size_t i = run.sessions.size(); i-- > 0;) {
    SessionGoodput& s = run.sessions[i];
    s.account = rows[i].back().account;
    const auto kept =
        std::find_if(rows[i].rbegin(), rows[i].rend(), [&](const GoodputRow& r) { return r.step <= kept_step; });
    s.account.lose_all_since(kept == rows[i].rend() ? train::Account{} : kept->account);
    if (i + 1 < run.sessions.size()) s.until_next = std::max(0.0, run.sessions[i + 1].began - s.ended);
    kept_step = std::min(kept_step, s.first_step);
  }
  return run;
}

io::Json to_json(const RunGoodput& goodput) {
  io::Json out = io::Json::object(), sessions = io::Json::array();
  if (goodput.sessions.empty()) return out;
  for (const SessionGoodput& s : goodput.sessions)
    sessions.push_back({{"began", s.began},
                        {"first_step", s.first_step},
                        {"seconds", parts(s.account)},
                        {"seconds_until_next", s.until_next}});
  const train::Account all = goodput.account();
  out["goodput"] = {{"share", all.share(train::Part::steps)},
                    {"wall_seconds", all.wall()},
                    {"seconds", parts(all)},
                    {"sessions", std::move(sessions)}};
  if (all.joules) {
    out["energy"] = {{"joules", *all.joules}, {"kwh", *all.joules / 3.6e6}};
    if (const auto each = all.joules_per_token()) out["energy"]["joules_per_token"] = *each;
  }
  return out;
}

RunNorms read_norms(FileSystem& files, const Path& path, std::vector<std::string>& problems) {
  RunNorms norms;
  JsonRows(files, path, problems).read_lists("tensors", [&](std::int64_t step, const io::Json& tensors) {
    norms.kinds.begin(step);
    norms.last.clear();
    std::map<std::string, KindNorms> layers;  // of each kind, at this look
    for (const io::Json& t : tensors) {
      if (!t.is_object() || text_or(t, "name").empty()) continue;
      const LastNorms& seen =
          norms.last.emplace_back(LastNorms{text_or(t, "name"), number_or(t, "gradient", kUnknown),
                                            number_or(t, "weight", kUnknown), number_or(t, "update", kUnknown)});
      const std::string kind = kind_of(seen.name);
      norms.kinds.of(kind);  // in the order of the file
      layers[kind].gradient.push_back(seen.gradient);
      layers[kind].weight.push_back(seen.weight);
      layers[kind].change.push_back(seen.change());
    }
    for (auto& [kind, of] : layers) {
      KindNorms& history = norms.kinds.of(kind);
      for (std::size_t c = 0; c < of.columns().size(); ++c)
        history.columns()[c]->back() = quantile(*of.columns()[c], 0.5);
    }
  });
  return norms;
}

std::string run_name(const Path& folder) {
  std::error_code error;
  Path whole = std::filesystem::absolute(folder, error).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  return whole.has_filename() ? whole.filename().string() : whole.string();
}

std::vector<Path> runs_of(FileSystem& files, const Path& folder) {
  std::vector<Path> runs;
  std::error_code unlisted;  // a folder that cannot be listed holds no run; whoever reads it says so
  if (!holds_run(files, folder))
    for (const auto& entry : std::filesystem::directory_iterator(folder, unlisted))
      if (holds_run(files, entry.path())) runs.push_back(entry.path());
  std::ranges::sort(runs);
  return runs.empty() ? std::vector{folder} : runs;
}

bool is_running(FileSystem& files, const Path& folder) {
  const Path lock = folder / ".lock";
  return files.exists(lock) && io::FileLock(lock, io::FileLock::IfBusy::leave).busy();
}

RunRecord read_run(FileSystem& files, const Path& given, const std::function<void(double)>& progress) {
  RunRecord run;
  run.folder = given.filename() == "metrics.jsonl" ? given.parent_path() : given;
  if (run.folder.empty()) run.folder = ".";
  run.name = run_name(run.folder);
  const Path metrics = run.folder / "metrics.jsonl", events = run.folder / "events.jsonl";
  if (!holds_run(files, run.folder)) {
    if (!files.exists(run.folder)) fail_user("{}: there is no such folder", given.string());
    fail_user(
        "{} holds no run: it has no metrics.jsonl, events.jsonl or config.toml; give the folder that redline train "
        "wrote (--out), or one that holds such folders",
        given.string());
  }
  run.running = is_running(files, run.folder);
  JsonRows(files, events, run.problems).read_objects([&](const io::Json& row) { return take_event(run, row); });
  if (files.exists(metrics)) {
    MetricsRow row;
    RowsInOrder rows(run);
    JsonRows(files, metrics, run.problems, progress).read([&](std::string_view text) {
      if (!row.read(text)) return false;
      rows.add(row);
      return true;
    });
    rows.end();
    if (run.rows() == 0) run.problems.push_back("metrics.jsonl holds no whole row of a step: there are no curves");
    report_missing_columns(run);
  } else {
    run.problems.push_back(
        "there is no metrics.jsonl (has it made a step, and is \"jsonl\" in log.sinks?): there are no curves");
  }
  accumulate(run);
  run.goodput = read_goodput(files, run.folder / "goodput.jsonl", run.problems);
  read_pipeline(files, run);
  read_samples(files, run);
  read_fp8(files, run);
  run.norms = read_norms(files, run.folder / "norms.jsonl", run.problems);
  read_routers(files, run);
  read_config(files, run);
  read_profile(files, run);
  return run;
}

void RunProgress::look() {
  events_.read([&](const io::Json& row) { take_event(row); });
  metrics_.read([&](const io::Json& row) { take_metrics(row); });
}

void RunProgress::take_event(const io::Json& row) {
  const std::string kind = text_or(row, "kind");
  if (kind == "started" || kind == "note") steps_ = integer_or(row, "steps", steps_);
  if (kind != "started") return;
  first_step_ = integer_or(row, "first_step", 0);
  first_time_ = number_or(row, "time", 0);
}

void RunProgress::take_metrics(const io::Json& row) {
  const std::int64_t step = integer_or(row, "step", 0);
  if (step <= 0) return;
  evaluations_.erase(evaluations_.lower_bound(step), evaluations_.end());  // the run went back, and made them anew
  step_ = step;
  loss_ = number_or(row, "loss", kUnknown);
  time_ = number_or(row, "time", time_);
  if (row.contains("eval_loss"))
    evaluations_[step] = number_or(row, "eval_loss", std::numeric_limits<double>::infinity());
}

double RunProgress::seconds_a_step() const {
  if (step_ <= first_step_ || time_ <= first_time_) return kUnknown;
  return (time_ - first_time_) / static_cast<double>(step_ - first_step_);
}

}  // namespace redline::report
