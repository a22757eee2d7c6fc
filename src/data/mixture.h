// A corpus of several: the entries of data.train with data.weights. Each keeps its documents, its order and its epochs;
// a schedule of shares of tokens decides whose turn it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/pieces.h"

namespace redline::data {

class Mixture final : public Corpus {
 public:
  struct Part {
    std::string name;  // in metrics
    double weight = 1;
    std::unique_ptr<Corpus> corpus;
  };
  // `speaks`: the part whose tokenizer encodes and decodes text for all of them.
  Mixture(std::vector<Part> parts, std::size_t speaks);

  const std::vector<Part>& parts() const { return parts_; }
  std::vector<double> weights() const;
  // Each part is put in order by a seed of its own.
  FeedOptions options_of(std::size_t part, FeedOptions options) const;

  std::string name() const override;  // "a mixture of web.jsonl (70%) and code (30%)"
  bool endless() const override;      // where any part is
  std::int64_t vocabulary() const override;
  std::uint64_t fingerprint() const override;
  std::vector<Path> files() const override;
  bool checked_when_read() const override;
  std::uint64_t order_seed() const override { return parts_[0].corpus->order_seed(); }
  std::string decode(const std::vector<std::int32_t>& tokens) const override;
  std::vector<std::int32_t> encode(const std::string& text) const override;
  std::optional<std::vector<std::int32_t>> beginning() const override;  // parts that know it agree
  std::optional<std::int32_t> end_token() const override;
  bool masked() const override;
  std::optional<std::vector<std::int32_t>> bytes_of_ids() const override;
  // The feed of the part that speaks. The loader asks each part for its own.
  std::unique_ptr<Feed> feed(const FeedOptions& options) const override;

 private:
  std::vector<Part> parts_;
  std::size_t speaks_;
};

// Short names of entries that tell them apart: the last part of their paths, where these differ, else all of them.
std::vector<std::string> names_of_entries(const std::vector<std::string>& entries);

// The order of turns among sources that are mixed by shares of tokens (data.weights). It knows nothing of documents.
//
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
