// Lengths are those that training is served, from every kind of source; a sample's error covers the truth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/files.h"
#include "data/from_config.h"
#include "data/statistics.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using Lengths = std::vector<std::int64_t>;

Lengths sorted(Lengths lengths) {
  std::ranges::sort(lengths);
  return lengths;
}

config::Data data_at(std::vector<std::string> paths) {
  config::Data data;
  data.train = std::move(paths);
  return data;
}

class LengthsTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    real_files().replace(folder_ / name, text);
    return (folder_ / name).string();
  }
  testing::TempFolder folder_;
  ThreadPool pool_{2};
};

TEST_F(LengthsTest, PingIsReadWhole) {
  config::Data data = data_at({"ping"});
  data.documents = 5000;
  const auto source = open_training_corpus(corpus_options(data));
  Lengths expected;
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < 5000; ++i) {
    dynamic_cast<const DocumentSource&>(*source).read(i, tokens);
    expected.push_back(static_cast<std::int64_t>(tokens.size()));
  }
  const LengthSurvey survey = survey_lengths(corpus_options(data), {}, pool_);
  EXPECT_TRUE(survey.exact);
  EXPECT_EQ(survey.documents, 5000);
  EXPECT_EQ(survey.lengths, expected);
  EXPECT_TRUE(survey.shuffled);
}

TEST_F(LengthsTest, OfAnEndlessSourceTheFirst) {
  const LengthSurvey survey =
      survey_lengths(corpus_options(data_at({"ping"})), {.of_endless = 300, .progress = {}}, pool_);
  EXPECT_EQ(survey.lengths.size(), 300u);
  EXPECT_EQ(survey.documents, 300);
  const LengthSurvey noise =
      survey_lengths(corpus_options(data_at({"random:100"})), {.of_endless = 3, .progress = {}}, pool_);
  EXPECT_EQ(noise.lengths, Lengths(3, (1 << 16) + 1));
  EXPECT_FALSE(noise.shuffled);
}

TEST_F(LengthsTest, TextFilesAreDocuments) {
  write("a.txt", std::string(1'000'000, 'a'));
  write("b.txt", std::string(99, 'b'));
  const LengthSurvey survey = survey_lengths(corpus_options(data_at({folder_.path().string()})), {}, pool_);
  EXPECT_EQ(survey.lengths, (Lengths{1'000'001, 100}));  // and <end>
}

TEST_F(LengthsTest, LinesOfJsonAreTokenized) {
  std::string lines;
  Lengths expected;
  for (int i = 0; i < 3000; ++i) {
    const int n = i % 37;
    lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(n), 'x') + "\"}\n";
    if (n > 0) expected.push_back(n + 1);
  }
  config::Data data = data_at({write("a.jsonl", lines)});
  EXPECT_THROW(survey_lengths(corpus_options(data), {}, pool_), UserError);  // no tokenizer
  data.tokenizer = "bytes";
  const LengthSurvey survey = survey_lengths(corpus_options(data), {}, pool_);
  EXPECT_EQ(sorted(survey.lengths), sorted(expected));
  EXPECT_EQ(survey.empty, 82);
  EXPECT_EQ(survey.documents, 3000 - 82);

  const LengthSurvey sample = survey_lengths(corpus_options(data), {.sample = 500, .progress = {}}, pool_);
  EXPECT_FALSE(sample.exact);
  EXPECT_EQ(static_cast<std::int64_t>(sample.lengths.size()) + sample.empty, 500);
  EXPECT_NEAR(static_cast<double>(sample.documents), 3000 - 82, 60);
  EXPECT_EQ(survey_lengths(corpus_options(data), {.sample = 4000, .progress = {}}, pool_).lengths, survey.lengths);
}

TEST_F(LengthsTest, SeparatorsCutText) {
  config::Data data = data_at({write("a.txt", "one\n---\nthree\n---\nx")});
  data.separator = "\n---\n";
  EXPECT_EQ(sorted(survey_lengths(corpus_options(data), {}, pool_).lengths), (Lengths{2, 4, 6}));
}

TEST_F(LengthsTest, NothingToMeasureIsAUsersMistake) {
  config::Data data = data_at({write("a.jsonl", "{\"text\": \"\"}\n")});
  data.tokenizer = "bytes";
  EXPECT_THROW(survey_lengths(corpus_options(data), {}, pool_), UserError);
  EXPECT_THROW(survey_lengths(corpus_options(data_at({"nowhere.txt"})), {}, pool_), UserError);
}

TEST_F(LengthsTest, ProgressReachesTheEnd) {
  config::Data data = data_at({"ping"});
  data.documents = 40'000;
  double last = 0, of = 0;
  const auto progress = [&](std::string_view, double done, double all) {
    EXPECT_GE(done, last);
    last = done;
    of = all;
  };
  survey_lengths(corpus_options(data), {.progress = progress}, pool_);
  EXPECT_EQ(of, 40'000);
  EXPECT_GT(last, 20'000);
}

TEST_F(LengthsTest, ASampleIsNearTheTruth) {
  for (std::int64_t seed = 0; seed < 12; ++seed) {
    config::Data data = data_at({"ping"});
    data.documents = 6000;
    data.seed = seed;
    const AnalysisSettings settings{.shape = {8, 1024, 32}, .model = {}, .progress = {}};
    const Analysis truth = analyse(survey_lengths(corpus_options(data), {}, pool_), settings, pool_);
    const LengthSurvey survey = survey_lengths(corpus_options(data), {.sample = 1500, .progress = {}}, pool_);
    const Analysis sample = analyse(survey, settings, pool_);
    EXPECT_EQ(sample.documents, 6000);
    EXPECT_NEAR(sample.lengths.mean, truth.lengths.mean, 0.08 * truth.lengths.mean) << seed;
    EXPECT_NEAR(sample.tokens, truth.tokens, 0.08 * truth.tokens) << seed;
    for (const Packing packing : kPackings) {
      const ModeFigures &a = sample.row_lengths[0].at(packing), &b = truth.row_lengths[0].at(packing);
      EXPECT_NEAR(a.utilisation, b.utilisation, 0.06) << seed;
      EXPECT_NEAR(static_cast<double>(a.rows), static_cast<double>(b.rows), 0.12 * static_cast<double>(b.rows));
    }
  }
}

}  // namespace
}  // namespace redline::data
