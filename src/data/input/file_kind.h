// The kind of a file, by its name and its bytes, so that nothing but text passes for text.
#pragma once

#include <string>
#include <string_view>

#include "base/files.h"

namespace redline::data {

// The reason why bytes are no text, and what to do: "this is a Parquet file, not text; ...". Empty where they may be
// text. `start`: the first bytes of a file, some kilobytes where it has them; `middle`: others of it, or none;
// `separator`: control characters that belong there. Bytes of any kind pass with `any_bytes`, but for formats that wrap
// text, such as archives, which nobody means.
std::string why_not_text(std::string_view start, std::string_view middle, std::string_view separator, bool any_bytes);

// "an ELF program", from a magic number that is too long to begin a file of tokens by chance; empty: none was found.
std::string_view known_format(std::string_view start);

// The same for a .csv or .tsv, by its name (less .gz or .zst): its rows would be one long document. `separator_key`
// sets a separator, which makes documents of them.
std::string why_not_one_document(const Path& path, std::string_view separator_key);

}  // namespace redline::data
