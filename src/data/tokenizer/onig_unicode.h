// UTF-8 for Oniguruma, with the character properties of the Unicode version that tokenizer.json means.
#pragma once

#include <oniguruma.h>

namespace redline::data {

// Made on first use; from then on it is only read. A property that is not known to be right is an error of onig_new.
OnigEncodingType& onig_utf8();

}  // namespace redline::data
