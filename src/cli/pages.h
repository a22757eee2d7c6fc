// The manual page and the completions, made from the tables of commands, flags, keys and presets. `redline man` and
// `redline completion` print them, and `make install` installs them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"

namespace redline::cli {

struct PresetWords {
  std::string name, about;  // about: the first sentence of its file
};
std::vector<PresetWords> preset_words();

std::string_view exit_statuses();  // one sentence, as the help ends

int run_completion(const Words& words);
int run_man(const Words& words);

}  // namespace redline::cli
