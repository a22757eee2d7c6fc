// What a file is by its name and its bytes, so that nothing but text passes for text.
#pragma once

#include <string>
#include <string_view>

#include "base/files.h"

namespace redline::data {

// Why bytes are not the text that they were taken for, and what to do: "this is a Parquet file, not text; ...". Empty
// where they may be text. `start`: the first bytes of a file, some kilobytes where it has them; `middle`: others of it,
// or none; `separator`: control characters that belong there. Bytes of any kind pass with `any_bytes`, but for those
// that hold text in a wrapping, which nobody means.
std::string why_not_text(std::string_view start, std::string_view middle, std::string_view separator, bool any_bytes);

// "an ELF program" where bytes begin as no file of tokens would by chance, which a magic number of two bytes may be.
std::string_view known_format(std::string_view start);

// The same for a .csv or .tsv, by its name (less .gz or .zst): its rows would be one long document. `separator_key` is
// how a separator is set, which makes documents of them.
std::string why_not_one_document(const Path& path, std::string_view separator_key);

}  // namespace redline::data
