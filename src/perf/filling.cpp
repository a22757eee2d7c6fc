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

constexpr std::int64_t kGlanced = 1'000;  // documents, which tell rows that fill with a wide margin
constexpr double kWideMargin = 4;
constexpr double kWorthSaying = 0.01;  // of the token slots, below which a packing that does not pad fills its rows

double mean_piece(const data::PackerSettings& settings, const data::LengthSurvey& survey) {
  const auto pieces = data::pieces_of(survey.lengths, settings.cut(), survey.shuffled);
  double tokens = 0;
  for (const data::PieceLength& piece : pieces) tokens += static_cast<double>(piece.length);
  return tokens / static_cast<double>(pieces.size());
}

bool surely_fills(const data::PackerSettings& settings, const data::LengthSurvey& survey) {
  return mean_piece(settings, survey) * static_cast<double>(settings.shape.max_segments) >
         kWideMargin * static_cast<double>(settings.shape.seq_len);
}

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

std::string Filled::set() const {
  return segments > 0 ? fmt::format("data.max_segments={}", segments) : "data.packing=pack";
}

config::Config Filled::mended(const config::Config& config) const {
  config::Config c = config;
  if (segments > 0)
    c.data.max_segments = segments;
  else
    c.data.packing = "pack";
  return c;
}

std::string Filled::cause(const config::Config& config) const {
  if (segments == 0) return fmt::format("data.packing = \"{}\"", config.data.packing);
  return fmt::format("data.max_segments = {} closes batches before they are full", config.data.max_segments);
}

std::optional<Filled> filled(const config::Config& config) {
  const bool pads = config.data.packing == "pad" || config.data.packing == "bucket";
  const bool readable = config.origins.known("data.train");
  // A mixture's shares are not those of its documents, which alone are counted here.
  if (!pads && (!readable || !config.data.weights.empty())) return {};
  Filled f;
  try {
    if (!readable) fail_user("data.train names nothing");
    ThreadPool pool;
    data::CorpusOptions corpus = data::corpus_options(config);
    corpus.weights.clear();  // entries count as they stand
    const auto survey = [&](std::int64_t documents) {
      return data::survey_lengths(corpus, {.sample = documents, .of_endless = documents, .first = documents}, pool);
    };
    const data::BatchShape shape = model::batch_shape(config);
    const auto settings = [&](const config::Config& of) {
      return data::packer_settings(of.data, model::batch_shape(of));
    };
    if (!pads && surely_fills(settings(config), survey(kGlanced))) return {};
    const data::LengthSurvey lengths = survey(kSurveyed);
    f.source = lengths.source;
    f.documents = static_cast<std::int64_t>(lengths.lengths.size());
    if (!pads) f.segments = data::enough_segments(shape.seq_len, mean_piece(settings(config), lengths));
    f.own = filling_of(settings(config), lengths);
    f.packed = filling_of(settings(f.mended(config)), lengths);
  } catch (const UserError& e) {
    f.problem = e.what();
  } catch (const MachineError& e) {
    f.problem = e.what();
  }
  if (!pads && (!f.known() || f.packed.utilisation - f.own.utilisation < kWorthSaying)) return {};
  return f;
}

Filling filling_of(const std::optional<Filled>& filled) { return filled && filled->known() ? filled->own : Filling{}; }

}  // namespace redline::perf
