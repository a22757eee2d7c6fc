// Text from outside (file names, keys, a model's output) on its way to a person: characters that would steer a terminal
// are escaped.
#pragma once

#include <string>
#include <string_view>

namespace redline {

// Control characters, invalid UTF-8 and marks of writing direction become "\x1b" and "\u202e";
// newlines and tabs stay.
std::string visible(std::string_view text);

}  // namespace redline
