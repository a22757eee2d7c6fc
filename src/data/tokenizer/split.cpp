// Patterns of the known families, patterns through PCRE2, and added tokens.
#include "data/tokenizer/split.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "data/tokenizer/unicode.h"
#include "data/utf8.h"
#include "io/json.h"

namespace redline::data {
namespace {

// The split patterns of GPT-2, LLaMA-3 and Qwen by hand. Chosen by the letter of the pattern, and held to PCRE2's
// pieces by tests over random text. On English, 306 and 315 MB/s (GPT-2, LLaMA-3) against 60 and 46 of PCRE2 with JIT.

constexpr auto kAsciiClass = [] {
  std::array<CharClass, 128> table{};
  for (std::size_t c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= 9 && c <= 13);
    table[c] = letter                 ? CharClass::letter
               : c >= '0' && c <= '9' ? CharClass::number
               : space                ? CharClass::space
                                      : CharClass::other;
  }
  return table;
}();

struct Character {
  CharClass kind;
  std::uint32_t size;
};

// Walks over one text.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text), classes_(CharClasses::get()) {}

  Character at(std::size_t i) const {
    const auto byte = static_cast<unsigned char>(text_[i]);
    if (byte < 0x80) return {kAsciiClass[byte], 1};
    const CodePoint c = decode_utf8(text_.data() + i);
    return {classes_.of(c.value), c.size};
  }
  std::size_t run_end(std::size_t i, CharClass kind) const {
    while (i < text_.size()) {
      const Character c = at(i);
      if (c.kind != kind) break;
      i += c.size;
    }
    return i;
  }
  // \s+(?!\S)|\s+ at white space.
  std::size_t space_end(std::size_t from) const {
    const std::size_t end = run_end(from, CharClass::space);
    if (end == text_.size()) return end;
    const auto last = static_cast<std::size_t>(previous_utf8(text_.data() + end) - text_.data());
    return last > from ? last : end;
  }

 protected:
  std::string_view text_;
  const CharClasses& classes_;
};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

class Gpt2Splitter final : public Splitter {
 public:
  Match next(std::string_view text, std::size_t from) override { return {from, end_of(text, from)}; }

 private:
  static std::size_t end_of(std::string_view text, std::size_t from) {
    const Cursor cursor(text);
    const char first = text[from];
    if (first == '\'' && from + 1 < text.size()) {
      const char a = text[from + 1];
      if (a == 's' || a == 't' || a == 'm' || a == 'd') return from + 2;
      if (from + 2 < text.size()) {
        const char b = text[from + 2];
        if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return from + 3;
      }
    }
    const Character c = cursor.at(from);
    if (c.kind != CharClass::space) return cursor.run_end(from + c.size, c.kind);
    if (first == ' ' && from + 1 < text.size()) {
      const Character after = cursor.at(from + 1);
      if (after.kind != CharClass::space) return cursor.run_end(from + 1 + after.size, after.kind);
    }
    return cursor.space_end(from);
  }
};

// LLaMA-3 and Qwen differ in how many digits stand together.
class Llama3Splitter final : public Splitter {
 public:
  explicit Llama3Splitter(int digits) : digits_(digits) {}
  Match next(std::string_view text, std::size_t from) override { return {from, end_of(text, from)}; }

 private:
  static bool newline(char c) { return c == '\r' || c == '\n'; }

  // 's, 't, 're, 've, 'm, 'll, 'd in any case; U+017F is an s in another case. 0: none.
  static std::size_t contraction(std::string_view text, std::size_t from) {
    if (text[from] != '\'' || from + 1 >= text.size()) return 0;
    const char a = lower(text[from + 1]);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (from + 2 >= text.size()) return 0;
    if (text.substr(from + 1, 2) == "\xc5\xbf") return 3;
    const char b = lower(text[from + 2]);
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
  }

  std::size_t end_of(std::string_view text, std::size_t from) const {
    const Cursor cursor(text);
    const char first = text[from];
    if (const std::size_t size = contraction(text, from); size > 0) return from + size;
    const Character c = cursor.at(from);
    if (c.kind == CharClass::letter) return cursor.run_end(from + c.size, CharClass::letter);
    if (c.kind == CharClass::number) {
      std::size_t end = from + c.size;
      for (int digits = 1; digits < digits_ && end < text.size(); ++digits) {
        const Character digit = cursor.at(end);
        if (digit.kind != CharClass::number) break;
        end += digit.size;
      }
      return end;
    }
    const std::size_t second = from + c.size;
    const bool more = second < text.size();
    const Character after = more ? cursor.at(second) : Character{CharClass::space, 0};
    if (after.kind == CharClass::letter && !newline(first)) return cursor.run_end(second, CharClass::letter);
    if (c.kind == CharClass::other) return with_newlines(text, cursor.run_end(second, CharClass::other));
    if (first == ' ' && after.kind == CharClass::other)
      return with_newlines(text, cursor.run_end(second, CharClass::other));
    // White space: up to its last newline where it has one.
    const std::size_t end = cursor.run_end(from, CharClass::space);
    for (std::size_t i = end; i > from; --i)
      if (newline(text[i - 1])) return i;
    return cursor.space_end(from);
  }

