// Puts the page together, from what one asks first to what one looks up.
#include "report/run_page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

#include "base/counted.h"
#include "device/gpu_monitor.h"
#include "report/figures.h"
#include "report/html.h"

namespace redline::report {
namespace {

constexpr std::size_t kMostEvents = 200;

std::string known(double value, const std::function<std::string(double)>& write) {
  return std::isnan(value) ? "–" : write(value);
}
std::string four_digits(double v) { return plain(v, 4); }
std::string chip(std::size_t run) { return fmt::format("<span class=\"chip k{}\"></span>", run_colour(run)); }

std::string when(double time) {
  if (!(time > 0) || time > 32e9) return "";
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(time)));
}

std::string state_mark(const std::string& state) {
  const char* mood = state == "finished" ? "good" : state == "failed" ? "bad" : "open";
  return fmt::format("<span class=\"state {}\">{}</span>", mood, escaped(state));
}

std::string names_of(const Runs& runs) {
  if (runs.size() > 3) return fmt::format("{} runs", runs.size());
  std::string names;
  for (const RunRecord& run : runs) names += (names.empty() ? "" : ", ") + run.name;
  return names;
}

std::string heading(const Runs& runs, const std::vector<RunSummary>& summaries) {
  std::string out = "<header>\n";
  if (runs.size() == 1) {
    out += fmt::format("<h1>{}{}</h1>\n", escaped(runs[0].name), state_mark(summaries[0].state));
    if (!runs[0].sessions.empty()) {
      const SessionStart& s = runs[0].sessions.back();
      out += fmt::format("<p class=\"quiet\">{} parameters on {}, data: {}</p>\n",
                         escaped(count(static_cast<double>(s.parameters))), escaped(s.device), escaped(s.data));
      out += fmt::format("<p class=\"quiet\">{}, started {} UTC</p>\n", escaped(s.program),
                         when(runs[0].sessions.front().time));
    }
  } else {
    out += fmt::format("<h1>{}</h1>\n", escaped(names_of(runs)));
    std::string folders;
    for (const RunRecord& run : runs) folders += (folders.empty() ? "" : ", ") + run.folder.string();
    out += fmt::format("<p class=\"quiet\">{}</p>\n", escaped(folders));
  }
  return out + "</header>\n";
}

std::string problems(const Runs& runs, const std::vector<std::string>& unreadable) {
  std::string items;
  for (const std::string& sentence : unreadable) items += "<li>" + escaped(sentence) + "</li>\n";
  for (const RunRecord& run : runs)
    for (const std::string& sentence : run.problems)
      items += fmt::format("<li>{}{}</li>\n", runs.size() > 1 ? escaped(run.name) + ": " : "", escaped(sentence));
  return items.empty() ? "" : "<div class=\"note bad\">Not everything could be read.<ul>\n" + items + "</ul></div>\n";
}

struct Row {
  std::string name;
  std::function<std::string(const RunSummary&)> value;
};

std::string of_steps(const RunSummary& s) {
  return s.of > 0 ? fmt::format("{} of {}", grouped(s.steps), grouped(s.of)) : grouped(s.steps);
}

// The same figures as tiles of one run and as the rows of several.
std::vector<Row> rows() {
  std::vector<Row> all = {{"loss, last 20 steps", [](const auto& s) { return known(s.last_loss, four_digits); }},
                          {"held-out loss, last", [](const auto& s) { return known(s.last_eval, four_digits); }},
                          {"held-out loss, best", [](const auto& s) { return known(s.best_eval, four_digits); }},
                          {"steps", of_steps},
                          {"tokens", [](const auto& s) { return count(s.tokens); }},
                          {"time trained", [](const auto& s) { return duration(s.seconds); }}};
  for (const SummaryFigure& f : kSummary)
    if (!f.title.empty())
      all.push_back({std::string(f.title), [&f](const auto& s) { return known(s.figure(SummaryKey(f)), f.written); }});
  return all;
}

std::string extrapolated(const Extrapolation& e) {
  return fmt::format("{} {} at this pace", short_count(e.tokens), noun_for(e.tokens, "token"));
}

std::string tiles(const RunSummary& s) {
  std::string out = "<div class=\"tiles\">\n";
  for (const Row& row : rows())
    out +=
        fmt::format("<div class=\"tile\"><span>{}</span><b>{}</b></div>\n", escaped(row.name), escaped(row.value(s)));
  for (const Extrapolation& e : s.extrapolations)
    out += fmt::format("<div class=\"tile\"><span>{}</span><b>{}</b></div>\n", escaped(extrapolated(e)),
                       escaped(known(e.seconds, duration)));
  return out + "</div>\n";
}

