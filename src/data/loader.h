// Documents to batches: order, splitting of long documents, packing. Batches are a pure function of (settings, state).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/batch.h"
#include "data/source.h"

namespace redline::data {

// All that is needed to go on from a point between two batches. Small: it lives in the checkpoint.
struct LoaderState {
  struct Piece {
    std::int64_t document = 0, begin = 0;  // a document (or what is left of it, from token `begin`) read but not placed
    bool operator==(const Piece&) const = default;
  };
  std::int64_t next_document = 0;  // a position in the order (data/order.h): it counts on over epochs
  std::vector<Piece> waiting;      // the packer's lookahead, in order
  bool operator==(const LoaderState&) const = default;
};

// An endless source is read in index order, a finite one in a fresh permutation each epoch. Documents longer than
// seq_len are cut into pieces of it. packing: "pack" puts pieces back to back, "pad" takes one piece a row.
class Loader {
 public:
  Loader(std::unique_ptr<DocumentSource> source, BatchShape shape, std::string packing);
  ~Loader();

  // Fills `batch`. Without `repeat` a finite source is read once: the last batch may be a part of
  // one, then comes false.
  bool next(Batch& batch, bool repeat = true);

  LoaderState state() const;
  void restore(const LoaderState& state);  // a UserError when the source cannot be the one that the state is from
  const DocumentSource& source() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline::data
