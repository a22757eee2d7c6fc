// Split patterns of tokenizer.json are written for Oniguruma; this says the same to PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace redline::data {

// A pattern for PCRE2 (UTF, multi-line, newline is LF) that matches what Oniguruma matches with `pattern`. Character
// sets are spelt out, since \s, \w, \h and the Unicode versions of the two differ. What is not known to mean the same
// is a UserError that names the construct and starts with `where`.
std::string pcre2_pattern(std::string_view pattern, std::string_view where);

// One character of Rust's \w, which decides what is a single word.
std::string pcre2_word_character();

}  // namespace redline::data
