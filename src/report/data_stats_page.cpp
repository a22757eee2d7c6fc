// Statistics as one page of HTML: the advice, the spread of lengths, what each way of packing makes of a row.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/data_stats.h"
#include "report/figures.h"
#include "report/html.h"
#include "report/svg.h"

namespace redline::report {
namespace {

using data::ModeFigures;

constexpr std::size_t kDocumentsColour = 4, kTokensColour = 5;  // none of those of the modes

std::size_t colour_of(data::Packing packing) {
  return static_cast<std::size_t>(std::ranges::find(data::kPackings, packing) - data::kPackings.begin());
}

double share(std::int64_t part, std::int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

std::string whole_number(double value) { return fmt::format("{:.0f}", value); }
std::string whole_percent(double value) { return fmt::format("{:.4g}%", 100 * value); }

// With a capital and a full stop.
std::string paragraph(std::string words, const char* kind = "quiet") {
  if (words.empty()) return {};
  if (words[0] >= 'a' && words[0] <= 'z') words[0] = static_cast<char>(words[0] - 'a' + 'A');
  if (!words.ends_with('.')) words += '.';
  return fmt::format("<p class=\"{}\">{}</p>\n", kind, escaped(words));
}

std::string plot(const std::string& svg) { return "<div class=\"wide\">" + svg + "</div>\n"; }

std::string figure(const std::string& value, const std::string& name) {
  return fmt::format("<div><b>{}</b><span>{}</span></div>\n", escaped(value), escaped(name));
}

std::string overview(const DataStats& stats) {
  const data::LengthSummary& s = stats.analysis.lengths;
  std::string out = "<div class=\"figures\">\n";
  out += figure(grouped(std::llround(stats.analysis.documents)), "documents");
  out += figure(grouped(std::llround(stats.analysis.tokens)), stats.survey.exact ? "tokens" : "tokens, about");
  out += figure(plain(s.mean, 1), "mean length");
  out += figure(grouped(s.percentiles[3]), "median");
  out += figure(grouped(s.longest), "longest");
  return out + "</div>\n";
}

std::string length_chart(const DataStats& stats) {
  const data::LengthSummary& s = stats.analysis.lengths;
  BarSeries documents{"share of documents", kDocumentsColour, {}}, tokens{"share of tokens", kTokensColour, {}};
  double most = 0;
  for (const data::LengthBin& bin : s.bins) {
    const double of_documents = share(bin.documents, s.documents), of_tokens = share(bin.tokens, s.tokens);
    most = std::max({most, of_documents, of_tokens});
    const std::string title =
        fmt::format("{} to {} tokens: {} documents ({}), {} tokens ({})", bin.from, bin.to, grouped(bin.documents),
                    percent(of_documents), grouped(bin.tokens), percent(of_tokens));
    const auto from = static_cast<double>(bin.from), to = static_cast<double>(bin.to + 1);
    documents.bars.push_back({from, to, of_documents, title});
    tokens.bars.push_back({from, to, of_tokens, title});
  }
  const auto row = static_cast<double>(stats.settings.shape.seq_len);
  Chart chart;
  chart.title = "Histogram of document lengths";
  chart.x = {"tokens of a document", static_cast<double>(s.bins.front().from),
             static_cast<double>(s.bins.back().to + 1), true, whole_number};
  chart.y = {"", 0, most * 1.08, false, whole_percent};
  if (row >= chart.x.low && row <= chart.x.high * 4) {
    chart.x.high = std::max(chart.x.high, row * 1.02);
    chart.marks.push_back({row, fmt::format("a row: {:.0f}", row)});
  }
  chart.bars = {documents, tokens};
  return draw(chart);
}

std::string percentile_table(const data::LengthSummary& s) {
  Table t{{""}, {{"tokens"}}};
  for (std::size_t p = 0; p < data::kPercents.size(); ++p) {
    t.head.push_back(fmt::format("p{}", data::kPercents[p]));
    t.rows[0].push_back(grouped(s.percentiles[p]));
  }
  t.head.push_back("max");
  t.rows[0].push_back(grouped(s.longest));
  return table(t);
}

std::string utilisation(const ModeFigures& m) {
  if (!m.utilisation_error) return percent(m.utilisation);
  return fmt::format("{} ± {:.2f}", percent(m.utilisation), 100 * *m.utilisation_error);
}

std::string modes_chart(const data::RowLength& r) {
  std::vector<Share> shares;
  for (const ModeFigures& m : r.modes)
    shares.push_back({std::string(data::name_of(m.packing)), utilisation(m), m.utilisation, colour_of(m.packing),
                      fmt::format("{}: {} of a row's {} tokens are real", data::name_of(m.packing),
                                  plain(m.tokens_per_row, 1), r.shape.seq_len)});
  return draw_shares(fmt::format("Share of computed tokens that are real, rows of {}", r.shape.seq_len), shares);
}

std::string modes_table(const DataStats& stats, const data::RowLength& r) {
  const bool has_model = !stats.model.empty();
  Table t{{fmt::format("rows of {}", r.shape.seq_len), "rows", "tokens a row", "utilisation"}, {}};
  t.head.push_back(has_model ? "FLOPs wasted" : "wasted");
  t.head.insert(t.head.end(), {"truncated", "speed-up"});
  for (const ModeFigures& m : r.modes) {
    std::string wasted = percent(m.wasted / m.cost);
    if (has_model) wasted = fmt::format("{} ({})", flops(m.wasted), wasted);
    t.rows.push_back({std::string(data::name_of(m.packing)), grouped(m.rows), plain(m.tokens_per_row, 1),
                      utilisation(m), wasted, grouped(m.truncated_tokens),
                      fmt::format("{:.2f} ×", m.speedup_over_pad)});
  }
  return table(t);
}

std::string row_length_chart(const data::Analysis& a) {
  Chart chart;
  chart.title = "Utilisation of each way of packing at shorter rows";
  chart.x = {"tokens of a row", static_cast<double>(a.row_lengths.back().shape.seq_len),
             static_cast<double>(a.row_lengths.front().shape.seq_len), true, whole_number};
  chart.y = {"real tokens of those computed", 0, 1, false, whole_percent};
  chart.height = 260;
  for (const data::Packing packing : data::kPackings) {
    LineSeries line{std::string(data::name_of(packing)), colour_of(packing), {}, packing == data::Packing::stream};
    for (auto r = a.row_lengths.rbegin(); r != a.row_lengths.rend(); ++r) {
      const ModeFigures& m = r->at(packing);
      line.points.push_back({static_cast<double>(r->shape.seq_len), m.utilisation,
                             fmt::format("{}, rows of {}: {}", line.name, r->shape.seq_len, percent(m.utilisation))});
    }
    chart.lines.push_back(std::move(line));
  }
  return draw(chart);
}

std::string buckets_section(const DataStats& stats) {
  const data::Analysis& a = stats.analysis;
  const std::int64_t row = stats.settings.shape.seq_len;
  const ModeFigures &usual = a.row_lengths[0].at(data::Packing::bucket), &best = a.with_best_edges;
  Table t{{"edges", "rows", "utilisation", "speed-up"}, {}};
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& edges, const ModeFigures& m) {
    t.rows.push_back({fmt::format("{} {}", name, bucket_list(edges, row)), grouped(m.rows), utilisation(m),
                      fmt::format("{:.2f} ×", m.speedup_over_pad)});
  };
  add("usual:", a.usual_edges, usual);
  add("best:", a.best_edges.edges, best);
  return "<section><h2>Bucket edges that waste least</h2>\n" + table(t) + paragraph(buckets_sentence(stats)) +
         "</section>\n";
}

}  // namespace

std::string data_stats_page(const DataStats& stats) {
  const data::Analysis& a = stats.analysis;
  const data::RowLength& row = a.row_lengths[0];
  std::string body = fmt::format("<h1>Document lengths of {}</h1>\n", escaped(stats.survey.source));
  body += paragraph(settings_sentence(stats)) + paragraph(sampling_sentence(stats)) + paragraph(caveat_sentence(stats));
  body += paragraph(recommendation(stats), "note") + overview(stats);
  body += "<section><h2>How long documents are</h2>\n" + plot(length_chart(stats)) + percentile_table(a.lengths) +
          "</section>\n";
  body += fmt::format("<section><h2>Real tokens of those computed, rows of {}</h2>\n", row.shape.seq_len) +
          plot(modes_chart(row)) + modes_table(stats, row) + paragraph(counting_sentence(stats));
  body += paragraph(
      "Of the four, pad takes one document a row, bucket documents of similar length, pack the best fit with documents "
      "whole, and stream joins documents and cuts them where a batch ends.");
  if (!stats.settings.truncate)
    body += paragraph(
        "Truncated are the tokens that data.long_documents = \"truncate\" would drop; split, as here, drops none.");
  body += "</section>\n";
  if (a.row_lengths.size() > 1) {
    body +=
        "<section><h2>At shorter rows</h2>\n" + plot(row_length_chart(a)) +
        paragraph(
            "Batches keep their tokens: half the length, twice the rows. Speed-ups are over pad at the same length.");
    for (std::size_t i = 1; i < a.row_lengths.size(); ++i) body += modes_table(stats, a.row_lengths[i]);
    body += "</section>\n";
  }
  return page(fmt::format("Document lengths of {}", stats.survey.source), body + buckets_section(stats));
}

}  // namespace redline::report
