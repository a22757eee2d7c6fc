// A corpus of several: the entries of data.train with data.weights. Each keeps its documents, its order and its epochs;
// data/mixture_schedule.h decides the turns.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/corpus.h"

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
  std::optional<std::int32_t> end_token() const override;
  bool masked() const override;
  std::optional<std::vector<std::int32_t>> bytes_of_ids() const override;
  // Of the part that speaks. The loader asks each part for its own.
  std::unique_ptr<Feed> feed(const FeedOptions& options) const override;

 private:
  std::vector<Part> parts_;
  std::size_t speaks_;
};

// Short names of entries that tell them apart: the last part of their paths, where these differ, else all of them.
std::vector<std::string> names_of_entries(const std::vector<std::string>& entries);

}  // namespace redline::data
