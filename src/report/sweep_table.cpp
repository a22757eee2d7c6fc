// Columns as wide as what they hold; numbers stand to the right.
#include "report/sweep_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/words.h"
#include "io/json.h"
#include "report/figures.h"

namespace redline::report {
namespace {

constexpr std::string_view kSeed = "train.seed";

// Characters, not bytes: "±" is one.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

using Cells = std::vector<std::string>;

// The first row is the head. The last column is words, and stands to the left.
std::string aligned(const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const Cells& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  std::string out;
  for (const Cells& row : rows) {
    for (std::size_t c = 0; c + 1 < row.size(); ++c) out += std::string(widths[c] - width(row[c]), ' ') + row[c] + "  ";
    out += row.back() + "\n";
  }
  return out;
}

std::string loss(double value) { return std::isnan(value) ? "-" : plain(value, 4); }

std::string in_words(const SweepRow& row) {
  if (row.state == "hopeless" || row.state == "diverged") return fmt::format("{} at step {}", row.state, row.steps);
  return row.state;
}

Cells head_of(const SweepTable& table, bool seeds) {
  Cells head;
  for (std::size_t k = 0; k < table.keys.size(); ++k)
    if (seeds || table.keys[k] != kSeed) head.push_back(table.titles[k]);
  return head;
}

// A cell of a CSV file, quoted where needed.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == text.npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + '"';
}
std::string csv_cell(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }

std::string csv_line(const Cells& cells) { return fmt::format("{}\n", fmt::join(cells, ",")); }

}  // namespace

std::optional<std::size_t> SweepTable::best() const {
  std::optional<std::size_t> found;
  for (std::size_t r = 0; r < rows.size(); ++r)
    if (rows[r].finished() && std::isfinite(rows[r].eval_loss) &&
        (!found || rows[r].eval_loss < rows[*found].eval_loss))
      found = r;
  return found;
}

bool SweepTable::held_out() const { return std::ranges::none_of(rows, &SweepRow::trained_on); }

std::vector<SweepGroup> seed_groups(const SweepTable& table) {
  std::vector<SweepGroup> groups;
  std::map<std::string, std::size_t> index;
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    const auto [it, is_new] = index.try_emplace(table.rows[r].group, groups.size());
    if (is_new) groups.emplace_back();
    groups[it->second].rows.push_back(r);
  }
  if (groups.size() == table.rows.size()) return {};
  for (SweepGroup& group : groups) {
    double n = 0, sum = 0, squares = 0;
    const auto each = [&](auto add) {
      for (const std::size_t r : group.rows)
        if (table.rows[r].finished() && std::isfinite(table.rows[r].eval_loss)) add(table.rows[r].eval_loss);
    };
    each([&](double v) { n += 1, sum += v; });
    if (n > 0) group.mean = sum / n;
    each([&](double v) { squares += (v - group.mean) * (v - group.mean); });
    if (n > 1) group.deviation = std::sqrt(squares / (n - 1));
  }
  return groups;
}

std::vector<std::string> unlike_in_words(const SweepTable& table) {
  constexpr double kAlike = 0.02;  // packing fills the last batches otherwise
  const auto spread = [&](double SweepRow::*figure, double alike) -> std::optional<std::pair<double, double>> {
    double least = kUnknown, most = kUnknown;
    for (const SweepRow& run : table.rows) {
      if (!run.finished() || std::isnan(run.*figure)) continue;
      least = std::isnan(least) ? run.*figure : std::min(least, run.*figure);
      most = std::isnan(most) ? run.*figure : std::max(most, run.*figure);
    }
    if (std::isnan(least) || most - least <= alike * most) return {};
    return std::pair(least, most);
  };
  std::vector<std::string> sentences;
  if (const auto tokens = spread(&SweepRow::tokens, kAlike))
    sentences.push_back(fmt::format(
        "the runs were trained on {} to {}, and their losses are not compared at equal tokens: train.max_tokens in "
        "place of train.max_steps gives all of them as many",
        count(tokens->first), count(tokens->second, "token")));
  if (const auto tokens = spread(&SweepRow::eval_tokens, 0))
    sentences.push_back(
        fmt::format("held-out losses cover {} to {}, and not the same ones: train.eval_tokens in place of "
                    "train.eval_batches covers "
                    "the same ones in all runs of one train.seq_len",
                    grouped(std::llround(tokens->first)), grouped(std::llround(tokens->second), "token")));
  if (!table.held_out())
    sentences.push_back(
        "the runs were evaluated on what they were trained on: the lowest loss is that of the run which learned its "
        "own text best, not of the best setting; let data.eval name other text");
  return sentences;
}

