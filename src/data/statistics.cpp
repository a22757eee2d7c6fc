// Lengths come in two ways: from a source that has documents by index, or by reading text from front to back and
// tokenizing it. Then one run of the packer for each mode and row length, several at a time.
#include "data/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "base/words.h"
#include "data/input/text_input.h"
#include "data/pieces.h"
#include "data/stream.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {
namespace {

constexpr std::int64_t kBetweenReports = 1 << 14;  // documents
constexpr std::size_t kBlocksPerThread = 4;        // between two reports: a megabyte of text for each thread

class SurveyReporter {
 public:
  explicit SurveyReporter(const Progress& progress) : progress_(progress) {}
  void operator()(std::string_view doing, std::int64_t done, std::int64_t of) const {
    if (progress_) progress_(doing, static_cast<double>(done), static_cast<double>(of));
  }

 private:
  const Progress& progress_;
};

// `documents` becomes how many there are with something to predict: counted, or judged by the sample.
void leave_out_empty(LengthSurvey& survey) {
  if (survey.lengths.empty()) return;
  const auto all = static_cast<double>(survey.lengths.size());
  survey.empty = static_cast<std::int64_t>(std::erase_if(survey.lengths, [](std::int64_t n) { return n < 2; }));
  survey.documents =
      std::llround(static_cast<double>(survey.documents) * static_cast<double>(survey.lengths.size()) / all);
}

LengthSurvey survey_source(const DocumentSource& source, const SurveyOptions& options, ThreadPool& pool) {
  const bool endless = source.documents() == 0;
  const std::int64_t population = endless ? options.of_endless : source.documents();
  LengthSurvey survey{.source = source.name(), .shuffled = !endless, .documents = population};
  survey.exact = options.sample == 0 || options.sample >= population;
  const std::int64_t count = survey.exact ? population : options.sample;

  survey.lengths.resize(static_cast<std::size_t>(count));
  const SurveyReporter report(options.progress);
  for (std::int64_t begin = 0; begin < count; begin += kBetweenReports) {
    report("reading lengths", begin, count);
    const std::int64_t n = std::min(kBetweenReports, count - begin);
    pool.for_ranges(n, 256, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = begin + from; i < begin + to; ++i)
        survey.lengths[static_cast<std::size_t>(i)] =
            source.length(survey.exact ? i : shuffled_at(i, population, source.order_seed()));
    });
  }
  leave_out_empty(survey);
  return survey;
}

// Lengths of the documents of some blocks. A task of the pool takes every threads-th block, so that each has an encoder
// of its own, caches and all.
class Tokenizing {
 public:
  Tokenizing(const TextInput& input, const Tokenizer& tokenizer, const DocumentMarks& marks, const Chat* chat,
             ThreadPool& pool)
      : input_(input), pool_(pool) {
    for (int t = 0; t < pool.threads(); ++t)
      encoders_.push_back(std::make_unique<DocumentEncoder>(tokenizer, marks, chat));
  }

  // `wanted(n)`: whether the document with that number, counted from the first block's first, is to be tokenized.
  template <class Wanted>
  void append_lengths(std::vector<TextBlock>& blocks, const Wanted& wanted, std::vector<std::int64_t>& lengths) {
    std::vector<std::vector<std::int64_t>> found(blocks.size());
    std::vector<std::int64_t> first(blocks.size());
    for (std::size_t b = 1; b < blocks.size(); ++b) first[b] = first[b - 1] + blocks[b - 1].documents();
    pool_.run(static_cast<std::int64_t>(encoders_.size()), [&](std::int64_t t) {
      std::vector<std::int32_t> tokens;
      for (std::size_t b = static_cast<std::size_t>(t); b < blocks.size(); b += encoders_.size()) {
        for (std::int64_t i = 0; i < blocks[b].documents(); ++i) {
          if (!wanted(first[b] + i)) continue;
          tokens.clear();
          encoders_[static_cast<std::size_t>(t)]->append(input_, blocks[b], i, tokens);
          found[b].push_back(static_cast<std::int64_t>(tokens.size()));
        }
      }
    });
    for (const auto& of_block : found) lengths.insert(lengths.end(), of_block.begin(), of_block.end());
  }

 private:
  const TextInput& input_;
  ThreadPool& pool_;
  std::vector<std::unique_ptr<DocumentEncoder>> encoders_;
};

