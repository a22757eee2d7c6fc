// The thread that packs and assembles, and the queue between it and training.
#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/words.h"
#include "data/batch_maker.h"
#include "data/mixture.h"

namespace redline::data {
namespace {

constexpr std::int64_t kAskedOfPacker = 1 << 17;  // pieces

std::int64_t batch_bytes(const BatchShape& shape) {
  return 12 * shape.tokens() + 12 * shape.documents();  // tokens, targets, positions; doc_offsets and sources
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) * 0x1p-20; }

}  // namespace

void require_order(const LoaderState& state) {
  if (state.order == LoaderState::kOrder) return;
  fail_user(
      "the checkpoint was written by a redline that read the data in another order ({}, now {}: pieces of documents "
      "are "
      "shuffled, no longer whole documents), so that its place in the data means nothing here; finish the run with the "
      "redline that began it, or begin a new one from its weights with model.init_from",
      state.order, LoaderState::kOrder);
}

struct Loader::Impl {
  // A batch that is ready, or the end, or what went wrong instead.
  struct Filled {
    std::unique_ptr<Batch> batch;
    LoaderState state;
    std::exception_ptr error;
  };

  std::unique_ptr<Corpus> corpus;
  const Mixture* mixture;
  LoaderOptions options;
  PipelineCounters counters;
  std::unique_ptr<BatchMaker> maker;
  LoaderState state;

  std::mutex mutex;
  std::condition_variable has_batch, has_room;
  std::thread thread;  // packs and assembles
  bool stopping = false;
  std::deque<Filled> queue;
  std::vector<std::unique_ptr<Batch>> spare;

  PipelineReporter reporter;
  bool warned_of_limit = false;

  Impl(std::unique_ptr<Corpus> c, LoaderOptions o)
      : corpus(std::move(c)),
        mixture(dynamic_cast<const Mixture*>(corpus.get())),
        options(std::move(o)),
        maker(open_maker()),
        state(maker->state()),
        reporter(counters, maker->stage(), options.workers) {}
  ~Impl() { stop(); }

  // The corpora that are read, each with how it is put in order.
  std::vector<OrderedCorpus> sources() const {
    if (!mixture) return {{corpus.get(), options.feed}};
    std::vector<OrderedCorpus> all;
    for (std::size_t i = 0; i < mixture->parts().size(); ++i)
      all.push_back({mixture->parts()[i].corpus.get(), mixture->options_of(i, options.feed)});
    return all;
  }

  std::unique_ptr<BatchMaker> open_maker() {
    REDLINE_CHECK(options.rank >= 0 && options.rank < options.ranks, "rank {} of {}", options.rank, options.ranks);
    options.feed.cut = options.packer.cut();
    auto opened = make_batch_maker(sources(), mixture ? MixtureSchedule(mixture->weights()) : MixtureSchedule(),
                                   options.packer, {options.rank, options.ranks}, options.workers,
                                   options.ram_bytes - queue_bytes(options), counters);
    options.workers = opened->workers();
    return opened;
  }

  static std::int64_t queue_bytes(const LoaderOptions& o) {
    if (o.workers == 0) return 0;
    const std::int64_t one = batch_bytes(o.packer.shape), all = o.prefetch * one;
    if (all >= o.ram_bytes)
      throw NoRoomForBatches(fmt::format(
          "data.ram_mib ({:.0f}) leaves no room for data.prefetch = {} of {:.2f} MiB; raise the one or lower "
          "the other",
          mib(o.ram_bytes), counted(o.prefetch, "batch"), mib(one)));
    return all;
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    has_room.notify_all();
    for (ChunkReader* reader : maker->readers()) reader->stop();
    if (thread.joinable()) thread.join();
  }

  void start() {
    stopping = false;
    for (std::int64_t i = static_cast<std::int64_t>(spare.size()); i < options.prefetch; ++i)
      spare.push_back(std::make_unique<Batch>(options.packer.shape));
    thread = std::thread([this] { run(); });
  }

