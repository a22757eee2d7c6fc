// Fills page.html in: the data for its script, and the same as tables. A run's long curve becomes a thousand
// stretches, each with its mean, its least and its largest value: noise becomes a line, and every spike stays.
#include "report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <span>

#include "config/load.h"
#include "io/json.h"
#include "report/run_record.h"
#include "report/run_summary.h"
#include "report/watch.h"

namespace redline::report {

std::span<const config::EmbeddedFile> page_files();  // page.html and its scripts, embedded when building

namespace {

// Text made fit for HTML. Control characters, which it does not allow, become spaces.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7F ? ' ' : c;
    }
  }
  return out;
}

// Objects are rows with their keys. A few numbers of a long list say where it goes.
std::string tables(const io::Json& value) {
  constexpr std::size_t kNumbers = 9;
  if (value.is_string()) return escaped(value.get<std::string>());
  if (value.is_number_float() && std::isfinite(value.get<double>())) return fmt::format("{:.6g}", value.get<double>());
  if (!value.is_structured()) return value.is_number_integer() || value.is_boolean() ? value.dump() : "–";
  std::string out;
  if (value.is_object()) {
    for (const auto& [key, member] : value.items())
      out += fmt::format("<tr><td>{}</td><td>{}</td></tr>", escaped(key), tables(member));
    return "<table>" + out + "</table>";
  }
  const bool numbers = !value.empty() && value[0].is_number();
  const std::size_t shown = numbers ? std::min(value.size(), kNumbers) : value.size();
  for (std::size_t i = 0; i < shown; ++i)
    out += (i == 0 ? "" : numbers ? ", " : "\n") + tables(value[i == 0 ? 0 : i * (value.size() - 1) / (shown - 1)]);
  return out;
}

constexpr std::size_t kStretches = 1000, kMostEvents = 200, kMostSaves = 10, kMostStepTimes = 500, kMostSampled = 20;
constexpr std::size_t kWorst = 6, kMostTensors = 40;  // in eight bits: as curves, and in the table
constexpr std::size_t kMostNorms = 20;
constexpr std::size_t kMostLoads = 200'000, kFewestLooks = 8, kMostLooks = 80;  // of experts

// As many digits as can be seen. NaN stays, and JSON writes it as null.
double rounded(double value, int digits = 5) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10.0, digits - 1 - std::floor(std::log10(std::fabs(value))));
  return std::isfinite(scale) ? std::round(value * scale) / scale : 0;
}

// Stretch `s` is the rows from stretch_begin(s) to stretch_begin(s + 1).
std::size_t stretches(const RunRecord& run) { return std::min(run.rows(), kStretches); }
std::size_t stretch_begin(const RunRecord& run, std::size_t s) { return s * run.rows() / stretches(run); }

std::size_t stretch_of(const RunRecord& run, std::size_t row) { return ((row + 1) * stretches(run) - 1) / run.rows(); }

// The row of a step, or the next row where it has none, or the last. There must be a row.
std::size_t row_of(const RunRecord& run, std::int64_t step) {
  const auto row = std::ranges::lower_bound(run.steps, step);
  return std::min(static_cast<std::size_t>(row - run.steps.begin()), run.rows() - 1);
}

// The values that a curve shows of so many: the last of each stretch.
std::vector<std::size_t> some_of(std::size_t many, std::size_t most = kStretches) {
  std::vector<std::size_t> chosen(std::min(many, most));
  for (std::size_t s = 0; s < chosen.size(); ++s) chosen[s] = (s + 1) * many / chosen.size() - 1;
  return chosen;
}

// Where rows stand on each x axis.
io::Json places(const RunRecord& run, const std::vector<std::size_t>& rows) {
  io::Json step = io::Json::array(), tokens = io::Json::array(), time = io::Json::array();
  for (const std::size_t row : rows) {
    step.push_back(run.steps[row]);
    tokens.push_back(rounded(run.tokens_so_far[row], 6));
    time.push_back(rounded(run.seconds_so_far[row], 6));
  }
  return {{"step", std::move(step)}, {"tokens", std::move(tokens)}, {"time", std::move(time)}};
}

// Where looks at steps of their own stand. Nowhere, where the run has no rows.
io::Json places_of(const RunRecord& run, const std::vector<std::int64_t>& steps,
                   const std::vector<std::size_t>& looks) {
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < looks.size() && run.rows() > 0; ++i) rows.push_back(row_of(run, steps[looks[i]]));
  return places(run, rows);
}

