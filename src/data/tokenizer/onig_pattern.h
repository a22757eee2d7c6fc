// Translates the split patterns of tokenizer.json, which are written for Oniguruma, to PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace redline::data {

// A pattern for PCRE2 (UTF, multi-line, newline is LF) that matches the same as Oniguruma with `pattern`. Character
// sets are spelt out, since \s, \w, \h and the Unicode versions of the two differ. A construct that is not known to
// mean the same is a UserError that names it and starts with `where`.
std::string pcre2_pattern(std::string_view pattern, std::string_view where);

// One character of Rust's \w, which decides what is a single word.
std::string pcre2_word_character();

}  // namespace redline::data