  void run() {
    for (;;) {
      std::unique_ptr<Batch> batch;
      {
        std::unique_lock lock(mutex);
        wait_counted(has_room, lock, counters.pack.waiting_ns, [&] { return stopping || !spare.empty(); });
        if (stopping) return;
        batch = std::move(spare.back());
        spare.pop_back();
      }
      Filled filled;
      try {
        if (maker->fill(*batch)) filled.batch = std::move(batch);
        filled.state = maker->state();
      } catch (...) {
        filled.error = std::current_exception();
      }
      const bool last = !filled.batch;
      {
        const std::lock_guard lock(mutex);
        if (stopping) return;  // a reader that was stopped looks like the end
        queue.push_back(std::move(filled));
      }
      has_batch.notify_one();
      if (last) return;
    }
  }

  bool next_here(Batch& batch) {
    const StageTimer waiting(counters.train.waiting_ns);
    const bool more = maker->fill(batch);
    state = maker->state();
    return more;
  }

  bool wait_for_batch(std::unique_lock<std::mutex>& lock) {
    const StageTimer waiting(counters.train.waiting_ns);
    const auto ready = [&] { return !queue.empty(); };
    if (options.report) return has_batch.wait_for(lock, std::chrono::duration<double>(options.report_seconds), ready);
    has_batch.wait(lock, ready);
    return true;
  }

  bool next_queued(Batch& batch) {
    if (!thread.joinable()) start();
    std::unique_lock lock(mutex);
    while (!wait_for_batch(lock)) {  // in slices, so that a pipeline which stands still is reported as well
      lock.unlock();
      report();
      lock.lock();
    }
    if (queue.front().error) std::rethrow_exception(queue.front().error);  // it stays: there is nothing after it
    state = queue.front().state;
    if (!queue.front().batch) {
      batch.clear();
      return false;
    }
    std::swap(batch, *queue.front().batch);
    spare.push_back(std::move(queue.front().batch));
    queue.pop_front();
    lock.unlock();
    has_room.notify_one();
    return true;
  }

  void report(bool now = false) {
    if (!options.report || (!now && !reporter.due(options.report_seconds))) return;
    PipelineStats figures = reporter.take();
    {
      const std::lock_guard lock(mutex);
      figures.batches_ready = static_cast<std::int64_t>(queue.size());
    }
    figures.batches_room = options.workers == 0 ? 0 : options.prefetch;
    std::int64_t held = queue_bytes(options);
    for (const ChunkReader* reader : maker->readers()) {
      figures.chunks_ready += reader->ready();
      held += reader->held_bytes();
    }
    figures.held_mib = mib(held);
    options.report(figures);
  }

  void warn_of_limit() {
    if (warned_of_limit || std::ranges::none_of(maker->readers(), &ChunkReader::over_limit)) return;
    warned_of_limit = true;
    log::warn(
        "data.ram_mib ({:.0f}) is less than the documents that must be held at once take; reading goes on one piece at "
        "a time",
        mib(options.ram_bytes));
  }

  void restore(const LoaderState& to) {
    require_order(to);
    stop();
    while (!queue.empty()) {
      if (queue.front().batch) spare.push_back(std::move(queue.front().batch));
      queue.pop_front();
    }
    if (!maker->restore(to))
      fail_user(
          "the training data are not those that the checkpoint was written with ({} now); use the same data.train, "
          "data.eval, data.documents and data.seed",
          corpus->name());
    state = to;
  }
};

Loader::Loader(std::unique_ptr<Corpus> corpus, LoaderOptions options) {
  REDLINE_CHECK(corpus != nullptr, "a loader needs a corpus");
  impl_ = std::make_unique<Impl>(std::move(corpus), std::move(options));
}

Loader::~Loader() = default;

bool Loader::next(Batch& batch) {
  Impl& i = *impl_;
  REDLINE_CHECK(batch.shape == i.options.packer.shape, "the batch has another shape than the loader");
  const bool more = i.options.workers == 0 ? i.next_here(batch) : i.next_queued(batch);
  i.counters.train.items += 1;
  i.counters.train.tokens += batch.real_tokens;
  i.report();
  i.warn_of_limit();
  return more;
}

const LoaderState& Loader::state() const { return impl_->state; }

void Loader::restore(const LoaderState& state) {
  const LoaderState before = impl_->state;
  try {
    impl_->restore(state);
  } catch (...) {
    impl_->restore(before);
    throw;
  }
}

const Corpus& Loader::corpus() const { return *impl_->corpus; }