// Null where no row has a value.
io::Json curve(const RunRecord& run, const std::vector<double>& values) {
  io::Json y = io::Json::array(), low = io::Json::array(), high = io::Json::array();
  bool any = false;
  for (std::size_t s = 0; s < stretches(run); ++s) {
    double sum = 0, n = 0, least = NAN, most = NAN;
    for (std::size_t row = stretch_begin(run, s); row < stretch_begin(run, s + 1); ++row) {
      if (!std::isfinite(values[row])) continue;
      sum += values[row];
      n += 1;
      least = std::fmin(least, values[row]);
      most = std::fmax(most, values[row]);
    }
    any = any || n > 0;
    y.push_back(rounded(sum / n));
    low.push_back(rounded(least));
    high.push_back(rounded(most));
  }
  if (!any) return nullptr;
  io::Json out = {{"y", std::move(y)}};
  if (run.rows() > kStretches) out.update({{"low", std::move(low)}, {"high", std::move(high)}});
  return out;
}

io::Json curves(const RunRecord& run) {
  io::Json all = io::Json::object();
  for (const Metric& m : kMetrics)
    if (m.panel.section != Section::none)
      if (io::Json of = curve(run, run.column(Column(m))); !of.is_null()) all[std::string(m.key)] = std::move(of);
  return all;
}

io::Json evaluations(const RunRecord& run, Column column) {
  std::vector<std::size_t> rows;
  io::Json losses = io::Json::array();
  for (std::size_t row = 0; row < run.rows(); ++row) {
    const double loss = run.column(column)[row];
    if (!std::isfinite(loss)) continue;
    rows.push_back(row);
    losses.push_back(rounded(loss));
  }
  io::Json out = places(run, rows);
  out["y"] = std::move(losses);
  return out;
}

// Figures of names that the run gave. Where there are many rows some are shown, the last among them.
io::Json named(const RunRecord& run) {
  io::Json all = io::Json::array();
  for (const NamedHistory& of : run.named) {
    if (!std::ranges::find(kNamedMetrics, of.key, &NamedMetric::key)->on_page) continue;
    std::vector<std::size_t> rows;
    io::Json y = io::Json::array();
    for (const std::size_t at : some_of(of.steps.size())) {
      rows.push_back(row_of(run, of.steps[at]));
      y.push_back(rounded(of.values[at]));
    }
    io::Json one = places(run, rows);
    one.update({{"key", of.key}, {"name", of.name}, {"y", std::move(y)}});
    if (!rows.empty()) all.push_back(std::move(one));
  }
  return all;
}

io::Json resumes(const RunRecord& run) {
  std::vector<std::size_t> rows;
  io::Json words = io::Json::array();
  for (const SessionStart& s : run.sessions) {
    const auto row = std::ranges::lower_bound(run.steps, s.first_step);
    if (s.first_step == 0 || row == run.steps.end()) continue;
    rows.push_back(static_cast<std::size_t>(row - run.steps.begin()));
    words.push_back(s.restart.empty() ? "resumed" : s.restart);
  }
  io::Json out = places(run, rows);
  out["text"] = std::move(words);
  return out;
}

// Updates that were not made, those of a stretch together. One is gone where the run has since begun at an earlier
// step: the curve is that of the steps made anew.
io::Json skips(const RunRecord& run) {
  struct Skips {
    std::size_t row;
    std::int64_t n;
    std::string_view text;  // of the last
  };
  std::map<std::pair<std::size_t, bool>, Skips> shown;  // by stretch, and whether they are gone
  std::size_t session = run.sessions.size();
  std::int64_t begun = std::numeric_limits<std::int64_t>::max();  // after this step, later than the event
  for (auto e = run.events.rbegin(); e != run.events.rend() && run.rows() > 0; ++e) {
    if (e->kind == "rolled_back") begun = std::min(begun, e->step);
    if (e->kind == "started") begun = std::min(begun, run.sessions[--session].first_step);
    if (e->kind != "skipped") continue;
    const std::size_t row = row_of(run, e->step);
    ++shown.try_emplace({stretch_of(run, row), e->step > begun}, Skips{row, 0, e->text}).first->second.n;
  }
  std::vector<std::size_t> rows;
  io::Json n = io::Json::array(), gone = io::Json::array(), text = io::Json::array();
  for (const auto& [key, of] : shown) {
    rows.push_back(of.row);
    n.push_back(of.n);
    gone.push_back(key.second);
    text.push_back(of.text);
  }
  io::Json out = places(run, rows);
  out.update({{"n", std::move(n)}, {"gone", std::move(gone)}, {"text", std::move(text)}});
  return out;
}

