// One row for each, whether it was measured or not.
#include "cli/ladder_table.h"

#include <algorithm>
#include <cmath>

#include "base/words.h"
#include "io/json.h"
#include "report/bars.h"
#include "report/figures.h"
#include "report/page.h"

namespace redline::cli {
namespace {

using perf::LadderRow;
using perf::RowState;

constexpr int kBar = 16;  // characters of the longest bar

double most_tokens(const MeasuredTable& table) {
  double most = 0;
  for (const LadderRow& row : table.rows)
    if (row.state == RowState::measured) most = std::max(most, row.measured.tokens_per_s);
  return most;
}

std::string factor(double f) { return f > 0 ? fmt::format("x{:.2f}", f) : "-"; }

struct Cells {
  std::string step, rate, mfu, memory, energy, before, first;
};
Cells cells_of(const LadderRow& row) {
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
std::string why_not(const LadderRow& row) {
  if (row.state == RowState::not_separable)
    return fmt::format("not separable: saves {} a step by the plan ({})", report::bytes(row.saved_bytes), row.about);
  return fmt::format("{}: {}", perf::name_of(row.state), row.reason);
}

// The key that switches it, and what else is to be said.
std::string words(const LadderRow& row) {
  std::string text = fmt::format("{}", fmt::join(row.keys, " "));
  if (row.changes_loss) text += " (another loss)";
  if (!row.reason.empty()) text += fmt::format("{}{}", text.empty() ? "" : "; ", row.reason);
  return text;
}

// One line a name, the first of which has the keys of the whole naive step.
std::string short_words(const LadderRow& row) {
  constexpr std::size_t kKeys = 3;
  return row.keys.size() > kKeys ? (row.reason.empty() ? row.about : row.reason) : words(row);
}

}  // namespace

std::string to_text(const MeasuredTable& table) {
  std::size_t width = 4;
  bool befores = false, joules = false;  // columns that have something in them
  for (const LadderRow& row : table.rows) {
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
  for (const LadderRow& row : table.rows)
    out += row.state == RowState::measured ? line(row.name, report::bar(kBar * row.measured.tokens_per_s / most, true),
                                                  cells_of(row), short_words(row))
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
  for (const LadderRow& row : table.rows) {
    if (row.state != RowState::measured) {
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
  for (const LadderRow& row : table.rows) {
    io::Json out = {{"name", row.name},     {"keys", row.keys},
                    {"about", row.about},   {"state", perf::name_of(row.state)},
                    {"reason", row.reason}, {"changes_loss", row.changes_loss}};
    if (row.state == RowState::not_separable) out["saved_bytes"] = row.saved_bytes;
    if (row.state == RowState::measured) {
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

}  // namespace redline::cli
