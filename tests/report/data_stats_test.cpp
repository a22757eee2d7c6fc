// The same figures in the terminal, on the page and in JSON; the advice follows the figures.
#include "report/data_stats.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "io/json.h"
#include "report/figures.h"
#include "report/small_run.h"
#include "testing/page_data.h"

namespace redline::report {
namespace {

using data::Packing;

data::LengthSurvey survey_of(std::vector<std::int64_t> lengths) {
  data::LengthSurvey survey;
  survey.source = "a <made-up> corpus";
  survey.documents = static_cast<std::int64_t>(lengths.size());
  survey.lengths = std::move(lengths);
  return survey;
}

// Analysed, and kept together with what it refers to.
struct Analysed {
  data::LengthSurvey survey;
  data::AnalysisSettings settings;
  data::Analysis analysis;
  DataStats stats;

  Analysed(data::LengthSurvey s, data::AnalysisSettings a, std::string model = "")
      : survey(std::move(s)), settings(std::move(a)), analysis(analyse()), stats{survey, settings, analysis, model} {}
  data::Analysis analyse() const {
    ThreadPool pool(1);
    return data::analyse(survey, settings, pool);
  }
};

std::vector<std::int64_t> some_lengths(int count = 400) {
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back(5 + (i * 37) % 200);
  return lengths;
}

Analysed plain_example() { return {survey_of(some_lengths()), {.shape = {4, 256, 32}, .model = {}, .progress = {}}}; }

TEST(DataStats, JsonHasTheNamesThatScriptsRelyOn) {
  const Analysed example = plain_example();
  const io::Json json = data_stats_json(example.stats);
  EXPECT_EQ(json.at("documents"), 400);
  EXPECT_EQ(json.at("tokens"), example.analysis.lengths.tokens);
  for (const char* p : {"p1", "p5", "p25", "p50", "p75", "p90", "p95", "p99", "max"})
    EXPECT_TRUE(json.at("percentiles").at(p).is_number_integer()) << p;
  EXPECT_TRUE(json.at("mean").is_number());
  EXPECT_TRUE(json.at("exact"));
  EXPECT_TRUE(json.at("sample").is_null());
  EXPECT_TRUE(json.at("model").is_null());
  ASSERT_EQ(json.at("modes").size(), 4u);
  for (const Packing packing : data::kPackings) {
    const io::Json& mode = json.at("modes").at(std::string(data::name_of(packing)));
    const data::ModeFigures& m = example.analysis.row_lengths[0].at(packing);
    EXPECT_EQ(mode.at("rows"), m.rows);
    EXPECT_EQ(mode.at("utilisation"), m.utilisation);
    EXPECT_EQ(mode.at("truncated_tokens"), m.truncated_tokens);
    EXPECT_EQ(mode.at("speedup_over_pad"), m.speedup_over_pad);
    EXPECT_TRUE(mode.at("flops").is_null());
  }
  EXPECT_EQ(json.at("modes").at("pad").at("speedup_over_pad"), 1.0);
  EXPECT_EQ(json.at("row_lengths").size(), 4u);
  EXPECT_EQ(json.at("row_lengths")[1].at("seq_len"), 128);
  EXPECT_EQ(json.at("buckets").at("best_edges"), example.analysis.best_edges.edges);
  EXPECT_EQ(json.at("recommendation"), sentence(example.stats, "recommendation"));
}

TEST(DataStats, TheTerminalShowsTheFigures) {
  const Analysed example = plain_example();
  const std::string text = data_stats_text(example.stats, true);
  const data::RowLength& row = example.analysis.row_lengths[0];
  for (const Packing packing : data::kPackings) {
    EXPECT_TRUE(has(text, percent(row.at(packing).utilisation))) << data::name_of(packing);
    EXPECT_TRUE(has(text, grouped(row.at(packing).rows))) << data::name_of(packing);
  }
  EXPECT_TRUE(has(text, "rows of 32 "));
  EXPECT_TRUE(has(text, "█"));
  EXPECT_TRUE(has(text, fmt::format("p50 {}", example.analysis.lengths.percentiles[3])));
  EXPECT_TRUE(has(text, "by token counts"));
  const std::string ascii = data_stats_text(example.stats, false);
  EXPECT_TRUE(has(ascii, "####"));
  for (const char c : ascii) ASSERT_LT(static_cast<unsigned char>(c), 0x80);
  // The longest bar belongs to the fullest bin, and no line runs over.
  std::size_t longest = 0, begin = 0;
  for (std::size_t end; (end = ascii.find('\n', begin)) != ascii.npos; begin = end + 1)
    longest = std::max(longest, end - begin);
  EXPECT_LE(longest, 100u);
}

TEST(DataStats, ARowIsMarkedInTheHistogram) {
  const Analysed example(survey_of(some_lengths()), {.shape = {4, 64, 32}, .model = {}, .progress = {}});
  const std::string text = data_stats_text(example.stats, false);
  const std::size_t mark = text.find("-- a row of 64 ends here --");
  ASSERT_NE(mark, text.npos);
  EXPECT_LT(text.find("- 64 "), mark);
  EXPECT_GT(text.find("65 - "), mark);
  EXPECT_FALSE(has(data_stats_text(plain_example().stats, false), "ends here"));
}

TEST(DataStats, ThePageHasTheFiguresAndTheSentences) {
  data::LengthSurvey survey = survey_of(some_lengths());
  survey.documents = 4000;
  survey.exact = false;
  survey.empty = 3;
  const Analysed example(survey, {.shape = {4, 256, 32}, .model = data::ModelCost{1e9, 1e3}, .progress = {}},
                         "my-model");
  const std::string html = data_stats_page(example.stats);
  io::Json data = testing::page_data(html);
  EXPECT_EQ(data["page"], "lengths");
  for (const char* key : {"settings", "sampling", "caveat", "counting", "buckets"}) {
    EXPECT_EQ(data["sentences"][key], sentence(example.stats, key)) << key;
    EXPECT_NE(data["sentences"][key], "") << key;
  }
  const io::Json& titles = data["tables"]["titles"];
  ASSERT_EQ(data["tables"]["modes"].size(), data["row_lengths"].size());
  for (const auto& [mode, cells] : data["tables"]["modes"][0].items()) EXPECT_EQ(cells.size(), titles.size()) << mode;
  data.erase("tables");
  data.erase("page");
  data.erase("sentences");
  EXPECT_EQ(data, data_stats_json(example.stats));
  EXPECT_TRUE(has(html, "<title>Document lengths of a &lt;made-up&gt; corpus</title>"));
}

TEST(DataStats, PagesOfOddCorporaAreWholeToo) {
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{2}, {7}, {2, 1000000}, std::vector<std::int64_t>(100, 16)}) {
    for (const std::int64_t row : {1, 16, 1000}) {
      const Analysed example(survey_of(lengths), {.shape = {1, row, 4}, .model = {}, .progress = {}});
      const std::string text = data_stats_text(example.stats, true);
      EXPECT_EQ(testing::page_data(data_stats_page(example.stats))["documents"], lengths.size());
      EXPECT_FALSE(has(text, "nan") || has(text, " inf"));
      EXPECT_NO_THROW(data_stats_json(example.stats).dump());
    }
  }
}

