// Cutting of a text into pieces: tokens that are found in it before it is split, and the patterns that split the rest.
// Those of the known families are code of our own, several times as fast as PCRE2, which runs all others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace redline::data {

struct Match {
  std::size_t begin, end;
};

// Finds matches for one thread.
class Splitter {
 public:
  virtual ~Splitter() = default;
  // The first match at or after `from`, which is less than text.size(); {size, size} when there is none. A match is
  // never empty. `text` is valid UTF-8. A UserError when the pattern takes too long or needs too much memory.
  virtual Match next(std::string_view text, std::size_t from) = 0;
};

// Immutable, and shared by threads.
class SplitPattern {
 public:
  virtual ~SplitPattern() = default;
  virtual std::unique_ptr<Splitter> splitter() const = 0;  // lives no longer than the pattern
};

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                                                   R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Null for a pattern that is not of a known family, letter for letter.
std::unique_ptr<SplitPattern> family_split(std::string_view pattern);

// `pattern` is Oniguruma's. A construct that is not supported is a UserError that starts with `where`. A pattern of a
// known family takes the faster way (family_split).
std::unique_ptr<SplitPattern> compile_split(std::string_view pattern, std::string where);
// The same always through PCRE2: the reference for our own code.
std::unique_ptr<SplitPattern> compile_pcre2_split(std::string_view pattern, std::string where);
// A pattern already written for PCRE2 (pcre2_pattern).
std::unique_ptr<SplitPattern> raw_pcre2_split(const std::string& pattern, std::string where);

// A pattern for PCRE2 (UTF, multi-line, newline is LF) that matches the same as Oniguruma with `pattern`. Character
// sets are spelt out, since \s, \w, \h and the Unicode versions of the two differ. A construct that is not known to
// mean the same is a UserError that names it and starts with `where`.
std::string pcre2_pattern(std::string_view pattern, std::string_view where);

// One character of Rust's \w, which decides what is a single word.
std::string pcre2_word_character();

// Tokens that are found in the text before it is split: special ones such as <|endoftext|>, and words that were added
// to a vocabulary.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;             // only where no word character touches it
  bool lstrip = false, rstrip = false;  // takes the white space on that side along
  bool normalized = false;              // is looked for in the text after normalisation
};

// A part of a text: an added token, or text between two.
struct AddedPart {
  std::int32_t id;  // -1: text
  std::string_view text;
};

// Finds the longest token at the first place that has one, and goes on after it.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);  // contents differ and are not empty

  bool empty() const { return tokens_.empty(); }
  // The parts of `text` in order, into `parts`.
  void split(std::string_view text, std::vector<AddedPart>& parts) const;

 private:
  struct Node {
    std::int32_t token = -1;  // index into tokens_
    std::vector<std::pair<unsigned char, std::int32_t>> children;
  };
  struct Found {
    std::size_t begin, end;
    std::int32_t token;
  };

  bool find(std::string_view text, std::size_t from, Found& found) const;
  bool stands_alone(std::string_view text, const Found& found) const;
  std::int32_t child(std::int32_t node, unsigned char byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<std::int32_t, 256> roots_{};  // child of the root for a first byte, -1: none
  int first_bytes_ = 0;                    // how many different ones
  char only_first_byte_ = 0;               // when it is one
  std::shared_ptr<const SplitPattern> word_;
};

}  // namespace redline::data
