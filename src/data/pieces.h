// The unit of order: documents are cut into pieces of a row's tokens before anything is put in order, so that
// neighbours in a batch are no neighbours in a text.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "data/loader_state.h"

namespace redline::data {

class DocumentSource;

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

}  // namespace redline::data