std::string to_text(const SweepTable& table) {
  const std::optional<std::size_t> best = table.best();
  std::vector<Cells> rows = {head_of(table, true)};
  rows[0].insert(rows[0].end(), {table.held_out() ? "held out  " : "evaluated  ", "loss", "steps", "tokens", "time",
                                 "tok/s", "state"});
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    const SweepRow& run = table.rows[r];
    Cells row = run.values;
    const bool began = run.steps > 0;
    row.push_back(loss(run.eval_loss) + (best == r ? " *" : "  "));
    row.push_back(loss(run.loss));
    row.push_back(!began                          ? "-"
                  : run.finished() || run.of == 0 ? grouped(run.steps)
                                                  : grouped(run.steps) + "/" + grouped(run.of));
    row.push_back(began ? count(run.tokens) : "-");
    row.push_back(began ? duration(run.seconds) : "-");
    const std::string rate = token_rate(run.tokens_per_s);  // "3.10k tok/s", of which the head has the unit
    row.push_back(std::isnan(run.tokens_per_s) ? "-" : rate.substr(0, rate.find(" tok")));
    row.push_back(in_words(run));
    rows.push_back(std::move(row));
  }
  return aligned(rows);
}

std::string groups_to_text(const SweepTable& table) {
  const std::vector<SweepGroup> groups = seed_groups(table);
  if (groups.empty()) return {};
  const auto best = std::ranges::min_element(groups, {}, [](const SweepGroup& g) {
    return std::isnan(g.mean) ? std::numeric_limits<double>::infinity() : g.mean;
  });
  std::vector<Cells> rows = {head_of(table, false)};
  rows[0].insert(rows[0].end(), {table.held_out() ? "held out  " : "evaluated  ", "seeds that finished"});
  for (auto g = groups.begin(); g != groups.end(); ++g) {
    Cells row;
    for (std::size_t k = 0; k < table.keys.size(); ++k)
      if (table.keys[k] != kSeed) row.push_back(table.rows[g->rows[0]].values[k]);
    std::string mean = loss(g->mean);
    if (!std::isnan(g->deviation)) mean += " ± " + loss(g->deviation);
    row.push_back(mean + (g == best && !std::isnan(g->mean) ? " *" : "  "));
    const auto finished = std::ranges::count_if(g->rows, [&](std::size_t r) { return table.rows[r].finished(); });
    row.push_back(fmt::format("{} of {}", finished, g->rows.size()));
    rows.push_back(std::move(row));
  }
  return "Over seeds, mean ± standard deviation:\n" + aligned(rows);
}

std::string to_csv(const SweepTable& table) {
  const std::optional<std::size_t> best = table.best();
  Cells head = {"run"};
  for (const std::string& key : table.keys) head.push_back(csv_cell(key));
  head.insert(head.end(), {"eval_loss", "eval_tokens", "best", "loss", "steps", "steps_asked", "tokens", "seconds",
                           "tokens_per_s", "state", "why"});
  std::string out = csv_line(head);
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    const SweepRow& run = table.rows[r];
    Cells row = {csv_cell(run.name)};
    for (const std::string& value : run.values) row.push_back(csv_cell(value));
    row.insert(row.end(),
               {csv_cell(run.eval_loss), csv_cell(run.eval_tokens), best == r ? "1" : "0", csv_cell(run.loss),
                fmt::format("{}", run.steps), fmt::format("{}", run.of), csv_cell(run.tokens), csv_cell(run.seconds),
                csv_cell(run.tokens_per_s), csv_cell(run.state), csv_cell(run.why)});
    out += csv_line(row);
  }
  return out;
}

io::Json to_json(const SweepTable& table) {
  const auto values_of = [&](const SweepRow& run, bool seeds) {
    io::Json values = io::Json::object();
    for (std::size_t k = 0; k < table.keys.size(); ++k)
      if (seeds || table.keys[k] != kSeed) {
        const io::Json value = io::Json::parse(run.values[k], nullptr, false);  // TOML writes most values alike
        values[table.keys[k]] = value.is_discarded() ? io::Json(run.values[k]) : value;
      }
    return values;
  };
  io::Json runs = io::Json::array(), groups = io::Json::array();
  for (const SweepRow& run : table.rows)
    runs.push_back({{"run", run.name},
                    {"folder", run.folder},
                    {"values", values_of(run, true)},
                    {"state", run.state},
                    {"why", run.why},
                    {"eval_loss", run.eval_loss},
                    {"eval_tokens", run.eval_tokens},
                    {"trained_on", run.trained_on},
                    {"loss", run.loss},
                    {"steps", run.steps},
                    {"steps_asked", run.of},
                    {"tokens", run.tokens},
                    {"seconds", run.seconds},
                    {"tokens_per_s", run.tokens_per_s}});
  for (const SweepGroup& group : seed_groups(table)) {
    io::Json names = io::Json::array();
    for (const std::size_t r : group.rows) names.push_back(table.rows[r].name);
    groups.push_back({{"values", values_of(table.rows[group.rows[0]], false)},
                      {"runs", std::move(names)},
                      {"mean_eval_loss", group.mean},
                      {"deviation", group.deviation}});
  }
  const std::optional<std::size_t> best = table.best();
  return {{"runs", std::move(runs)},
          {"groups", std::move(groups)},
          {"best", best ? io::Json(table.rows[*best].name) : io::Json()},
          {"unlike", unlike_in_words(table)}};
}

}  // namespace redline::report