TEST(DataStats, ASampleSaysThatItIsOne) {
  data::LengthSurvey survey = survey_of(some_lengths(4000));
  survey.documents = 100'000;
  survey.exact = false;
  const Analysed example(survey, {.shape = {4, 256, 32}, .model = {}, .progress = {}});
  const io::Json json = data_stats_json(example.stats);
  EXPECT_EQ(json.at("documents"), 100'000);
  EXPECT_FALSE(json.at("exact"));
  EXPECT_EQ(json.at("sample").at("documents"), 4000);
  const std::string text = data_stats_text(example.stats, false);
  EXPECT_TRUE(has(text, "4,000 of 100,000 documents"));
  EXPECT_TRUE(has(text, "estimate"));
}

TEST(DataStats, TheAdviceFollowsTheFigures) {
  const auto advice = [](std::vector<std::int64_t> lengths, data::BatchShape shape, bool truncate = false,
                         const std::string& model = "") {
    data::AnalysisSettings settings{.shape = shape, .truncate = truncate, .model = {}, .progress = {}};
    if (!model.empty()) settings.model = data::ModelCost{100, 1};
    return sentence(Analysed(survey_of(std::move(lengths)), settings, model).stats, "recommendation");
  };
  const std::string usual = advice(some_lengths(), {4, 256, 32});
  EXPECT_TRUE(has(usual, "data.packing = \"pack\"")) << usual;
  EXPECT_TRUE(has(usual, "by token counts")) << usual;
  EXPECT_TRUE(has(advice(some_lengths(), {4, 256, 32}, false, "my-model"), "FLOPs of my-model"));
  EXPECT_TRUE(has(advice(std::vector<std::int64_t>(100, 256), {4, 256, 32}), "Padding costs little"));
  // Nothing fits beside three fifths of a batch: packing leaves the rest empty, a stream does not.
  const std::string stream = advice(std::vector<std::int64_t>(100, 60), {1, 100, 32});
  EXPECT_TRUE(has(stream, "data.packing = \"stream\"")) << stream;
  const std::string tiny = advice(std::vector<std::int64_t>(5000, 2), {4, 256, 32});
  EXPECT_TRUE(has(tiny, "data.max_segments = 32")) << tiny;
  EXPECT_TRUE(has(tiny, "set it to 256")) << tiny;
  const std::string split = advice({300, 20, 30, 40}, {1, 100, 32}),
                    cut = advice({300, 20, 30, 40}, {1, 100, 32}, true);
  EXPECT_TRUE(has(split, "25.0% of the documents are longer")) << split;
  EXPECT_TRUE(has(split, "would drop 51.3% of the tokens")) << split;
  EXPECT_TRUE(has(cut, "truncating them drops 51.3%")) << cut;
}

TEST(DataStats, EveryDocumentAWholeRowNeedsNoBuckets) {
  const Analysed example(survey_of(std::vector<std::int64_t>(50, 64)),
                         {.shape = {2, 64, 8}, .model = {}, .progress = {}});
  EXPECT_TRUE(has(sentence(example.stats, "buckets"), "gain nothing"));
  const Analysed other = plain_example();
  EXPECT_TRUE(
      has(sentence(other.stats, "buckets"), fmt::format("data.buckets=[{}, ", other.analysis.best_edges.edges[0])));
}

}  // namespace
}  // namespace redline::report
