// Character sets of Oniguruma as the inside of a PCRE2 class: "\p{L}\x{31350}-\x{323af}".
#pragma once

#include <string>
#include <string_view>

namespace redline::data {

struct ClassText {
  std::string text;
  bool exact_negation = true;  // false: [^...] around it is right, but \P{...} inside a larger class is not
};

ClassText spaces();                        // \s
ClassText not_spaces();                    // \S
ClassText word_characters(bool in_class);  // \w, which Oniguruma takes for less inside [...]
// A general category or script by its name, case and "_" ignored; empty text where it is not known.
ClassText property(std::string_view name);
bool depends_on_case(std::string_view name);  // Lu, Ll, Lt: they mean something else under (?i)

}  // namespace redline::data
