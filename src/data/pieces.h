// The unit of order: documents are cut into pieces of a row's tokens before anything is put in order, so that
// neighbours in a batch are no neighbours in a text. The order is arithmetic: there is no list of pieces, and nothing
// to save but a place in it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace redline::data {

class DocumentSource;

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

// Every piece but a document's last has the tokens of a row, counted from the document's first token. A single last
// token is no piece of its own: it is the target of the token before, and has no target itself.
struct Cut {
  std::int64_t row = std::numeric_limits<std::int64_t>::max();  // tokens
  bool truncate = false;                                        // only the first piece of a document is read

  // At least one. The piece of a document of less than two tokens is empty, and is skipped when it is drawn.
  std::int64_t pieces(std::int64_t length) const { return truncate || length < 2 ? 1 : (length - 2) / row + 1; }
  // Where the piece ends that holds token `at` of a document.
  std::int64_t end(std::int64_t at, std::int64_t length) const {
    const std::int64_t begin = at - at % row;
    return length - begin <= row ? length : begin + row;
  }
};

// The size of an epoch.
struct EpochSize {
  std::int64_t documents = 0, tokens = 0, pieces = 0;
};

// A piece as the packer knows it.
struct PieceLength {
  std::int32_t length = 0;
  bool ends = true;  // its last token has no target: the document ends there
  bool sole = true;  // of its document
};

// The pieces that documents of these lengths make, in their order or in one that training could read them in.
std::vector<PieceLength> pieces_of(std::span<const std::int64_t> lengths, const Cut& cut, bool shuffled = false);

// The pieces of all documents, numbered. It keeps a number for every 64 documents, and none where each document is one
// piece: 13 MB for 100 million documents.
class PieceNumbers {
 public:
  PieceNumbers(const DocumentSource& source, const Cut& cut);  // asks for every length; all cores take part

  struct Place {
    std::int64_t document = 0, begin = 0;
    std::int64_t length = 0;  // of the document
  };
  Place at(std::int64_t piece) const;
  std::int64_t pieces() const { return pieces_; }
  std::int64_t tokens() const { return tokens_; }

 private:
  const DocumentSource& source_;
  Cut cut_;
  std::vector<std::int64_t> before_;  // pieces before each block of documents, and in all
  std::int64_t pieces_ = 0, tokens_ = 0;
};

// The place of a piece, or the rest of one, that waited in a packer. A UserError when there can be no such piece.
PieceNumbers::Place place_of(const DocumentSource& source, const PieceId& id, const Cut& cut);

// The order in which the pieces of a known number of documents are read: shuffled anew each epoch, or as they stand.
class PieceOrder {
 public:
  // `seed`: where the order is not the source's own.
  PieceOrder(const DocumentSource& source, const Cut& cut, bool shuffle, std::optional<std::uint64_t> seed);

  PieceNumbers::Place at(std::int64_t epoch, std::int64_t position) const;
  std::int64_t pieces() const { return numbers_.pieces(); }
  void require(const FeedPlace& place) const;  // a UserError when there is no such place
  EpochSize size() const;
  std::vector<PieceLength> first_lengths(std::int64_t most) const;
  double share_before(const FeedPlace& place) const;

 private:
  const DocumentSource& source_;
  Cut cut_;
  PieceNumbers numbers_;
  bool shuffle_;
  std::uint64_t seed_;
};

// The element at `position`, which counts on over epochs: another permutation of [0, count) each epoch.
std::int64_t shuffled_at(std::int64_t position, std::int64_t count, std::uint64_t seed);

// The element of a window at `position` < `count`: a permutation of its own for each (seed, epoch, window).
std::int64_t shuffled_in_window(std::int64_t position, std::int64_t count, std::uint64_t seed, std::int64_t epoch,
                                std::int64_t window);

}  // namespace redline::data
