// Parsing of untrusted JSON: the one place where nlohmann's exceptions become our sentences.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"
#include "io/json_fwd.h"

namespace redline::io {

// A UserError "FILE: not valid JSON at byte N: ..." when it does not parse, or has duplicate keys.
Json parse_json(std::string_view text, std::string_view file_name);
inline constexpr std::uint64_t kMostJsonBytes = std::uint64_t{64} << 20;  // of a whole file
Json read_json(FileSystem& files, const Path& path);  // one that is missing or larger is a UserError

// Untrusted text as part of a sentence: quoted, control bytes escaped, at most 120 bytes of it.
std::string in_quotes(std::string_view text);

// An untrusted name of a file beside another one: a UserError where it could lead out of that folder.
void require_plain_name(std::string_view name, std::string_view file_name);

// The text of a file that is handed on with a model as it is; nothing where there is none. UserErrors: a .json that is
// no JSON object, and a link that leads nowhere or out of its folder, since whatever it leads to would be handed on. In
// Hugging Face's cache the files of snapshots/ID are links into blobs/ beside it, which are as good as files.
std::optional<std::string> read_side_file(FileSystem& files, const Path& path);

// A member of the wanted kind, or a UserError that names the file and the key.
const Json& member_at(const Json& object, std::string_view key, std::string_view file_name);
std::int64_t integer_at(const Json& object, std::string_view key, std::string_view file_name);
double number_at(const Json& object, std::string_view key, std::string_view file_name);
std::string string_at(const Json& object, std::string_view key, std::string_view file_name);
bool boolean_at(const Json& object, std::string_view key, std::string_view file_name);
// `otherwise` where the member is missing or null.
bool boolean_or(const Json& object, std::string_view key, bool otherwise, std::string_view file_name);

}  // namespace redline::io