// Numbers of the documents to tokenize, ascending; a pass over the files counts them.
std::vector<std::int64_t> choose_sample(TextInput& input, std::int64_t sample, std::uint64_t seed,
                                        std::int64_t& population, const SurveyReporter& report) {
  TextBlock block;
  while (input.next(block, kTextBlockBytes, kTextBlockDocuments)) {
    population += block.documents();
    report("counting documents", input.bytes_read(), input.bytes_on_disk());
  }
  input.seek(0, 0);
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < std::min(sample, population); ++i) chosen.push_back(shuffled_at(i, population, seed));
  std::ranges::sort(chosen);
  return chosen;
}

LengthSurvey survey_stream(const CorpusOptions& corpus, const SurveyOptions& options, ThreadPool& pool) {
  const std::string name = corpus.tokenizer.empty() ? "bytes" : corpus.tokenizer;
  const auto tokenizer = open_tokenizer(name, "--tokenizer");
  const auto chat = open_chat(corpus.read.chat, name, *tokenizer, "data.chat");
  InputFormat format = corpus.read.input;
  format.any_bytes = corpus.tokenizer == "bytes";
  TextInput input(training_paths(corpus), format, "data.train");
  const std::size_t files = input.files().size();
  LengthSurvey survey{.source = fmt::format("{}, tokenizer {}", counted(files, "file"), tokenizer->name())};
  const SurveyReporter report(options.progress);
  std::vector<std::int64_t> chosen;
  std::int64_t population = 0;
  if (options.sample > 0 && options.first == 0) {
    chosen = choose_sample(input, options.sample, static_cast<std::uint64_t>(corpus.read.seed), population, report);
    survey.exact = static_cast<std::int64_t>(chosen.size()) == population;
  }

  const DocumentMarks marks = document_marks(*tokenizer, corpus.read.bos, "data.bos");
  Tokenizing tokenizing(input, *tokenizer, marks, chat.get(), pool);
  std::vector<TextBlock> blocks;
  std::int64_t before = 0;
  for (bool more = true; more;) {
    blocks.clear();
    while (blocks.size() < kBlocksPerThread * static_cast<std::size_t>(pool.threads()) && more) {
      TextBlock block;
      more = input.next(block, kTextBlockBytes, kTextBlockDocuments);
      if (more) blocks.push_back(std::move(block));
    }
    std::int64_t documents = 0;
    for (const TextBlock& block : blocks) documents += block.documents();
    tokenizing.append_lengths(
        blocks, [&](std::int64_t n) { return survey.exact || std::ranges::binary_search(chosen, before + n); },
        survey.lengths);
    before += documents;
    report("tokenizing", input.bytes_read(), input.bytes_on_disk());
    if (more && options.first > 0 && before >= options.first) {  // how many follow is not known
      survey.exact = false;
      break;
    }
  }
  survey.documents = before;
  leave_out_empty(survey);
  return survey;
}

constexpr std::int64_t kShortestRow = 16;
constexpr int kRowLengths = 4;  // N, N/2, N/4, N/8
constexpr double kCappedShare = 0.01;

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

// How many pieces there are of each length.
std::map<std::int64_t, std::int64_t> count_lengths(std::span<const PieceLength> pieces) {
  std::map<std::int64_t, std::int64_t> counts;
  for (const PieceLength& piece : pieces) ++counts[piece.length];
  return counts;
}

std::int64_t pieces_per_batch(const BatchShape& shape, std::int64_t edge) {
  return std::min(shape.tokens() / edge, shape.documents());
}

// The bucket edges that waste least, under the packer's rule for filling batches. Dynamic programming over the distinct
// lengths: the best k buckets for the shortest j lengths come from the best k-1 for some shorter ones. Longer edges
// never cost less, so the place of the last cut moves in one direction with j, and halving finds all of them in
// O(d log d) a bucket: a corpus with 131072 distinct lengths takes no time either.
class EdgeSearch {
 public:
  EdgeSearch(const std::map<std::int64_t, std::int64_t>& pieces, const BatchShape& shape) : shape_(shape) {
    for (const auto& [length, count] : pieces) {
      lengths_.push_back(length);
      counts_.push_back(counts_.back() + static_cast<double>(count));
      costs_.push_back(slots_per_piece(shape, length));
    }
  }

