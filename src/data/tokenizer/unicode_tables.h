// Letters, numbers and NFC of tokenizer.json, as the Hugging Face library defines them (made by
// tools/make_unicode_tables.py). PCRE2 and utf8proc have the Unicode version of the system, which differs.
#pragma once

#include <cstdint>
#include <span>

namespace redline::data {

struct CodePoints {
  std::uint32_t low, high;  // both included
};
struct NewerCodePoints {
  std::uint32_t low, high;
  char category[3];  // "Lo"
};

std::span<const CodePoints> letter_ranges();  // \p{L}, sorted
std::span<const CodePoints> number_ranges();  // \p{N}, sorted
// Assigned after Unicode 14: an older PCRE2 takes them for unassigned.
std::span<const NewerCodePoints> newer_code_points();
// Newer than the NFC of tokenizer.json: it leaves them where they stand and composes nothing with them. So are those of
// newer_code_points().
std::span<const CodePoints> inert_code_points();

}  // namespace redline::data
