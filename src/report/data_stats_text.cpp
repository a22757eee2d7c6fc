// Statistics in a terminal: lines of "name  value", a histogram of block characters, a table a row length.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/bars.h"
#include "report/data_stats.h"
#include "report/figures.h"

namespace redline::report {
namespace {

constexpr double kBarColumns = 48;

std::string histogram(const DataStats& stats, bool blocks) {
  const data::LengthSummary& s = stats.analysis.lengths;
  const std::int64_t row = stats.settings.shape.seq_len;
  std::int64_t most = 0;
  std::size_t width = 6;  // "tokens"
  for (const data::LengthBin& bin : s.bins) {
    most = std::max(most, bin.documents);
    width = std::max(width, 2 * fmt::formatted_size("{}", bin.to) + 3);
  }
  std::string out = fmt::format("\n{:>{}}  {:>9}  {:>9}\n", "tokens", width, "documents", "of tokens");
  const auto row_line = [&] { return fmt::format("{:>{}}  -- a row of {} ends here --\n", "", width, row); };
  for (const data::LengthBin& bin : s.bins) {
    if (&bin != s.bins.data() && bin.from > row && (&bin - 1)->from <= row) out += row_line();
    const double of_documents = static_cast<double>(bin.documents) / static_cast<double>(s.documents);
    const double of_tokens = static_cast<double>(bin.tokens) / static_cast<double>(s.tokens);
    const std::string range =
        bin.from == bin.to ? fmt::format("{}", bin.from) : fmt::format("{} - {}", bin.from, bin.to);
    out += fmt::format("{:>{}}  {:>9}  {:>9}  {}\n", range, width, percent(of_documents), percent(of_tokens),
                       bar(kBarColumns * static_cast<double>(bin.documents) / static_cast<double>(most), blocks));
  }
  return out;
}

std::string percentiles(const data::LengthSummary& s) {
  std::string out;
  for (std::size_t p = 0; p < data::kPercents.size(); ++p)
    out += fmt::format("p{} {}, ", data::kPercents[p], s.percentiles[p]);
  return out + fmt::format("max {}, mean {}", s.longest, plain(s.mean, 1));
}

std::string modes_table(const DataStats& stats, const data::RowLength& r) {
  const bool has_model = !stats.model.empty();
  std::string out = fmt::format("\n{:<14}  {:>12}  {:>10}  {:>14}  {:>{}}  {:>10}  {:>8}\n",
                                fmt::format("rows of {}", r.shape.seq_len), "rows", "tokens/row", "utilisation",
                                has_model ? "FLOPs wasted" : "wasted", has_model ? 19 : 6, "truncated", "speed-up");
  for (const data::ModeFigures& m : r.modes) {
    std::string wasted = percent(m.wasted / m.cost);
    if (has_model) wasted = fmt::format("{} ({})", flops(m.wasted), wasted);
    out += fmt::format("{:<14}  {:>12}  {:>10}  {:>14}  {:>{}}  {:>10}  {:>7.2f}x\n", data::name_of(m.packing),
                       grouped(m.rows), plain(m.tokens_per_row, 1), percent(m.utilisation), wasted, has_model ? 19 : 6,
                       count(static_cast<double>(m.truncated_tokens)), m.speedup_over_pad);
  }
  return out;
}

}  // namespace

std::string data_stats_text(const DataStats& stats, bool blocks) {
  const data::Analysis& a = stats.analysis;
  std::string out =
      fmt::format("data     {}: {}, {}{}\n", stats.survey.source, grouped(std::llround(a.documents), "document"),
                  stats.survey.exact ? "" : "about ", grouped(std::llround(a.tokens), "token"));
  if (const std::string s = sampling_sentence(stats); !s.empty()) out += paragraph("sample   ", s);
  if (const std::string s = caveat_sentence(stats); !s.empty()) out += paragraph("note     ", s);
  out += paragraph("length   ", percentiles(a.lengths));
  out += histogram(stats, blocks);
  out += "\n" + paragraph("shape    ", settings_sentence(stats));
  out += paragraph("counted  ", counting_sentence(stats));
  for (const data::RowLength& r : a.row_lengths) out += modes_table(stats, r);
  const bool any_long = std::ranges::any_of(a.row_lengths, [](const auto& r) { return r.tokens_beyond > 0; });
  if (any_long && !stats.settings.truncate)
    out += "\n" + paragraph("note     ",
                            "truncated: tokens that data.long_documents = \"truncate\" would drop; split, as here, "
                            "drops none. Shorter rows stand in batches of as many tokens.");
  out += "\n" + paragraph("buckets  ", buckets_sentence(stats));
  return out + "\n" + paragraph("advice   ", recommendation(stats));
}

}  // namespace redline::report