  BucketEdges best(std::int64_t buckets) {
    const std::size_t d = lengths_.size();
    std::vector<double> one(d + 1);
    for (std::size_t j = 1; j <= d; ++j) one[j] = slots(0, j);
    tables_ = {one};
    cuts_ = {std::vector<std::size_t>(d + 1, 0)};
    std::size_t chosen = 0;
    for (std::int64_t k = 1; k < std::min(buckets, static_cast<std::int64_t>(d)); ++k) {
      tables_.emplace_back(d + 1, 0.0);
      cuts_.emplace_back(d + 1, 0);
      fill(tables_.size() - 1, 1, d, 0, d - 1);
      if (tables_.back()[d] < tables_[chosen][d]) chosen = tables_.size() - 1;
    }
    BucketEdges found;
    found.slots = tables_[chosen][d];
    std::size_t j = d;
    for (std::size_t k = chosen + 1; k-- > 0 && j > 0; j = cuts_[k][j]) found.edges.push_back(raised(lengths_[j - 1]));
    std::ranges::reverse(found.edges);
    return found;
  }

 private:
  // The longest edge that costs no more, so that a document that comes later and is a little longer fits as well.
  std::int64_t raised(std::int64_t edge) const {
    return std::max(edge, std::min(shape_.tokens() / pieces_per_batch(shape_, edge), shape_.seq_len));
  }
  double slots(std::size_t i, std::size_t j) const { return costs_[j - 1] * (counts_[j] - counts_[i]); }

  // Row k at [low, high], whose cuts lie in [first, last].
  void fill(std::size_t k, std::size_t low, std::size_t high, std::size_t first, std::size_t last) {
    if (low > high) return;
    const std::size_t j = (low + high) / 2;
    double best = std::numeric_limits<double>::infinity();
    std::size_t cut = first;
    for (std::size_t i = first; i <= std::min(last, j - 1); ++i) {
      const double candidate = tables_[k - 1][i] + slots(i, j);
      if (candidate < best) {
        best = candidate;
        cut = i;
      }
    }
    tables_[k][j] = best;
    cuts_[k][j] = cut;
    fill(k, low, j - 1, first, cut);
    fill(k, j + 1, high, cut, last);
  }

  BatchShape shape_;
  std::vector<std::int64_t> lengths_;   // distinct, ascending
  std::vector<double> counts_ = {0.0};  // pieces among the shortest j lengths
  std::vector<double> costs_;           // of a piece in the bucket of that length
  std::vector<std::vector<double>> tables_;
  std::vector<std::vector<std::size_t>> cuts_;
};

}  // namespace

LengthSurvey survey_lengths(CorpusOptions corpus, const SurveyOptions& options, ThreadPool& pool) {
  REDLINE_CHECK(!corpus.train.empty(), "data.train names something");
  corpus.eval = corpus.train;  // something else to evaluate on: nothing is held out from data.train
  const auto opened = open_training_corpus(corpus);
  const auto* source = dynamic_cast<const DocumentSource*>(opened.get());
  LengthSurvey survey = source ? survey_source(*source, options, pool) : survey_stream(corpus, options, pool);
  if (survey.lengths.empty()) fail_user("{}: there is no text in it", corpus.train[0]);
  return survey;
}

double slots_per_piece(const BatchShape& shape, std::int64_t edge) {
  return static_cast<double>(shape.tokens()) / static_cast<double>(pieces_per_batch(shape, edge));
}

BucketEdges best_bucket_edges(const std::map<std::int64_t, std::int64_t>& pieces, std::int64_t buckets,
                              const BatchShape& shape) {
  REDLINE_CHECK(!pieces.empty() && buckets > 0, "there are pieces and buckets");
  return EdgeSearch(pieces, shape).best(buckets);
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

std::int64_t enough_segments(std::int64_t seq_len, double mean_length) {
  const double of_a_row = static_cast<double>(seq_len) / mean_length;
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::ceil(2 * of_a_row))));
}

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
    for (ModeFigures& m : r.modes) {
      m.speedup_over_pad = speedup(m, pad);
      m.speedup_over_longest_pad = speedup(m, a.row_lengths[0].modes[0]);
    }
  }
  ModeFigures& best = a.with_best_edges;
  best.speedup_over_pad = best.speedup_over_longest_pad = speedup(best, a.row_lengths[0].modes[0]);
  return a;
}

}  // namespace redline::data
