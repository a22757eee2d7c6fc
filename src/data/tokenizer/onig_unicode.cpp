// The libonig of the system is older than the one inside the Hugging Face library: Debian 12's knows Unicode 14. Its
// UTF-8 is copied, and what it answers about categories, \w, \d and some scripts gets the newer code points. Every other
// property is refused, since nobody knows which of them belong to it.
#include "data/tokenizer/onig_unicode.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/unicode_tables.h"

namespace redline::data {
namespace {

using Ranges = std::vector<CodePoints>;

constexpr std::string_view kCategories[] = {
    "L",  "LC", "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co"};
struct Script {
  std::string_view name;
  Ranges newer;  // after Unicode 14
};
const Script kScripts[] = {
    {"Han", {{0x2b739, 0x2b739}, {0x2ebf0, 0x2ee5d}, {0x31350, 0x323af}}},
    {"Hiragana", {{0x1b132, 0x1b132}}},
    {"Katakana", {{0x1b155, 0x1b155}}},
    {"Hangul", {}},
    {"Latin", {{0xa7cb, 0xa7cd}, {0xa7da, 0xa7dc}, {0x1df25, 0x1df2a}}},
    {"Cyrillic", {{0x1c89, 0x1c8a}, {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}}},
    {"Arabic", {{0x897, 0x897}, {0x10ec2, 0x10ec4}, {0x10efc, 0x10eff}}},
    {"Thai", {}},
};

Ranges merged(Ranges ranges, const Ranges& more) {
  ranges.insert(ranges.end(), more.begin(), more.end());
  std::ranges::sort(ranges, {}, &CodePoints::low);
  Ranges result;
  for (const CodePoints& r : ranges) {
    if (!result.empty() && r.low <= result.back().high + 1)
      result.back().high = std::max(result.back().high, r.high);
    else
      result.push_back(r);
  }
  return result;
}

Ranges without(const Ranges& ranges, const Ranges& holes) {
  const auto complement = [](const Ranges& sorted) {
    Ranges result;
    std::uint32_t next = 0;
    for (const CodePoints& r : sorted) {
      if (r.low > next) result.push_back({next, r.low - 1});
      next = r.high + 1;
    }
    if (next <= 0x10ffff) result.push_back({next, 0x10ffff});
    return result;
  };
  return complement(merged(complement(ranges), holes));
}

Ranges newer_of(std::initializer_list<std::string_view> categories) {
  Ranges result;
  for (const NewerCodePoints& r : newer_code_points())
    for (const std::string_view category : categories)
      if (std::string_view(r.category).starts_with(category)) result.push_back({r.low, r.high});
  return result;
}

// What onig_utf8() knows, by Oniguruma's number of a property: the count of the ranges, then their ends.
class Properties {
 public:
  static const Properties& get() {
    static const Properties properties;
    return properties;
  }
  const std::vector<OnigCodePoint>* find(OnigCtype ctype) const {
    const auto it = ranges_.find(ctype);
    return it == ranges_.end() ? nullptr : &it->second;
  }
  bool is_newer_word(OnigCodePoint code) const {
    const auto after = std::ranges::upper_bound(newer_words_, code, {}, &CodePoints::low);
    return after != newer_words_.begin() && code <= std::prev(after)->high;
  }

 private:
  Properties() : newer_words_(merged(newer_of({"L", "M", "Nd", "Nl", "Pc"}), {})) {
    for (const std::string_view category : kCategories) {
      const OnigCtype ctype = number_of(category);
      if (category == "Cn")
        keep(ctype, without(known(ctype), newer_of({""})));
      else if (category == "C")
        keep(ctype, without(known(ctype), newer_of({"L", "M", "N", "P", "S", "Z"})));
      else
        keep(ctype, merged(known(ctype), category == "LC" ? newer_of({"Lu", "Ll", "Lt"}) : newer_of({category})));
    }
    for (const Script& script : kScripts)
      keep(number_of(script.name), merged(known(number_of(script.name)), script.newer));
    keep(ONIGENC_CTYPE_WORD, merged(known(ONIGENC_CTYPE_WORD), newer_words_));
    keep(ONIGENC_CTYPE_DIGIT, merged(known(ONIGENC_CTYPE_DIGIT), newer_of({"Nd"})));
    for (const OnigCtype same : {ONIGENC_CTYPE_SPACE, ONIGENC_CTYPE_BLANK, ONIGENC_CTYPE_XDIGIT, ONIGENC_CTYPE_ASCII})
      keep(same, known(same));
  }

  static OnigCtype number_of(std::string_view name) {
    std::string text(name);
    auto* begin = reinterpret_cast<OnigUChar*>(text.data());
    const int ctype = OnigEncodingUTF8.property_name_to_ctype(&OnigEncodingUTF8, begin, begin + text.size());
    REDLINE_CHECK(ctype >= 0, "libonig does not know {}", name);
    return static_cast<OnigCtype>(ctype);
  }
  static Ranges known(OnigCtype ctype) {
    OnigCodePoint ignored = 0;
    const OnigCodePoint* ranges = nullptr;
    REDLINE_CHECK(OnigEncodingUTF8.get_ctype_code_range(ctype, &ignored, &ranges) == 0, "property {}", ctype);
    Ranges result;
    for (OnigCodePoint i = 0; i < ranges[0]; ++i) result.push_back({ranges[1 + 2 * i], ranges[2 + 2 * i]});
    return result;
  }
  void keep(OnigCtype ctype, const Ranges& ranges) {
    std::vector<OnigCodePoint>& flat = ranges_[ctype];
    flat.assign(1, static_cast<OnigCodePoint>(ranges.size()));
    for (const CodePoints& r : ranges) flat.insert(flat.end(), {r.low, r.high});
  }

  std::map<OnigCtype, std::vector<OnigCodePoint>> ranges_;
  Ranges newer_words_;
};

int property_of(OnigEncodingType* encoding, OnigUChar* begin, OnigUChar* end) {
  const int ctype = OnigEncodingUTF8.property_name_to_ctype(encoding, begin, end);
  if (ctype >= 0 && Properties::get().find(static_cast<OnigCtype>(ctype)) == nullptr)
    return ONIGERR_INVALID_CHAR_PROPERTY_NAME;
  return ctype;
}

int ranges_of(OnigCtype ctype, OnigCodePoint* single_byte_end, const OnigCodePoint* ranges[]) {
  const auto* known = Properties::get().find(ctype);
  if (known == nullptr) return ONIGERR_INVALID_POSIX_BRACKET_TYPE;  // [:alpha:] and others without a name
  *single_byte_end = 0x80;
  *ranges = known->data();
  return 0;
}

// Asked while matching, for \w and \b.
int is_of(OnigCodePoint code, OnigCtype ctype) {
  const int known = OnigEncodingUTF8.is_code_ctype(code, ctype);
  return known == 0 && ctype == ONIGENC_CTYPE_WORD ? Properties::get().is_newer_word(code) : known;
}

}  // namespace

OnigEncodingType& onig_utf8() {
  static OnigEncodingType encoding = [] {
    OnigEncodingType copy = OnigEncodingUTF8;
    copy.property_name_to_ctype = property_of;
    copy.get_ctype_code_range = ranges_of;
    copy.is_code_ctype = is_of;
    return copy;
  }();
  return encoding;
}

}  // namespace redline::data
