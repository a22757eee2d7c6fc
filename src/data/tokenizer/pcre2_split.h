// Split patterns compiled by PCRE2, with JIT.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/splitter.h"

namespace redline::data {

// `pattern` is Oniguruma's. A construct that is not supported is a UserError that starts with `where`. A pattern of a
// known family takes the faster way (family_split.h).
std::unique_ptr<SplitPattern> compile_split(std::string_view pattern, std::string where);
// The same always through PCRE2: the reference for our own code.
std::unique_ptr<SplitPattern> compile_pcre2_split(std::string_view pattern, std::string where);
// A pattern already written for PCRE2 (onig_pattern.h).
std::unique_ptr<SplitPattern> raw_pcre2_split(const std::string& pattern, std::string where);

}  // namespace redline::data
