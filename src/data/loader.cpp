// The packer: a short list of waiting documents, from which each batch is filled.
#include "data/loader.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/order.h"

namespace redline::data {
namespace {

// On ping in rows of 1024, 64 waiting documents fill 99.8% of a batch of 8 rows; more gain nothing that can be seen.
constexpr std::size_t kLookahead = 64;

struct Waiting {
  LoaderState::Piece at;
  std::vector<std::int32_t> tokens;  // the whole document
  std::int32_t after = kNoTarget;    // what follows it in the source

  std::int64_t left() const { return static_cast<std::int64_t>(tokens.size()) - at.begin; }
};

}  // namespace

struct Loader::Impl {
  std::unique_ptr<DocumentSource> source;
  BatchShape shape;
  bool pad = false;
  std::int64_t next_document = 0;
  std::vector<Waiting> waiting;                  // oldest first
  std::vector<std::vector<std::int32_t>> spare;  // buffers of documents that are done

  Waiting fetch(LoaderState::Piece at) {
    Waiting w{at, {}, source->token_after(at.document)};
    if (!spare.empty()) {
      w.tokens = std::move(spare.back());
      spare.pop_back();
    }
    source->read(at.document, w.tokens);
    return w;
  }

  // An epoch begins only when nothing of the last one waits, so that a small source is not in the list several times.
  bool may_draw(bool repeat) const {
    const std::int64_t documents = source->documents();
    if (documents == 0 || next_document < documents) return true;
    return repeat && (next_document % documents != 0 || waiting.empty());
  }

  void refill(bool repeat) {
    while (waiting.size() < kLookahead && may_draw(repeat)) {
      const std::int64_t document = document_at(next_document, source->documents(), source->order_seed());
      waiting.push_back(fetch({document, 0}));
      ++next_document;
    }
  }

  std::int64_t piece_length(const Waiting& w) const { return std::min(w.left(), shape.seq_len); }

  // The oldest opens a batch, so that nothing waits for ever; then the largest that fits, the older of equals. Small
  // ones gather in the list by that and close the gaps at the end.
  std::size_t choose(const Batch& batch) const {
    const std::size_t none = waiting.size();
    if (waiting.empty() || batch.documents == shape.documents()) return none;
    if (pad) return batch.documents < shape.rows ? 0 : none;
    if (batch.documents == 0) return 0;
    std::size_t best = none;
    std::int64_t best_length = 0;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      const std::int64_t length = piece_length(waiting[i]);
      if (length <= batch.room() && length > best_length) {
        best = i;
        best_length = length;
      }
    }
    return best;
  }

  // What is left of a long document goes to the back, so that neighbouring rows come from different documents.
  void place(std::size_t chosen, Batch& batch) {
    Waiting& w = waiting[chosen];
    const auto begin = static_cast<std::size_t>(w.at.begin), length = static_cast<std::size_t>(piece_length(w));
    const bool last = begin + length == w.tokens.size();
    const bool placed = batch.append(std::span(w.tokens).subspan(begin, length),
                                     last ? w.after : w.tokens[begin + length], w.at.document);
    REDLINE_CHECK(placed, "a piece of {} tokens was chosen for room of {}", length, batch.room());
    w.at.begin += static_cast<std::int64_t>(length);
    const auto it = waiting.begin() + static_cast<std::ptrdiff_t>(chosen);
    std::rotate(it, it + 1, waiting.end());
    if (last) {
      spare.push_back(std::move(waiting.back().tokens));
      waiting.pop_back();
    }
  }
};

Loader::Loader(std::unique_ptr<DocumentSource> source, BatchShape shape, std::string packing)
    : impl_(std::make_unique<Impl>()) {
  REDLINE_CHECK(source != nullptr, "a loader needs a source");
  REDLINE_CHECK(shape.rows > 0 && shape.seq_len > 0 && shape.max_segments > 0, "a batch has room for something");
  REDLINE_CHECK(packing == "pack" || packing == "pad", "unknown packing {}", packing);
  impl_->source = std::move(source);
  impl_->shape = shape;
  impl_->pad = packing == "pad";
}

Loader::~Loader() = default;

bool Loader::next(Batch& batch, bool repeat) {
  REDLINE_CHECK(batch.shape == impl_->shape, "the batch has another shape than the loader");
  batch.clear();
  for (;;) {
    impl_->refill(repeat);
    const std::size_t chosen = impl_->choose(batch);
    if (chosen == impl_->waiting.size()) return batch.documents > 0;
    impl_->place(chosen, batch);
  }
}

LoaderState Loader::state() const {
  LoaderState state{impl_->next_document, {}};
  for (const Waiting& w : impl_->waiting) state.waiting.push_back(w.at);
  return state;
}

void Loader::restore(const LoaderState& state) {
  const std::int64_t documents = impl_->source->documents();
  const auto changed = [&] {
    fail_user(
        "the training data are not those that the checkpoint was written with ({} now); "
        "use the same data.train, data.eval, data.documents and data.seed",
        impl_->source->name());
  };
  if (state.next_document < 0 || state.waiting.size() > kLookahead) changed();
  std::vector<Waiting> waiting;
  for (const LoaderState::Piece& piece : state.waiting) {
    if (piece.document < 0 || (documents != 0 && piece.document >= documents)) changed();
    waiting.push_back(impl_->fetch(piece));
    if (piece.begin < 0 || waiting.back().left() <= 0) changed();
  }
  impl_->waiting = std::move(waiting);
  impl_->next_document = state.next_document;
}

const DocumentSource& Loader::source() const { return *impl_->source; }

}  // namespace redline::data