// The steps from which and to which the run went back, the last time first; of many, only the last ones.
io::Json went_back(const RunRecord& run) {
  std::vector<std::size_t> from, to;
  io::Json steps = io::Json::array();
  for (auto e = run.events.rbegin(); e != run.events.rend() && run.rows() > 0 && to.size() < kMostEvents; ++e) {
    if (e->kind != "rolled_back") continue;
    from.push_back(row_of(run, e->from));
    to.push_back(row_of(run, e->step));
    steps.push_back(e->from);
  }
  return {{"to", places(run, to)}, {"from", places(run, from)}, {"from_step", std::move(steps)}};
}

// In rising order; of many as many as a histogram needs.
io::Json step_times(const RunRecord& run) {
  std::vector<double> ms = run.column("step_ms");
  std::erase_if(ms, [](double v) { return !std::isfinite(v); });
  std::ranges::sort(ms);
  io::Json out = io::Json::array();
  const std::size_t n = std::min(ms.size(), kMostStepTimes);
  for (std::size_t i = 0; i < n; ++i) out.push_back(rounded(ms[(2 * i + 1) * ms.size() / (2 * n)]));
  return out;
}

// The steps that had samples; of many the first, the last and some between.
io::Json samples(const RunRecord& run) {
  std::vector<std::int64_t> steps;
  for (const Sample& s : run.samples)
    if (steps.empty() || steps.back() != s.step) steps.push_back(s.step);
  io::Json out = io::Json::array();
  const std::size_t n = std::min(steps.size(), kMostSampled);
  for (std::size_t i = 0; i < n; ++i)
    for (const Sample& s : run.samples)
      if (s.step == steps[i == 0 ? 0 : i * (steps.size() - 1) / (n - 1)])
        out.push_back({{"step", s.step}, {"prompt", s.prompt}, {"text", s.text}});
  return out;
}

model::Fp8Seen seen_at(const Fp8History& t, std::size_t look) {
  return {t.name,
          t.format == name_of(DType::e5m2) ? DType::e5m2 : DType::e4m3,
          t.scale[look],
          t.amax[look],
          t.saturated[look],
          t.zero[look]};
}

// The tensors in eight bits: shares of the few that were ever worst, look by look, and all of them at the last look,
// the worst first. Where there are many looks, a stretch of them shows its largest share.
io::Json fp8(const RunRecord& run) {
  const std::size_t looks = run.fp8.steps.size();
  if (looks == 0) return nullptr;
  const std::vector<std::size_t> shown = some_of(looks);
  std::vector<std::pair<double, const Fp8History*>> ever, now;
  for (const Fp8History& t : run.fp8.histories) {
    double most = NAN;
    for (std::size_t i = 0; i < looks; ++i)
      if (!std::isnan(t.scale[i])) most = std::fmax(most, fp8_trouble(seen_at(t, i)));
    if (!std::isnan(most)) ever.emplace_back(most, &t);
    if (!std::isnan(t.scale.back())) now.emplace_back(fp8_trouble(seen_at(t, looks - 1)), &t);
  }
  std::ranges::stable_sort(ever, std::greater(), [](const auto& of) { return of.first; });
  std::ranges::stable_sort(now, std::greater(), [](const auto& of) { return of.first; });
  const auto largest = [&](const std::vector<double>& values) {
    io::Json y = io::Json::array();
    std::size_t i = 0;
    for (const std::size_t last : shown) {
      double most = NAN;
      for (; i <= last; ++i) most = std::fmax(most, values[i]);
      y.push_back(rounded(most, 3));
    }
    return y;
  };
  io::Json worst = io::Json::array(), last = io::Json::array();
  for (const auto& [_, t] : std::span(ever).first(std::min(ever.size(), kWorst)))
    worst.push_back({{"name", t->name}, {"saturated", largest(t->saturated)}, {"zero", largest(t->zero)}});
  for (const auto& [trouble, t] : std::span(now).first(std::min(now.size(), kMostTensors)))
    last.push_back({{"name", t->name},
                    {"format", t->format},
                    {"scale", t->scale.back()},
                    {"amax", rounded(t->amax.back())},
                    {"saturated", rounded(t->saturated.back(), 3)},
                    {"zero", rounded(t->zero.back(), 3)},
                    {"outside", trouble > 1}});
  return {{"x", places_of(run, run.fp8.steps, shown)},
          {"worst", std::move(worst)},
          {"step", run.fp8.steps.back()},
          {"last", std::move(last)},
          {"left_out", now.size() - std::min(now.size(), kMostTensors)}};
}

