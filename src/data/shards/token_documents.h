// The base class of sources of ready-made tokens: a part of the documents, a vocabulary, and text through a tokenizer
// that is opened at its first use.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "data/corpus.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {

// A tokenizer by name, opened at first use. A hash that does not fit is a UserError.
class LazyTokenizer {
 public:
  LazyTokenizer() = default;  // there is none
  LazyTokenizer(std::string name, std::string key, std::optional<std::uint64_t> hash)
      : name_(std::move(name)), key_(std::move(key)), hash_(hash) {}
  explicit operator bool() const { return !name_.empty(); }
  const Tokenizer& get() const;

 private:
  std::string name_, key_;
  std::optional<std::uint64_t> hash_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Tokenizer> opened_;
};

struct TokenSettings {
  std::string key;  // leads the errors: data.train
  Part part = Part::all;
  bool evaluation = false;                     // of a prepared folder take the val split when it has one
  std::int64_t seed = 0;                       // of the order
  std::string tokenizer;                       // of formats that bring none; empty: ids only
  std::optional<std::int32_t> end_token = {};  // of formats without an index; empty: the format's usual one
};

// Of documents that nobody split, the last in so many are held out.
inline constexpr std::int64_t kHeldOutOf = 64;

class TokenDocuments : public DocumentSource {
 public:
  std::int64_t documents() const final { return count_; }
  std::int64_t vocabulary() const final { return vocabulary_; }
  std::uint64_t order_seed() const final { return static_cast<std::uint64_t>(settings_.seed); }
  std::uint64_t fingerprint() const final;
  std::string decode(const std::vector<std::int32_t>& tokens) const final;
  std::vector<std::int32_t> encode(const std::string& text) const final;
  std::optional<std::int32_t> end_token() const override;
  std::optional<std::vector<std::int32_t>> bytes_of_ids() const final;
  void read(std::int64_t index, std::vector<std::int32_t>& tokens) const final;
  std::int64_t length(std::int64_t index) const final;
  void append(std::int64_t index, std::int64_t begin, std::int64_t count,
              std::vector<std::int32_t>& tokens) const final;

 protected:
  TokenDocuments(TokenSettings settings, std::string tokenizer, std::optional<std::uint64_t> tokenizer_hash);
  // Called once by the constructor of a derived class. `split`: the documents come split, so the part does not
  // matter.
  void set(std::int64_t all_documents, std::int64_t vocabulary, bool split);
  const TokenSettings& settings() const { return settings_; }

  // With indices among all documents; the public ones are of the part.
  virtual void append_tokens(std::int64_t index, std::int64_t begin, std::int64_t count,
                             std::vector<std::int32_t>& tokens) const = 0;
  virtual std::int64_t document_length(std::int64_t index) const = 0;
  virtual std::uint64_t contents() const = 0;  // a number that other contents do not share

 private:
  TokenSettings settings_;
  LazyTokenizer tokenizer_;
  std::int64_t first_ = 0, count_ = 0, vocabulary_ = 0;
};

}  // namespace redline::data
