// The order of turns among sources that are mixed by shares of tokens (data.weights). It knows nothing of documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/loader_state.h"

namespace redline::data {

// The next piece comes from the source that is furthest behind its share of the tokens drawn so far; of equals, from
// the first. So no source is ever ahead of its share by more than one piece. All of it is arithmetic of whole numbers:
// the same turns on every machine, and nothing to keep but the tokens of each source.
class MixtureSchedule {
 public:
  MixtureSchedule() = default;                                   // one source, whose turn it always is
  explicit MixtureSchedule(const std::vector<double>& weights);  // one above 0 for each source; none: as without

  bool several() const { return !parts_.empty(); }
  std::size_t sources() const { return several() ? parts_.size() : 1; }
  std::size_t next() const;
  void drew(std::size_t source, std::int64_t tokens);
  std::int64_t tokens(std::size_t source) const { return tokens_[source]; }  // of several

  // Whether a state can be of these sources. The initial state fits any.
  bool fits(const LoaderState& state) const;
  void restore(const LoaderState& state);  // one that fits

  // The number of a document among those of all sources, for messages.
  std::int64_t number(const PieceId& id) const {
    return several() ? static_cast<std::int64_t>(static_cast<std::uint64_t>(id.document) * parts_.size() +
                                                 static_cast<std::uint64_t>(id.source))
                     : id.document;
  }

 private:
  std::vector<std::uint64_t> parts_;  // shares, of their sum
  std::uint64_t whole_ = 0;           // their sum
  std::vector<std::int64_t> tokens_;
  std::uint64_t all_tokens_ = 0;
};

}  // namespace redline::data
