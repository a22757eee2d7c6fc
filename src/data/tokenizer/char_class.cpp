// One byte a code point, 204 KiB: text touches a few pages of it.
#include "data/tokenizer/char_class.h"

#include "base/error.h"
#include "data/tokenizer/unicode_tables.h"

namespace redline::data {

bool is_space(std::uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0d);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

CharClasses::CharClasses() : classes_(std::make_unique<CharClass[]>(kSize)) {
  const auto fill = [this](std::span<const CodePoints> ranges, CharClass kind) {
    for (const CodePoints& r : ranges) {
      REDLINE_CHECK(r.high < kSize, "U+{:X}", r.high);
      for (std::uint32_t c = r.low; c <= r.high; ++c) classes_[c] = kind;
    }
  };
  fill(letter_ranges(), CharClass::letter);
  fill(number_ranges(), CharClass::number);
  for (std::uint32_t c = 0; c <= 0x3000; ++c)
    if (is_space(c)) classes_[c] = CharClass::space;
}

const CharClasses& CharClasses::get() {
  static const CharClasses classes;
  return classes;
}

}  // namespace redline::data
