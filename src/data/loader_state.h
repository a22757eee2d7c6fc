// The state of a loader between two batches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace redline::data {

// A place between two pieces of the order. A window is the set of pieces that is shuffled at once: of a stream, some
// thousand pieces; of endless documents, one document.
struct FeedPlace {
  std::int64_t epoch = 0;
  std::int64_t window = 0;    // the id of its first document; pieces with random access have no windows
  std::int64_t ordinal = 0;   // streams: how many documents of the files stand before the window
  std::int64_t position = 0;  // pieces drawn: of the window, or of the epoch where there are no windows
  bool operator==(const FeedPlace&) const = default;
};

// Some tokens of a document, from `begin` to the end of the piece that holds it.
struct PieceId {
  std::int64_t document = 0, begin = 0;
  std::int64_t source = 0;  // of a mixture, whose document it is
  bool operator==(const PieceId&) const = default;
};

// Where one source of a mixture stands, and the tokens of the pieces that were drawn from it so far.
struct SourcePlace {
  FeedPlace next;
  std::int64_t tokens = 0;
  bool operator==(const SourcePlace&) const = default;
};

// Everything needed to go on from a point between two batches, on any number of ranks. It is small, and lives in the
// checkpoint.
struct LoaderState {
  // Counted up when a place comes to mean other tokens. 1 put whole documents in order, 2 their pieces.
  static constexpr std::int64_t kOrder = 2;

  FeedPlace next;                                          // where the next piece is drawn; of a mixture, nothing
  std::vector<PieceId> waiting;                            // the packer's lookahead, in order: read but not placed
  std::int64_t truncated_tokens = 0, empty_documents = 0;  // dropped and passed over so far
  std::int64_t order = kOrder;                             // of the writer
  std::vector<SourcePlace> sources = {};                   // of a mixture, in its order
  bool operator==(const LoaderState&) const = default;
};

// The contribution of one source of a mixture.
struct SourceShare {
  std::string name;
  std::int64_t tokens = 0;       // of the pieces that were drawn from it
  double share = 0;              // of those of all
  std::optional<double> epochs;  // how often its documents were read, as 1.37; nothing as for Loader::epochs_read()
  bool operator==(const SourceShare&) const = default;
};

// A state of another order is a UserError: its place means nothing here.
void require_order(const LoaderState& state);

}  // namespace redline::data
