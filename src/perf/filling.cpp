// Surveys some documents, and runs the packer over their lengths twice.
#include "perf/filling.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/words.h"
#include "data/from_config.h"
#include "data/statistics.h"
#include "model/lowering.h"

namespace redline::perf {
namespace {

constexpr std::int64_t kSurveyed = 20'000;  // documents: their mean length is known to a percent

Filling filling_of(const data::PackerSettings& settings, const data::LengthSurvey& survey) {
  const auto pieces = data::pieces_of(survey.lengths, settings.cut(), survey.shuffled);
  const data::Packed packed = data::run_packer(settings, pieces);
  const auto rows = static_cast<double>(packed.rows), row = static_cast<double>(settings.shape.seq_len);
  const auto documents = static_cast<double>(packed.pieces);
  Filling f;
  f.documents = documents / rows;
  f.length = (std::sqrt(1 + 8 * packed.score_pairs / documents) - 1) / 2;  // n (n + 1) / 2 pairs
  f.utilisation = static_cast<double>(packed.real_tokens) / (rows * row);
  return f;
}

}  // namespace

Documents documents_of(std::int64_t rows, std::int64_t seq_len, const Filling& filling) {
  return {static_cast<double>(rows) * filling.documents,
          filling.length > 0 ? filling.length : static_cast<double>(seq_len)};
}

std::optional<Filled> filled(const config::Config& config) {
  if (config.data.packing != "pad" && config.data.packing != "bucket") return {};
  Filled f;
  config::Data data = config.data;
  data.weights.clear();  // entries count as they stand
  try {
    if (!config.origins.known("data.train")) fail_user("data.train names nothing");
    ThreadPool pool;
    data::CorpusOptions corpus = data::corpus_options(config);
    corpus.weights.clear();
    const data::LengthSurvey survey =
        data::survey_lengths(corpus, {.sample = kSurveyed, .of_endless = kSurveyed, .first = kSurveyed}, pool);
    f.source = survey.source;
    f.documents = static_cast<std::int64_t>(survey.lengths.size());
    const data::BatchShape shape = model::batch_shape(config);
    f.own = filling_of(data::packer_settings(data, shape), survey);
    data.packing = "pack";
    f.packed = filling_of(data::packer_settings(data, shape), survey);
  } catch (const UserError& e) {
    f.problem = e.what();
  } catch (const MachineError& e) {
    f.problem = e.what();
  }
  return f;
}

}  // namespace redline::perf