  static std::size_t with_newlines(std::string_view text, std::size_t end) {
    while (end < text.size() && newline(text[end])) ++end;
    return end;
  }

  int digits_;
};

template <class Make>
class FamilySplit final : public SplitPattern {
 public:
  explicit FamilySplit(Make make) : make_(make) {}
  std::unique_ptr<Splitter> splitter() const override { return make_(); }

 private:
  Make make_;
};

template <class Make>
std::unique_ptr<SplitPattern> family(Make make) {
  return std::make_unique<FamilySplit<Make>>(make);
}

}  // namespace

std::unique_ptr<SplitPattern> family_split(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return family([] { return std::make_unique<Gpt2Splitter>(); });
  if (pattern == kLlama3Pattern) return family([] { return std::make_unique<Llama3Splitter>(3); });
  if (pattern == kQwenPattern) return family([] { return std::make_unique<Llama3Splitter>(1); });
  return nullptr;
}

namespace {

// Split patterns through PCRE2. A pattern is untrusted: how long and in how much memory it may match is bounded.

template <class T, void (*free_it)(T*)>
struct Freed {
  void operator()(T* it) const { free_it(it); }
};
using CodeHandle = std::unique_ptr<pcre2_code, Freed<pcre2_code, pcre2_code_free>>;
using DataHandle = std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data, pcre2_match_data_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context, pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context, pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack, pcre2_jit_stack_free>>;

constexpr std::size_t kJitStackBytes = 4 << 20;
constexpr std::uint32_t kHeapKib = 64 << 10;       // of the matcher without JIT
constexpr std::size_t kLongestPattern = 16 << 10;  // the families' have 100 to 400 bytes
constexpr std::uint32_t kMatchLimit = 10'000'000;  // backtracks in one search: PCRE2's own default

std::string message_of(int code) {
  char text[256] = {};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

class Pcre2Splitter final : public Splitter {
 public:
  Pcre2Splitter(const pcre2_code* code, const std::string& where)
      : code_(code),
        where_(where),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)) {
    if (!data_ || !context_ || !stack_) throw std::bad_alloc();
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_heap_limit(context_.get(), kHeapKib);
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  }

  Match next(std::string_view text, std::size_t from) override {
    const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data_.get(), context_.get());
    if (found == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
    if (found == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (found < 0)
      fail_user("{}: the split pattern cannot be matched at byte {} of a text of {} bytes: {}", where_, from,
                text.size(), message_of(found));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data_.get());
    return {ends[0], ends[1]};
  }

 private:
  const pcre2_code* code_;
  const std::string& where_;
  DataHandle data_;
  MatchContext context_;
  JitStack stack_;
};

class Pcre2Split final : public SplitPattern {
 public:
  Pcre2Split(const std::string& pattern, std::string where) : where_(std::move(where)) {
    const CompileContext context(pcre2_compile_context_create(nullptr));
    if (!context) throw std::bad_alloc();
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_MULTILINE,
                              &error, &offset, context.get()));
    if (!code_) fail_user("{}: the split pattern does not compile: {}", where_, message_of(error));
    std::uint32_t empty = 0;
    pcre2_pattern_info(code_.get(), PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty != 0) fail_user("{}: the split pattern can match nothing at all, which redline does not support", where_);
    // Without JIT (a processor it does not know) PCRE2 interprets: slower, and the same pieces.
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
  }
  std::unique_ptr<Splitter> splitter() const override { return std::make_unique<Pcre2Splitter>(code_.get(), where_); }

 private:
  std::string where_;
  CodeHandle code_;
};

}  // namespace

std::unique_ptr<SplitPattern> raw_pcre2_split(const std::string& pattern, std::string where) {
  return std::make_unique<Pcre2Split>(pattern, std::move(where));
}

