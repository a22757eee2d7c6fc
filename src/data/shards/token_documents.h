// Sources of ready-made tokens: ids of a mapped file in the integer type of its format, and the base class with a part
// of the documents, a vocabulary, and text through a tokenizer that is opened at its first use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/files.h"
#include "data/corpus.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {

enum class TokenType { u8, i8, i16, u16, i32, u32, i64 };

std::int64_t size_of(TokenType type);
std::string_view name_of(TokenType type);  // "uint16", as numpy has it

// The largest of ids, taken as unsigned; a negative id becomes a number above any vocabulary, so that one comparison
// finds both kinds of bad ids.
template <class T>
std::uint64_t largest_or_huge(std::make_unsigned_t<T> largest) {
  const bool negative =
      std::is_signed_v<T> && largest > static_cast<std::make_unsigned_t<T>>(std::numeric_limits<T>::max());
  return negative ? std::numeric_limits<std::uint64_t>::max() : static_cast<std::uint64_t>(largest);
}

// Little-endian, aligned to its type. A view: somebody else keeps the bytes.
struct TokenArray {
  const std::byte* data = nullptr;
  std::int64_t count = 0;
  TokenType type = TokenType::u16;

  std::int64_t at(std::int64_t i) const;
  // Adds ids [begin, end) to `to`. False when one is not in [0, vocabulary): `to` then holds nonsense.
  bool append(std::int64_t begin, std::int64_t end, std::int64_t vocabulary, std::vector<std::int32_t>& to) const;

  // Calls body(const T* ids) with the array's own type.
  template <class Body>
  auto visit(const Body& body) const {
    switch (type) {
      case TokenType::u8: return body(reinterpret_cast<const std::uint8_t*>(data));
      case TokenType::i8: return body(reinterpret_cast<const std::int8_t*>(data));
      case TokenType::i16: return body(reinterpret_cast<const std::int16_t*>(data));
      case TokenType::u16: return body(reinterpret_cast<const std::uint16_t*>(data));
      case TokenType::i32: return body(reinterpret_cast<const std::int32_t*>(data));
      case TokenType::u32: return body(reinterpret_cast<const std::uint32_t*>(data));
      case TokenType::i64: break;
    }
    return body(reinterpret_cast<const std::int64_t*>(data));
  }
};

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
  std::optional<TokenType> type = {};          // of files without a header; empty: as their words show
  std::int64_t vocabulary = 0;                 // the model's; 0: not known
};

// Where documents come without a split, the last in so many are held out; of one document, the last of its tokens.
inline constexpr std::int64_t kHeldOutOf = 64;
inline constexpr std::int64_t kFewestParted = 4;  // tokens of a document that can be parted
// Of a document of so many tokens.
inline std::int64_t held_out_tokens(std::int64_t tokens) {
  return tokens < kFewestParted ? 0 : std::max<std::int64_t>(2, tokens / kHeldOutOf);
}

class TokenDocuments : public DocumentSource {
 public:
  std::int64_t documents() const final { return count_; }
  std::int64_t vocabulary() const final { return vocabulary_; }
  std::uint64_t order_seed() const final { return static_cast<std::uint64_t>(settings_.seed); }
  std::uint64_t fingerprint() const final;
  std::string decode(const std::vector<std::int32_t>& tokens) const final;
  std::vector<std::int32_t> encode(const std::string& text) const final;
  std::optional<std::int32_t> end_token() const override;
  // Found by looking: files of other programs do not say it. Nothing where no tokenizer is known.
  std::optional<std::vector<std::int32_t>> beginning() const override;
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
  std::int64_t begin_ = 0, end_ = -1;  // tokens of the one document that there is, where it is parted; -1: it is not
};

// Maps a file of token ids. A missing or unreadable file is a UserError.
MappedFile map_tokens(const Path& path, std::string_view if_missing = "there is no such file");

}  // namespace redline::data