std::string comparison(const Runs& runs, const std::vector<RunSummary>& summaries) {
  std::string out = "<div class=\"wide\"><table>\n<thead><tr><th></th>";
  for (std::size_t r = 0; r < runs.size(); ++r) out += fmt::format("<th>{}{}</th>", chip(r), escaped(runs[r].name));
  out += "</tr></thead>\n<tbody>\n<tr><td>state</td>";
  for (const RunSummary& s : summaries) out += "<td>" + escaped(s.state) + "</td>";
  out += "</tr>\n";
  const auto line = [&](const std::string& name, const std::function<std::string(const RunSummary&)>& value) {
    out += "<tr><td>" + escaped(name) + "</td>";
    for (const RunSummary& s : summaries) out += "<td>" + escaped(value(s)) + "</td>";
    out += "</tr>\n";
  };
  for (const Row& row : rows()) line(row.name, row.value);
  for (std::size_t e = 0; e < summaries[0].extrapolations.size(); ++e)
    line(extrapolated(summaries[0].extrapolations[e]),
         [e](const RunSummary& s) { return known(s.extrapolations[e].seconds, duration); });
  return out + "</tbody>\n</table></div>\n";
}

std::string toolbar(const Runs& runs) {
  std::string names;
  for (std::size_t r = 0; r < runs.size(); ++r)
    names += fmt::format("<span>{}{}</span>\n", chip(r), escaped(runs[r].name));
  return "<div class=\"bar\"><div class=\"runs\">\n" + names +
         "</div><div class=\"switch\"><label for=\"x-step\">steps</label><label for=\"x-tokens\">tokens</label>"
         "<label for=\"x-time\">time</label></div></div>\n";
}

std::string section(const std::string& title, const std::string& content) {
  return content.empty() ? "" : "<h2>" + title + "</h2>\n" + content;
}

std::string grid(const std::string& cards) {
  return cards.empty() ? "" : "<div class=\"grid\">\n" + cards + "</div>\n";
}

std::string pipeline(const Runs& runs) {
  std::string out;
  for (const RunRecord& run : runs) {
    if (run.stages.empty()) continue;
    Table t{{run.name + ", stage", "threads", "tokens/s", "busy", "waiting"}, {}};
    for (const StageMean& s : run.stages)
      t.rows.push_back(
          {s.name, fmt::format("{:.3g}", s.threads), count(s.tokens_per_s), percent(s.busy), percent(s.waiting)});
    out += fmt::format("<p>{} of the data pipeline; the others waited most for <b>{}</b>.</p>\n",
                       counted(run.pipeline_intervals, "interval"), escaped(run.slowest_stage));
    out += table(t);
  }
  return out;
}

std::string gpu(const Runs& runs, const std::vector<RunSummary>& summaries) {
  std::string words;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (!(summaries[r].throttled > 0)) continue;
    std::string reasons;
    for (const std::string& reason : runs[r].throttle_reasons) reasons += (reasons.empty() ? "" : "; ") + reason;
    words += fmt::format("<p>{}: the card held its clocks down at {} of the steps ({}{}).</p>\n", escaped(runs[r].name),
                         escaped(percent(summaries[r].throttled)), escaped(reasons),
                         reasons == device::kPowerCap ? ", which is normal under full load" : "");
  }
  return grid(curves(runs, Section::gpu)) + words;
}

std::string events(const Runs& runs) {
  struct Told {
    std::size_t run;
    const Event* event;
  };
  std::vector<Told> all;
  std::size_t left_out = 0;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    // Many checkpoints say no more than the last ones.
    const auto saves = static_cast<std::size_t>(std::ranges::count(runs[r].events, "checkpoint", &Event::kind));
    std::size_t seen = 0;
    for (const Event& e : runs[r].events) {
      if (e.kind == "checkpoint" && seen++ + 10 < saves)
        ++left_out;
      else
        all.push_back({r, &e});
    }
  }
  if (all.empty()) return {};
  std::ranges::stable_sort(all, {}, [](const Told& t) { return t.event->time; });
  if (all.size() > kMostEvents) {
    left_out += all.size() - kMostEvents;
    all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(kMostEvents));
  }
  std::string out =
      "<div class=\"wide\"><table "
      "class=\"events\">\n<thead><tr><th>UTC</th><th>step</th><th>what</th><th></th></tr></thead>\n<tbody>\n";
  for (const Told& t : all)
    out += fmt::format("<tr><td>{}</td><td>{}</td><td><span class=\"kind is-{}\">{}</span></td><td>{}{}</td></tr>\n",
                       when(t.event->time), grouped(t.event->step), escaped(t.event->kind), escaped(t.event->kind),
                       runs.size() > 1 ? chip(t.run) : "", escaped(t.event->text));
  out += "</tbody>\n</table></div>\n";
  if (left_out > 0) out += fmt::format("<p class=\"quiet\">{} more in events.jsonl, before these.</p>\n", left_out);
  return out;
}

