// The name of JSON values, for headers that only mention them: nlohmann's whole header takes a second to parse.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace redline::io {

// Objects keep the order of the file. Looking a key up walks the object: iterate over a large one (a vocabulary).
using Json = nlohmann::ordered_json;

}  // namespace redline::io
