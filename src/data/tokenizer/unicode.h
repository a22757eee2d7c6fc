// Characters as tokenizer.json has them, which is as the Hugging Face library defines them: letters, numbers and
// spaces, and normalisation form C. PCRE2 and utf8proc have the Unicode version of the system, which differs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace redline::data {

// The tables of unicode_tables.cpp, which tools/make_unicode_tables.py makes.
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

enum class CharClass : std::uint8_t { other, letter, number, space };  // [^\s\p{L}\p{N}], \p{L}, \p{N}, \s

// White space as Unicode has it; the same in Oniguruma's \s and in Rust's.
bool is_space(std::uint32_t code_point);

class CharClasses {
 public:
  static const CharClasses& get();  // made on first use, in under a millisecond

  CharClass of(std::uint32_t code_point) const { return code_point < kSize ? classes_[code_point] : CharClass::other; }

 private:
  static constexpr std::uint32_t kSize = 0x33000;  // past the last letter
  CharClasses();
  std::unique_ptr<CharClass[]> classes_;
};

// Valid UTF-8 in and out. The result is `text` itself where nothing changes, or stands in `scratch`.
std::string_view to_nfc(std::string_view text, std::string& scratch);

}  // namespace redline::data
