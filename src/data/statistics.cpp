// The spread of lengths, and one run of the packer for each mode and row length, several at a time.
#include "data/statistics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include "base/error.h"

namespace redline::data {
namespace {

constexpr std::int64_t kShortestRow = 16;
constexpr int kRowLengths = 4;  // N, N/2, N/4, N/8
constexpr double kCappedShare = 0.01;
constexpr std::int64_t kBetweenTicks = 1 << 14;  // pieces

// Edges at equal ratios: as many a doubling as stay within kMostBins, so that a log-normal spread looks like a bell.
std::vector<LengthBin> bins_of(const std::vector<std::int64_t>& sorted) {
  std::vector<LengthBin> bins;
  for (const int per_doubling : {4, 2, 1, 0}) {
    bins.clear();
    const double step = per_doubling == 0 ? 2.0 : 1.0 / per_doubling;  // octaves a bin
    // A power of two ends a bin, as it ends a row. Edges are rounded; those that fall together at short lengths are
    // one.
    std::int64_t before = 0;  // the last length of the bin before
    for (double octave = 0; before < sorted.back(); octave += step) {
      const auto to = static_cast<std::int64_t>(std::llround(std::exp2(octave)));
      if (to == before) continue;
      if (to >= sorted.front()) bins.push_back({before + 1, to});
      before = to;
    }
    if (bins.size() <= kMostBins) break;
  }
  auto bin = bins.begin();
  for (const std::int64_t length : sorted) {
    while (length > bin->to) ++bin;
    ++bin->documents;
    bin->tokens += length;
  }
  return bins;
}

// Rows that the pieces of a batch take up.
std::int64_t rows_used(const PackerSettings& settings, std::int64_t pieces, std::int64_t tokens, std::int64_t longest) {
  const std::int64_t row = settings.shape.seq_len;
  if (settings.packing == Packing::pad) return pieces;
  std::int64_t slots = tokens;
  if (settings.packing == Packing::bucket) slots = pieces * *std::ranges::lower_bound(settings.buckets, longest);
  return (slots + row - 1) / row;
}

// How many pieces there are of each length.
std::map<std::int64_t, std::int64_t> count_lengths(std::span<const PieceLength> pieces) {
  std::map<std::int64_t, std::int64_t> counts;
  for (const PieceLength& piece : pieces) ++counts[piece.length];
  return counts;
}

}  // namespace

std::string_view name_of(Packing packing) {
  switch (packing) {
    case Packing::pad: return "pad";
    case Packing::bucket: return "bucket";
    case Packing::pack: return "pack";
    case Packing::stream: break;
  }
  return "stream";
}

LengthSummary summarise(std::vector<std::int64_t> lengths) {
  REDLINE_CHECK(!lengths.empty(), "there are lengths");
  std::ranges::sort(lengths);
  LengthSummary s;
  s.documents = static_cast<std::int64_t>(lengths.size());
  s.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const double n = static_cast<double>(s.documents);
  s.mean = static_cast<double>(s.tokens) / n;
  double squares = 0;
  for (const std::int64_t length : lengths) squares += std::pow(static_cast<double>(length) - s.mean, 2);
  s.deviation = s.documents > 1 ? std::sqrt(squares / (n - 1)) : 0;
  for (std::size_t p = 0; p < kPercents.size(); ++p) {
    const std::int64_t rank = (s.documents * kPercents[p] + 99) / 100;
    s.percentiles[p] = lengths[static_cast<std::size_t>(rank) - 1];
  }
  s.shortest = lengths.front();
  s.longest = lengths.back();
  s.bins = bins_of(lengths);
  return s;
}

Packed run_packer(const PackerSettings& given, std::span<const PieceLength> offered,
                  const std::function<void(std::int64_t)>& tick) {
  Packer packer(given);
  const PackerSettings& settings = packer.settings();
  const BatchShape& shape = settings.shape;
  Packed out;
  std::int64_t next = 0, pieces = 0, tokens = 0, longest = 0;
  const auto count = static_cast<std::int64_t>(offered.size());
  for (;;) {
    while (packer.wants() && next < count) {
      const PieceLength& piece = offered[static_cast<std::size_t>(next)];
      packer.offer(next, piece.length, piece.ends);
      if (++next % kBetweenTicks == 0 && tick) tick(kBetweenTicks);
    }
    if (const auto placed = packer.place()) {
      ++pieces;
      tokens += placed->length;
      longest = std::max(longest, placed->length);
      out.cut_pieces += placed->last && placed->begin > 0 && offered[static_cast<std::size_t>(placed->piece)].sole;
      out.score_pairs += 0.5 * static_cast<double>(placed->length) * static_cast<double>(placed->length + 1);
      continue;
    }
    if (pieces == 0) break;
    const bool ended = next == count;
    ++out.batches;
    out.pieces += pieces;
    out.real_tokens += tokens;
    out.rows += ended ? std::min(shape.rows, rows_used(settings, pieces, tokens, longest)) : shape.rows;
    if (!ended) {
      out.steady_tokens += tokens;
      out.steady_slots += shape.tokens();
      out.capped_batches += pieces == shape.documents() && settings.packing != Packing::pad && tokens < shape.tokens();
    }
    pieces = tokens = longest = 0;
  }
  return out;
}

const ModeFigures& RowLength::at(Packing packing) const {
  return *std::ranges::find(modes, packing, &ModeFigures::packing);
}

namespace {

// A corpus as a multiple of what was measured of it.
struct Scale {
  bool exact = true;
  double factor = 1;  // documents of the corpus over those measured
};

std::int64_t scaled(std::int64_t n, const Scale& scale) {
  return scale.exact ? n : std::llround(static_cast<double>(n) * scale.factor);
}

ModeFigures figures_of(const PackerSettings& settings, std::span<const PieceLength> pieces, const RowLength& row_length,
                       const Scale& scale, const ModelCost& model, const std::function<void(std::int64_t)>& tick) {
  const Packed packed = run_packer(settings, pieces, tick);
  const auto row = static_cast<double>(settings.shape.seq_len);
  ModeFigures m{.packing = settings.packing};
  const double real = static_cast<double>(packed.real_tokens) * scale.factor;
  m.rows = packed.rows;
  m.utilisation = static_cast<double>(packed.real_tokens) / (static_cast<double>(packed.rows) * row);
  if (!scale.exact) {
    if (packed.steady_slots > 0)
      m.utilisation = static_cast<double>(packed.steady_tokens) / static_cast<double>(packed.steady_slots);
    m.rows = std::llround(std::ceil(real / (row * m.utilisation)));
  }
  m.tokens_per_row = m.utilisation * row;
  m.dropped_tokens = settings.truncate ? row_length.tokens_beyond : 0;
  m.cut_documents = (settings.truncate ? 0 : row_length.split_documents) + scaled(packed.cut_pieces, scale);
  m.capped = static_cast<double>(packed.capped_batches) > kCappedShare * static_cast<double>(packed.batches);
  const double slots = real / m.utilisation;
  m.cost = model.per_slot * slots + model.per_pair * packed.score_pairs * scale.factor;
  m.wasted = model.per_slot * (slots - real);
  m.real_tokens = real;
  return m;
}

double speedup(const ModeFigures& m, const ModeFigures& over) {
  return (over.cost / over.real_tokens) / (m.cost / m.real_tokens);
}

std::vector<RowLength> row_lengths_of(const BatchShape& shape, const LengthSurvey& survey, const Scale& scale) {
  std::vector<RowLength> out;
  for (int i = 0; i < kRowLengths; ++i) {
    const std::int64_t row = shape.seq_len >> i;
    if (i > 0 && (row < kShortestRow || shape.seq_len % (std::int64_t{1} << i) != 0)) break;
    RowLength r{.shape = {shape.rows << i, row, shape.max_segments}};
    for (const std::int64_t length : survey.lengths) {
      r.long_documents += length > row;
      r.split_documents += Cut{row}.pieces(length) > 1;
      r.tokens_beyond += std::max<std::int64_t>(0, length - row);
    }
    r.long_documents = scaled(r.long_documents, scale);
    r.split_documents = scaled(r.split_documents, scale);
    r.tokens_beyond = scaled(r.tokens_beyond, scale);
    out.push_back(r);
  }
  return out;
}

}  // namespace

Analysis analyse(const LengthSurvey& survey, const AnalysisSettings& settings, ThreadPool& pool) {
  Analysis a;
  a.lengths = summarise(survey.lengths);
  Scale scale;
  a.documents = static_cast<double>(a.lengths.documents);
  a.tokens = static_cast<double>(a.lengths.tokens);
  if (!survey.exact) {
    scale = {false, static_cast<double>(survey.documents) / a.documents};
    a.documents = static_cast<double>(survey.documents);
    a.tokens *= scale.factor;
  }
  const ModelCost model = settings.model.value_or(ModelCost{});
  a.row_lengths = row_lengths_of(settings.shape, survey, scale);
  a.usual_edges = Packer({settings.shape, Packing::bucket, settings.truncate, settings.edges}).settings().buckets;
  const std::int64_t buckets =
      settings.buckets > 0 ? settings.buckets : static_cast<std::int64_t>(a.usual_edges.size());
  std::vector<std::vector<PieceLength>> pieces(a.row_lengths.size());
  pool.run(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t row) {
    const auto at = static_cast<std::size_t>(row);
    pieces[at] = pieces_of(survey.lengths, {a.row_lengths[at].shape.seq_len, settings.truncate}, survey.shuffled);
  });
  a.best_edges = best_bucket_edges(count_lengths(pieces[0]), buckets, settings.shape);

