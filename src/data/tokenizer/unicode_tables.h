// What tokenizer.json means by letters, numbers and NFC, as the Hugging Face library answers it (made by
// tools/make_unicode_tables.py): the Unicode versions of PCRE2 and utf8proc are those of the system, and differ.
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
// Newer than the NFC of tokenizer.json: it leaves them where they stand and composes nothing with them. What is in
// newer_code_points() is so too.
std::span<const CodePoints> inert_code_points();

}  // namespace redline::data
