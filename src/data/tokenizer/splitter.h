// Finding the pieces of a text: a pattern through PCRE2 with JIT, or code of our own for the patterns of the known
// families, which finds the same pieces several times as fast.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace redline::data {

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                                                   R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

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

// `pattern` is Oniguruma's; what is not supported is a UserError that starts with `where`.
std::unique_ptr<SplitPattern> compile_split(std::string_view pattern, std::string where);
// The same always through PCRE2: what our own code is held against.
std::unique_ptr<SplitPattern> compile_pcre2_split(std::string_view pattern, std::string where);
// Null for a pattern that is not of a known family, letter for letter.
std::unique_ptr<SplitPattern> family_split(std::string_view pattern);
// A pattern already written for PCRE2 (onig_pattern.h).
std::unique_ptr<SplitPattern> raw_pcre2_split(const std::string& pattern, std::string where);

}  // namespace redline::data
