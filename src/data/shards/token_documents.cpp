// Widening of token ids, checked in the same pass; parts, text and the numbers of sources of ready-made tokens.
#include "data/shards/token_documents.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "base/error.h"
#include "base/hash.h"
#include "base/words.h"

namespace redline::data {

static_assert(std::endian::native == std::endian::little, "files of tokens are read in place");

std::int64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8: return 1;
    case TokenType::i16:
    case TokenType::u16: return 2;
    case TokenType::i32:
    case TokenType::u32: return 4;
    case TokenType::i64: break;
  }
  return 8;
}

std::string_view name_of(TokenType type) {
  switch (type) {
    case TokenType::u8: return "uint8";
    case TokenType::i8: return "int8";
    case TokenType::i16: return "int16";
    case TokenType::u16: return "uint16";
    case TokenType::i32: return "int32";
    case TokenType::u32: return "uint32";
    case TokenType::i64: break;
  }
  return "int64";
}

std::int64_t TokenArray::at(std::int64_t i) const {
  REDLINE_CHECK(i >= 0 && i < count, "token {} of {}", i, count);
  return visit([i](const auto* ids) { return static_cast<std::int64_t>(ids[i]); });
}

bool TokenArray::append(std::int64_t begin, std::int64_t end, std::int64_t vocabulary,
                        std::vector<std::int32_t>& to) const {
  REDLINE_CHECK(begin >= 0 && begin <= end && end <= count, "tokens {} to {} of {}", begin, end, count);
  return visit([&](const auto* ids) {
    using Id = std::remove_cvref_t<decltype(*ids)>;
    using Unsigned = std::make_unsigned_t<Id>;
    to.insert(to.end(), ids + begin, ids + end);
    Unsigned largest = 0;  // found by vector code
    for (std::int64_t i = begin; i < end; ++i) {
      const auto id = static_cast<Unsigned>(ids[i]);
      largest = id > largest ? id : largest;
    }
    return begin == end || largest_or_huge<Id>(largest) < static_cast<std::uint64_t>(vocabulary);
  });
}

const Tokenizer& LazyTokenizer::get() const {
  const std::lock_guard lock(mutex_);
  if (!opened_) {
    auto tokenizer = open_tokenizer(name_, key_);
    if (hash_ && tokenizer->fingerprint() != *hash_)
      fail_user("{}: the tokenizer {} is not the one that the data was prepared with ({} instead of {})", key_, name_,
                hex64(tokenizer->fingerprint()), hex64(*hash_));
    opened_ = std::move(tokenizer);
  }
  return *opened_;
}

TokenDocuments::TokenDocuments(TokenSettings settings, std::string tokenizer,
                               std::optional<std::uint64_t> tokenizer_hash)
    : settings_(std::move(settings)), tokenizer_(std::move(tokenizer), settings_.key, tokenizer_hash) {}

void TokenDocuments::set(std::int64_t all_documents, std::int64_t vocabulary, bool split) {
  vocabulary_ = vocabulary;
  count_ = all_documents;
  if (count_ == 0) fail_user("{}: {} holds no documents", settings_.key, name());
  if (split || settings_.part == Part::all) return;
  if (all_documents == 1) {
    const std::int64_t tokens = document_length(0), held_out = held_out_tokens(tokens);
    if (masked() || held_out == 0)  // a part of a conversation would be no question and no answer
      fail_user("{}: one {} is too few to hold a part out for evaluation; set data.eval", settings_.key,
                masked() ? "conversation" : "document of " + counted(tokens, "token"));
    const bool last = settings_.part == Part::held_out;
    begin_ = last ? tokens - held_out : 0;
    end_ = last ? tokens : tokens - held_out;
    return;
  }
  const std::int64_t held_out = std::max<std::int64_t>(1, all_documents / kHeldOutOf);
  if (settings_.part == Part::held_out) first_ = all_documents - held_out;
  count_ = settings_.part == Part::held_out ? held_out : all_documents - held_out;
}

std::uint64_t TokenDocuments::fingerprint() const {
  const std::uint64_t numbers[] = {contents(), static_cast<std::uint64_t>(first_), static_cast<std::uint64_t>(count_),
                                   static_cast<std::uint64_t>(begin_), static_cast<std::uint64_t>(end_)};
  return hash64(std::as_bytes(std::span(numbers).first(end_ < 0 ? 3 : 5)));
}

std::string TokenDocuments::decode(const std::vector<std::int32_t>& tokens) const {
  if (tokenizer_) return tokenizer_.get().decode(tokens);
  std::string text;
  for (const std::int32_t id : tokens) text += fmt::format("<{}>", id);
  return text;
}

std::vector<std::int32_t> TokenDocuments::encode(const std::string& text) const {
  if (!tokenizer_)
    fail_user("{}: {} brings no tokenizer, so text cannot become tokens; name the one it was made with", settings_.key,
              name());
  return tokenizer_.get().encode(text);
}

std::optional<std::int32_t> TokenDocuments::end_token() const {
  return tokenizer_ ? tokenizer_.get().end_token() : std::nullopt;
}

// The token that begins a text stands before the first documents, or it does not. One that also closes documents tells
// nothing.
std::optional<std::vector<std::int32_t>> TokenDocuments::beginning() const {
  constexpr std::int64_t kLookedAt = 16;
  if (!tokenizer_) return {};
  const Tokenizer& tokenizer = tokenizer_.get();
  const std::optional<std::int32_t> bos = tokenizer.bos_token();
  std::vector<std::int32_t> begin = tokenizer.beginning();
  if (begin.empty() && bos) begin = {*bos};
  if (begin.empty() || begin == std::vector{tokenizer.end_token().value_or(-1)}) return std::vector<std::int32_t>();
  std::vector<std::int32_t> first;
  for (std::int64_t i = 0; i < std::min(kLookedAt, count_); ++i) {
    first.clear();
    append(i, 0, std::min(length(i), std::ssize(begin)), first);
    if (first != begin) return std::vector<std::int32_t>();
  }
  return begin;
}

std::optional<std::vector<std::int32_t>> TokenDocuments::bytes_of_ids() const {
  if (!tokenizer_) return {};
  return data::bytes_of_ids(tokenizer_.get(), end_token());
}

void TokenDocuments::read(std::int64_t index, std::vector<std::int32_t>& tokens) const {
  tokens.clear();
  append(index, 0, length(index), tokens);
}

void TokenDocuments::append(std::int64_t index, std::int64_t begin, std::int64_t count,
                            std::vector<std::int32_t>& tokens) const {
  REDLINE_CHECK(index >= 0 && index < count_, "no document {} among {}", index, count_);
  append_tokens(first_ + index, begin_ + begin, count, tokens);
}

std::int64_t TokenDocuments::length(std::int64_t index) const {
  REDLINE_CHECK(index >= 0 && index < count_, "no document {} among {}", index, count_);
  return end_ < 0 ? document_length(first_ + index) : end_ - begin_;
}

MappedFile map_tokens(const Path& path, std::string_view if_missing) {
  if (!real_files().exists(path)) fail_user("{}: {}", path.string(), if_missing);
  try {
    return MappedFile(path);
  } catch (const MachineError& e) {
    throw UserError(e.what());
  }
}

}  // namespace redline::data