std::optional<EpochSize> Loader::epoch_size() const {
  return impl_->mixture ? std::nullopt : impl_->maker->source(0).size();
}

std::optional<Epoch> Loader::epoch() const {
  const std::optional<EpochSize> size = epoch_size();
  if (!size) return {};
  const std::vector<PieceLength> lengths = impl_->maker->source(0).first_lengths(kAskedOfPacker);
  Epoch epoch{*size, 0};
  if (lengths.empty()) return epoch;
  const Packed packed = run_packer(impl_->options.packer, lengths);
  const auto pieces = static_cast<double>(size->pieces);
  const double asked = std::min(pieces, static_cast<double>(kAskedOfPacker));
  const double rows = pieces / asked * static_cast<double>(packed.rows);
  epoch.batches = rows / static_cast<double>(impl_->options.packer.shape.rows);
  return epoch;
}

std::optional<double> Loader::epochs_read() const {
  const LoaderState& s = impl_->state;
  const std::optional<double> share = impl_->mixture ? std::nullopt : impl_->maker->source(0).share_before(s.next);
  if (!share) return {};
  double read = static_cast<double>(s.next.epoch) + *share;
  if (const auto size = epoch_size())  // what waits in the packer was drawn, and is in no batch yet
    read -= static_cast<double>(s.waiting.size()) / static_cast<double>(size->pieces);
  return std::max(read, 0.0);
}

std::vector<SourceShare> Loader::shares() const {
  const Impl& i = *impl_;
  if (!i.mixture) return {};
  std::vector<SourceShare> all;
  std::int64_t tokens = 0;
  for (std::size_t k = 0; k < i.mixture->parts().size(); ++k) {
    const SourcePlace at = i.state.sources.empty() ? SourcePlace{} : i.state.sources[k];
    const std::optional<double> share = i.maker->source(k).share_before(at.next);
    SourceShare& of = all.emplace_back(SourceShare{i.mixture->parts()[k].name, at.tokens, 0, {}});
    if (share) of.epochs = static_cast<double>(at.next.epoch) + *share;
    tokens += at.tokens;
  }
  for (SourceShare& of : all)
    if (tokens > 0) of.share = static_cast<double>(of.tokens) / static_cast<double>(tokens);
  return all;
}

// An epoch's last pieces fill batches alone, and the first of the next one fill the rest of the last: so it counts by
// the rows that it has. Pieces of a document stand in one window, so that it is known again among the last ones.
Epoch count_epoch(std::unique_ptr<Corpus> corpus, LoaderOptions options, const CountProgress& progress) {
  constexpr double kReportSeconds = 0.2;
  const auto window = static_cast<std::size_t>(std::max<std::int64_t>(options.feed.shuffle_buffer, 1 << 15));
  options.feed.repeat = false;
  options.rank = 0;
  options.ranks = 1;
  options.report = {};
  if (options.workers > 0)  // nothing else needs the cores yet
    options.workers = std::clamp<std::int64_t>(std::thread::hardware_concurrency(), options.workers, 16);
  const BatchShape shape = options.packer.shape;
  Loader loader(std::move(corpus), std::move(options));
  Batch batch(shape);
  Epoch epoch;
  std::unordered_set<std::int64_t> seen, seen_before;
  std::int64_t rows = 0, rows_of_last = shape.rows;
  double reported = 0;  // at the first batch, too
  while (loader.next(batch)) {
    rows += shape.rows;
    rows_of_last = (batch.real_tokens + shape.seq_len - 1) / shape.seq_len;
    epoch.tokens += batch.real_tokens;
    epoch.pieces += batch.documents;
    for (const std::int64_t document : batch.sources)
      if (!seen_before.contains(document) && seen.insert(document).second) ++epoch.documents;
    if (seen.size() >= 2 * window) {
      seen_before = std::move(seen);
      seen.clear();
    }
    if (progress && steady_seconds() - reported >= kReportSeconds) {
      reported = steady_seconds();
      progress(epoch, loader.epochs_read());
    }
  }
  epoch.batches = static_cast<double>(rows - (shape.rows - rows_of_last)) / static_cast<double>(shape.rows);
  return epoch;
}

std::int64_t Loader::workers() const { return impl_->options.workers; }
void Loader::report_now() { impl_->report(true); }

}  // namespace redline::data