  // One task for each run of the packer; the last is that with the best edges.
  const std::size_t runs = a.row_lengths.size() * kPackings.size() + 1;
  double all_steps = static_cast<double>(pieces[0].size());
  for (const auto& of_row : pieces) all_steps += static_cast<double>(of_row.size() * kPackings.size());
  std::mutex reporting;
  double steps = 0;
  const auto tick = [&](std::int64_t offered) {
    const std::lock_guard lock(reporting);
    steps += static_cast<double>(offered);
    if (settings.progress) settings.progress("packing", steps, all_steps);
  };
  pool.run(static_cast<std::int64_t>(runs), [&](std::int64_t task) {
    const std::size_t mode = static_cast<std::size_t>(task) % kPackings.size();
    const std::size_t row = static_cast<std::size_t>(task) / kPackings.size();
    const bool best = row == a.row_lengths.size();
    const std::size_t at = best ? 0 : row;
    const RowLength& r = a.row_lengths[at];
    PackerSettings packer{r.shape, kPackings[mode], settings.truncate, settings.edges};
    if (best) packer = {r.shape, Packing::bucket, settings.truncate, a.best_edges.edges};
    ModeFigures& to = best ? a.with_best_edges : a.row_lengths[row].modes[mode];
    to = figures_of(packer, pieces[at], r, scale, model, tick);
    to.truncated_tokens = packer.packing == Packing::stream ? to.dropped_tokens : r.tokens_beyond;
  });
  for (RowLength& r : a.row_lengths) {
    const ModeFigures pad = r.modes[0];
    for (ModeFigures& m : r.modes) m.speedup_over_pad = speedup(m, pad);
  }
  a.with_best_edges.speedup_over_pad = speedup(a.with_best_edges, a.row_lengths[0].modes[0]);
  return a;
}

}  // namespace redline::data