// Loads of experts: of each look a list, layer after layer. Of many looks some are shown, the last among them.
io::Json loads(const RunRecord& run) {
  const RunRouters& all = run.routers;
  if (all.steps.empty() || run.rows() == 0) return nullptr;
  const std::size_t cells = all.layers.size() * all.experts();
  const std::vector<std::size_t> shown =
      some_of(all.steps.size(), std::clamp(kMostLoads / cells, kFewestLooks, kMostLooks));
  io::Json layers = io::Json::array(), looks = io::Json::array();
  for (const LayerLoads& of : all.layers) layers.push_back(of.layer);
  for (const std::size_t at : shown) {
    io::Json look = io::Json::array();
    for (const LayerLoads& of : all.layers)
      for (const float load : of.loads[at]) look.push_back(rounded(static_cast<double>(load), 3));
    looks.push_back(std::move(look));
  }
  return {{"x", places_of(run, all.steps, shown)},
          {"experts", all.experts()},
          {"layers", std::move(layers)},
          {"looks", std::move(looks)}};
}

// Newest first. Many checkpoints say no more than the last ones.
void add_events(io::Json& out, const RunRecord& run) {
  io::Json events = io::Json::array();
  std::size_t saves = 0;
  for (auto e = run.events.rbegin(); e != run.events.rend(); ++e)
    if (events.size() < kMostEvents && (e->kind != "checkpoint" || ++saves <= kMostSaves))
      events.push_back({{"time", e->time}, {"step", e->step}, {"kind", e->kind}, {"text", e->text}});
  out["events_left_out"] = run.events.size() - events.size();
  out["events"] = std::move(events);
}

io::Json run_data(const RunRecord& run, const RunSummary& summary) {
  io::Json out = to_json(run, summary);
  if (!run.sessions.empty()) {
    const SessionStart& s = run.sessions.back();
    // On a card the rest of its memory is worth seeing; a host has other things to do with its own.
    out.update({{"program", s.program},
                {"started", run.sessions.front().time},
                {"card_memory", s.card ? s.device_memory : 0},
                {"trained_on", s.trained_on},
                {"header", s.header}});
  }
  std::vector<std::size_t> last_rows;
  for (std::size_t s = 0; s < stretches(run); ++s) last_rows.push_back(stretch_begin(run, s + 1) - 1);
  out.update({{"x", places(run, last_rows)},
              {"curves", curves(run)},
              {"held_out", evaluations(run, "eval_loss")},
              {"held_out_average", evaluations(run, "eval_loss_average")},
              {"named", named(run)},
              {"resumes", resumes(run)},
              {"skips", skips(run)},
              {"went_back", went_back(run)},
              {"step_times", step_times(run)}});
  io::Json settings = io::Json::object();
  for (const auto& [key, value] : run.settings) settings[key] = value;
  if (run.pipeline) out["pipeline"] = *run.pipeline;
  if (run.profile) {
    out["profile"] = *run.profile;
    out["profile"].erase("nodes");  // there are thousands
  }
  if (io::Json seen = fp8(run); !seen.is_null()) out["fp8"] = std::move(seen);
  if (const std::vector<std::int64_t>& steps = run.norms.kinds.steps; !steps.empty()) {
    const std::vector<std::size_t> looks = some_of(steps.size());
    out["norms"] = norms_json(run.norms, looks);
    out["norms"]["x"] = places_of(run, steps, looks);
  }
  if (io::Json of = loads(run); !of.is_null()) out["loads"] = std::move(of);
  out["samples"] = samples(run);
  add_events(out, run);
  out.update({{"settings", std::move(settings)}, {"config", run.config_text}});
  return out;
}

