// Unicode normalisation form C as the Hugging Face library does it: code points newer than its tables stay as they are.
#pragma once

#include <string>
#include <string_view>

namespace redline::data {

// Valid UTF-8 in and out. The result is `text` itself where nothing changes, or stands in `scratch`.
std::string_view to_nfc(std::string_view text, std::string& scratch);

}  // namespace redline::data