// Keys that runs set differently, then everything.
std::string settings(const Runs& runs) {
  std::string out;
  if (runs.size() > 1) {
    std::vector<std::string> keys;  // in the order of the files
    std::vector<std::map<std::string, std::string>> values(runs.size());
    for (std::size_t r = 0; r < runs.size(); ++r)
      for (const auto& [key, value] : runs[r].settings) {
        values[r][key] = value;
        if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
      }
    std::string different;
    for (const std::string& key : keys) {
      std::string cells;
      bool same = true;
      for (std::size_t r = 0; r < runs.size(); ++r) {
        const auto it = values[r].find(key);
        const std::string value = it == values[r].end() ? "–" : it->second;
        const auto first = values[0].find(key);
        same = same && (first == values[0].end() ? "–" : first->second) == value;
        cells += "<td>" + escaped(value) + "</td>";
      }
      if (!same) different += "<tr><td>" + escaped(key) + "</td>" + cells + "</tr>\n";
    }
    if (different.empty()) {
      out += "<p>All runs have the same settings.</p>\n";
    } else {
      out += "<p>What differs:</p>\n<div class=\"wide\"><table class=\"settings\">\n<thead><tr><th></th>";
      for (std::size_t r = 0; r < runs.size(); ++r) out += "<th>" + chip(r) + escaped(runs[r].name) + "</th>";
      out += "</tr></thead>\n<tbody>\n" + different + "</tbody>\n</table></div>\n";
    }
  }
  for (const RunRecord& run : runs) {
    if (!run.sessions.empty() && !run.sessions.back().header.empty()) {
      std::string lines;
      for (const std::string& line : run.sessions.back().header) lines += line + "\n";
      const std::string block = "<pre>" + escaped_lines(lines) + "</pre>\n";
      out += runs.size() == 1 ? block
                              : fmt::format("<details><summary>{}: what was chosen</summary>{}</details>\n",
                                            escaped(run.name), block);
    }
    if (!run.config_text.empty())
      out += fmt::format("<details><summary>{}: the whole config.toml</summary><pre>{}</pre></details>\n",
                         escaped(run.name), escaped_lines(run.config_text));
  }
  return out;
}

}  // namespace

std::string run_page(const Runs& runs, const std::vector<RunSummary>& summaries,
                     const std::vector<std::string>& unreadable) {
  const bool any_rows = std::ranges::any_of(runs, [](const RunRecord& r) { return r.rows() > 0; });
  std::string body =
      "<input class=\"x\" type=\"radio\" name=\"x\" id=\"x-step\" aria-label=\"over steps\" checked/>"
      "<input class=\"x\" type=\"radio\" name=\"x\" id=\"x-tokens\" aria-label=\"over tokens\"/>"
      "<input class=\"x\" type=\"radio\" name=\"x\" id=\"x-time\" aria-label=\"over time\"/>\n<main>\n";
  body += heading(runs, summaries) + problems(runs, unreadable);
  if (any_rows) {
    body += runs.size() == 1 ? tiles(summaries[0]) : comparison(runs, summaries);
    body += toolbar(runs);
  }
  body += grid(curves(runs, Section::top)) + section("Speed", grid(curves(runs, Section::speed)));
  std::string profiles;
  for (const RunRecord& run : runs)
    if (run.profile) profiles += profile_bars(run);
  body += section("Where the time goes", grid(profiles));
  body += section("Memory", grid(memory_bars(runs)));
  body += section("Data", grid(curves(runs, Section::data)) + pipeline(runs));
  body += section("GPU", gpu(runs, summaries));
  body += section("What happened", events(runs));
  body += section("Settings", settings(runs));
  body +=
      "<footer>Means of speeds are over time and leave out each session's first 3 steps. Faint lines are single steps, "
      "strong ones their running mean. Made by redline report.</footer>\n</main>\n";
  return page(names_of(runs) + " – redline", body, kRunPageStyle, kRunPageScript);
}

}  // namespace redline::report