// The plots of the table of metrics, in the order of the page.
io::Json panels() {
  std::vector<const Metric*> shown;
  for (const Metric& m : kMetrics)
    if (m.panel.section != Section::none) shown.push_back(&m);
  std::ranges::stable_sort(shown, {}, [](const Metric* m) { return std::pair(m->panel.section, m->panel.place); });
  constexpr std::string_view kSections[] = {"", "", "Speed", "Data", "Norms", "Experts", "Eight bits", "GPU"};
  io::Json out = io::Json::array();
  for (const Metric* m : shown)
    out.push_back({{"section", kSections[static_cast<std::size_t>(m->panel.section)]},
                   {"key", m->key},
                   {"title", m->panel.title},
                   {"figure", name_of(m->panel.figure)},
                   {"smooth", m->panel.is(kSmooth)},
                   {"zero", m->panel.is(kFromZero)},
                   {"wide", m->panel.is(kWide)},
                   {"evaluations", m->panel.is(kEvaluations)},
                   {"step_times", m->panel.is(kWithStepTimes)}});
  for (const NamedMetric& m : kNamedMetrics)
    if (m.panel.section != Section::none)
      out.push_back({{"section", kSections[static_cast<std::size_t>(m.panel.section)]},
                     {"key", m.key},
                     {"title", m.panel.title},
                     {"figure", name_of(m.panel.figure)},
                     {"zero", m.panel.is(kFromZero)},
                     {"named", true}});
  return out;
}

}  // namespace

io::Json norms_json(const RunNorms& norms, const std::vector<std::size_t>& looks) {
  const auto at_looks = [&](const std::vector<double>& values) {
    io::Json y = io::Json::array();
    for (const std::size_t look : looks) y.push_back(rounded(values[look], 4));
    return y;
  };
  io::Json kinds = io::Json::array(), largest = io::Json::array();
  for (const KindNorms& of : norms.kinds.histories)
    kinds.push_back({{"kind", of.name},
                     {"gradient", at_looks(of.gradient)},
                     {"weight", at_looks(of.weight)},
                     {"change", at_looks(of.change)}});
  std::vector<LastNorms> last = norms.last;
  const auto change = [](const LastNorms& t) { return std::isnan(t.change()) ? -1 : t.change(); };
  std::ranges::stable_sort(last, std::greater(), change);
  const std::size_t shown = std::min(last.size(), kMostNorms);
  for (const LastNorms& t : std::span(last).first(shown))
    largest.push_back({{"name", t.name},
                       {"gradient", rounded(t.gradient, 4)},
                       {"weight", rounded(t.weight, 4)},
                       {"update", rounded(t.update, 4)},
                       {"change", rounded(t.change(), 4)}});
  return {{"step", norms.kinds.steps.back()},
          {"kinds", std::move(kinds)},
          {"largest", std::move(largest)},
          {"left_out", last.size() - shown}};
}

std::string page(std::string_view title, io::Json drawing, const io::Json& data) {
  drawing.update(data);
  std::string json;  // "<" is written so that no text can end the element
  for (const char c : drawing.dump(-1, ' ', false, io::Json::error_handler_t::replace))
    c == '<' ? json += "\\u003c" : json += c;
  const auto files = page_files();
  std::string_view rest = files[0].text;
  std::string out;
  const bool follows = drawing.contains("follow");
  std::string script = std::string(files[1].text).append(files[2].text);
  if (follows) script.append(files[3].text);
  const std::pair<std::string_view, std::string> places[] = {{"@connect@", follows ? " connect-src 'self';" : ""},
                                                             {"@title@", escaped(title)},
                                                             {"@title@", escaped(title)},
                                                             {"@tables@", tables(data)},
                                                             {"@data@", std::move(json)},
                                                             {"@script@", std::move(script)}};
  for (const auto& [place, text] : places) {
    const std::size_t at = rest.find(place);
    out.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + place.size());
  }
  return out.append(rest);
}

std::string run_page(const std::vector<RunRecord>& runs, const std::vector<RunSummary>& summaries,
                     const std::vector<std::string>& unreadable, const Followed* followed) {
  io::Json all = io::Json::array(), figures = io::Json::array();
  for (std::size_t r = 0; r < runs.size(); ++r) all.push_back(run_data(runs[r], summaries[r]));
  for (const SummaryFigure& f : kSummary)
    if (!f.title.empty()) figures.push_back({{"key", f.key}, {"title", f.title}, {"figure", name_of(f.figure)}});
  std::string title = runs.size() > 3 ? fmt::format("{} runs", runs.size()) : "";
  for (std::size_t r = 0; r < runs.size() && runs.size() <= 3; ++r) title += (r ? ", " : "") + runs[r].name;
  io::Json drawing = {{"page", "runs"}, {"title", title}, {"figures", std::move(figures)}, {"panels", panels()}};
  if (followed)
    drawing["follow"] = {{"state", followed->state}, {"written", followed->written}, {"can_stop", followed->can_stop}};
  return page(title + " – redline", std::move(drawing), {{"unreadable", unreadable}, {"runs", std::move(all)}});
}

}  // namespace redline::report
