// TOML text as a flat list of settings. Nothing of the TOML library shows here: it is slow to compile and
// stays in one file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys.h"

namespace redline::config {

inline constexpr std::size_t kMostTomlBytes = std::size_t{1} << 20;  // of a whole file

struct Setting {
  std::string name;  // dotted
  Value value;
  int line = 0;
  bool table = false;  // a section: it has a name and a line, its settings come by themselves
};

// All settings in the order of their lines. A syntax error is a UserError: "FILE:LINE: ..."; so is a file that is too
// large, or a key of too many parts, before the library sees it.
std::vector<Setting> read_toml(std::string_view text, std::string_view file_name);

// One value on its own ("64", "\"x\"", "[1, 2]"); nothing when the text is not TOML.
std::optional<Value> read_toml_value(std::string_view text);

}  // namespace redline::config
