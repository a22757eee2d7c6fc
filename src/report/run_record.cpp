// Reads line by line; every line stands for itself.
#include "report/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/files.h"
#include "base/words.h"
#include "config/toml.h"
#include "report/json_rows.h"
#include "report/rows_file.h"

namespace redline::report {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

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
void tell_of_missing_columns(RunRecord& run) {
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
  const auto card = row.find("card");  // which earlier versions did not write
  s.card = card != row.end() && card->is_boolean() ? card->get<bool>() : !s.device.starts_with("CPU");
  if (const auto memory = row.find("memory"); memory != row.end() && memory->is_object())
    for (const auto& entry : memory->items())
      if (const double bytes = number_or(*memory, entry.key(), 0); bytes > 0) s.memory.emplace_back(entry.key(), bytes);
  if (const auto header = row.find("header"); header != row.end() && header->is_array())
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
    e.text = s.first_step > 0 ? fmt::format("resumed after step {} on {}", s.first_step, s.device)
                              : fmt::format("started on {}", s.device);
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
    const auto stages = row.find("stages");
    if (stages == row.end() || !stages->is_array()) return false;
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
  run.pipeline = {{"intervals", intervals}, {"slowest", most->first}, {"stages", std::move(means)}};
}

void read_samples(FileSystem& files, RunRecord& run) {
  const auto take = [&](const io::Json& row) {
    const auto samples = row.find("samples");
    const std::int64_t step = integer_or(row, "step", -1);
    if (step < 0 || samples == row.end() || !samples->is_array()) return false;
    while (!run.samples.empty() && run.samples.back().step >= step) run.samples.pop_back();  // as for metrics
    for (const io::Json& sample : *samples)
      if (sample.is_object()) run.samples.push_back({step, text_or(sample, "prompt"), text_or(sample, "text")});
    return true;
  };
  JsonRows(files, run.folder / "samples.jsonl", run.problems).read_objects(take);
}

void read_fp8(FileSystem& files, RunRecord& run) {
  const auto resize = [&] {
    for (Fp8History& of : run.fp8)
      for (auto* values : {&of.scale, &of.amax, &of.saturated, &of.zero})
        values->resize(run.fp8_steps.size(), kUnknown);
  };
  std::map<std::string, std::size_t, std::less<>> index;
  const auto take = [&](const io::Json& row) {
    const auto tensors = row.find("tensors");
    const std::int64_t step = integer_or(row, "step", -1);
    if (step < 0 || tensors == row.end() || !tensors->is_array()) return false;
    while (!run.fp8_steps.empty() && run.fp8_steps.back() >= step) run.fp8_steps.pop_back();  // as for metrics
    resize();                                                                                 // what is taken back goes
    run.fp8_steps.push_back(step);
    resize();
    for (const io::Json& t : *tensors) {
      if (!t.is_object() || text_or(t, "name").empty()) continue;
      const auto [it, is_new] = index.try_emplace(text_or(t, "name"), run.fp8.size());
      if (is_new) run.fp8.push_back({it->first, text_or(t, "format"), {}, {}, {}, {}});
      if (is_new) resize();
      Fp8History& of = run.fp8[it->second];
      of.scale.back() = number_or(t, "scale", kUnknown);
      of.amax.back() = number_or(t, "amax", kUnknown);
      of.saturated.back() = number_or(t, "saturated", kUnknown);
      of.zero.back() = number_or(t, "zero", kUnknown);
    }
    return true;
  };
  JsonRows(files, run.folder / "fp8.jsonl", run.problems).read_objects(take);
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
    if (profile.is_object() && profile.contains("kinds") && profile["kinds"].is_array())
      run.profile = std::move(profile);
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
    tell_of_missing_columns(run);
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
  read_config(files, run);
  read_profile(files, run);
  return run;
}

}  // namespace redline::report
