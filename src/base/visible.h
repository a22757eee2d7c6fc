// Text that others wrote (file names, keys, what a model says) on its way to a person: what would steer a terminal is
// shown.
#pragma once

#include <string>
#include <string_view>

namespace redline {

// Control characters, bytes that are no UTF-8 and what turns the direction of writing become "\x1b" and "\u202e";
// newlines and tabs stay.
std::string visible(std::string_view text);

}  // namespace redline
