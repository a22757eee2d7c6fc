// Classes of characters, one byte a code point: 204 KiB, of which text touches a few pages. NFC by utf8proc, a stretch
// at a time. Only stretches with a character from U+0300 on can change, and long runs of marks are sorted here:
// utf8proc's own sorting takes quadratic time on them.
#include "data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <bitset>
#include <memory>
#include <vector>

#include "base/error.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

constexpr std::uint32_t kInertEnd = 0x33000;

const std::bitset<kInertEnd>& inert() {
  static const auto bits = [] {
    auto made = std::make_unique<std::bitset<kInertEnd>>();
    const auto set = [&](std::uint32_t low, std::uint32_t high) {
      for (std::uint32_t c = low; c <= high; ++c) made->set(c);
    };
    for (const CodePoints& r : inert_code_points()) set(r.low, r.high);
    for (const NewerCodePoints& r : newer_code_points()) set(r.low, r.high);
    return made;
  }();
  return *bits;
}

bool is_inert(std::uint32_t c) { return c < kInertEnd && inert().test(c); }

// Neither changes nor composes with what stands before it: the text may be cut in front of it.
bool starts_afresh(std::uint32_t c) {
  if (c < 0x300) return true;
  if (is_inert(c)) return true;
  // Ideographs and Hangul syllables: the table need not be asked for them.
  if ((c >= 0x3400 && c <= 0x9fff) || (c >= 0xac00 && c <= 0xd7a3)) return true;
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  if (property->combining_class != 0 || property->decomp_seqindex != UINT16_MAX) return false;
  // Only marks, also of class 0, and Hangul vowels and finals compose with a character before them.
  const bool mark = property->category == UTF8PROC_CATEGORY_MN || property->category == UTF8PROC_CATEGORY_MC;
  return !mark && !(c >= 0x1160 && c <= 0x11ff);
}

// Appends NFC of a stretch that holds no inert code point.
void compose(std::string_view text, std::string& to) {
  std::vector<utf8proc_int32_t> points;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text.data() + at);
    at += c.size;
    utf8proc_int32_t parts[32];
    int last_boundary = 0;
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE);
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), parts, 32, options, &last_boundary);
    REDLINE_CHECK(n >= 0 && n <= 32, "U+{:X}: utf8proc says {}", c.value, n);
    points.insert(points.end(), parts, parts + n);
  }
  const auto rank = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto it = points.begin(); it != points.end();) {
    if (rank(*it) == 0) {
      ++it;
      continue;
    }
    const auto end = std::find_if(it, points.end(), [&](utf8proc_int32_t c) { return rank(c) == 0; });
    std::stable_sort(it, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) { return rank(a) < rank(b); });
    it = end;
  }
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  REDLINE_CHECK(n >= 0, "utf8proc says {}", n);
  for (utf8proc_ssize_t i = 0; i < n; ++i)
    append_utf8(static_cast<std::uint32_t>(points[static_cast<std::size_t>(i)]), to);
}

}  // namespace

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

std::string_view to_nfc(std::string_view text, std::string& scratch) {
  // Lead bytes below 0xCC are of characters below U+0300.
  const auto high = [](char b) { return static_cast<unsigned char>(b) >= 0xcc; };
  if (std::none_of(text.begin(), text.end(), high)) return text;
  scratch.clear();
  std::size_t copied = 0;  // text before it is in scratch
  std::size_t fresh = 0;   // the last place up to now where the text may be cut
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text.data() + at);
    if (starts_afresh(c.value)) {
      fresh = at;
      at += c.size;
      continue;
    }
    // An inert character in front takes no part in composition.
    std::size_t begin = fresh;
    if (at > begin) {
      const CodePoint before = decode_utf8(text.data() + begin);
      if (is_inert(before.value)) begin += before.size;
    }
    std::size_t end = at + c.size;
    while (end < text.size()) {
      const CodePoint next = decode_utf8(text.data() + end);
      if (starts_afresh(next.value)) break;
      end += next.size;
    }
    scratch.append(text, copied, begin - copied);
    compose(text.substr(begin, end - begin), scratch);
    copied = fresh = at = end;
  }
  if (copied == 0) return text;
  scratch.append(text, copied);
  return scratch;
}

}  // namespace redline::data