std::unique_ptr<SplitPattern> compile_pcre2_split(std::string_view pattern, std::string where) {
  if (pattern.size() > kLongestPattern)
    fail_user("{}: the split pattern has {} bytes; redline takes up to {}", where, pattern.size(), kLongestPattern);
  const std::string translated = pcre2_pattern(pattern, where);  // before `where` is given away
  return raw_pcre2_split(translated, std::move(where));
}

std::unique_ptr<SplitPattern> compile_split(std::string_view pattern, std::string where) {
  if (auto family = family_split(pattern)) return family;
  return compile_pcre2_split(pattern, std::move(where));
}

// A trie of bytes, walked from each place whose byte begins a token. Most texts hold none: looking for the first bytes
// is what counts.
AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  roots_.fill(-1);
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    std::int32_t node = 0;
    for (const char c : tokens_[t].content) {
      const auto byte = static_cast<unsigned char>(c);
      std::int32_t next = child(node, byte);
      if (next < 0) {
        next = static_cast<std::int32_t>(nodes_.size());
        nodes_.emplace_back();
        auto& children = nodes_[static_cast<std::size_t>(node)].children;
        children.insert(std::ranges::upper_bound(children, std::pair(byte, std::int32_t{0})), {byte, next});
      }
      node = next;
    }
    nodes_[static_cast<std::size_t>(node)].token = static_cast<std::int32_t>(t);
  }
  for (const auto& [byte, node] : nodes_[0].children) {
    roots_[byte] = node;
    only_first_byte_ = static_cast<char>(byte);
    ++first_bytes_;
  }
  if (std::ranges::any_of(tokens_, &AddedToken::single_word)) word_ = raw_pcre2_split(pcre2_word_character(), "\\w");
}

std::int32_t AddedTokens::child(std::int32_t node, unsigned char byte) const {
  const auto& children = nodes_[static_cast<std::size_t>(node)].children;
  const auto it = std::ranges::lower_bound(children, byte, {}, [](const auto& c) { return c.first; });
  return it != children.end() && it->first == byte ? it->second : -1;
}

bool AddedTokens::find(std::string_view text, std::size_t from, Found& found) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (first_bytes_ == 1) {
      const void* at = std::memchr(text.data() + begin, only_first_byte_, text.size() - begin);
      if (at == nullptr) return false;
      begin = static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
    } else {
      while (begin < text.size() && roots_[static_cast<unsigned char>(text[begin])] < 0) ++begin;
      if (begin == text.size()) return false;
    }
    std::int32_t node = roots_[static_cast<unsigned char>(text[begin])], longest = -1;
    std::size_t end = begin;
    for (std::size_t i = begin + 1; node >= 0; ++i) {
      const std::int32_t token = nodes_[static_cast<std::size_t>(node)].token;
      if (token >= 0) {
        longest = token;
        end = i;
      }
      if (i == text.size()) break;
      node = child(node, static_cast<unsigned char>(text[i]));
    }
    if (longest >= 0) {
      found = {begin, end, longest};
      return true;
    }
  }
  return false;
}

bool AddedTokens::stands_alone(std::string_view text, const Found& found) const {
  const auto is_word = [&](std::string_view character) {
    return word_->splitter()->next(character, 0).begin < character.size();
  };
  if (found.begin > 0) {
    const char* before = previous_utf8(text.data() + found.begin);
    if (is_word({before, static_cast<std::size_t>(text.data() + found.begin - before)})) return false;
  }
  if (found.end == text.size()) return true;
  return !is_word(text.substr(found.end, decode_utf8(text.data() + found.end).size));
}

void AddedTokens::split(std::string_view text, std::vector<AddedPart>& parts) const {
  std::size_t done = 0;
  Found found;
  for (std::size_t from = 0; !tokens_.empty() && find(text, from, found); from = found.end) {
    const AddedToken& token = tokens_[static_cast<std::size_t>(found.token)];
    if (token.single_word && !stands_alone(text, found)) continue;
    std::size_t begin = found.begin, end = found.end;
    if (token.lstrip) {
      while (begin > 0) {
        const char* before = previous_utf8(text.data() + begin);
        if (!is_space(decode_utf8(before).value)) break;
        begin = static_cast<std::size_t>(before - text.data());
      }
      begin = std::max(begin, done);
    }
    while (token.rstrip && end < text.size()) {
      const CodePoint c = decode_utf8(text.data() + end);
      if (!is_space(c.value)) break;
      end += c.size;
    }
    // A token that begins with white space can stand inside what the one before took along: it counts all the same.
    if (done < begin) parts.push_back({-1, text.substr(done, begin - done)});
    parts.push_back({token.id, {}});
    done = end;
  }
  if (done < text.size()) parts.push_back({-1, text.substr(done)});
}

}  // namespace redline::data
