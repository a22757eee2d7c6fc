// "[CONFIG] [key=value ...] [--preset NAME] [--tier NAME] [--overlay FILE]": how several commands name a configuration.
#pragma once

#include <string>
#include <vector>

#include "cli/arguments.h"
#include "config/load.h"

namespace redline::cli {

struct ConfigWords {
  std::vector<std::string> words;  // key=value; at most one that is not: a TOML file or the name of a preset
  std::string preset;
  std::string tier, overlay;  // put over the file or preset, in this order, and under key=value

  void declare(Arguments& arguments);
};

// The file, preset and overrides among the words. A word that is neither a file nor a preset is a UserError.
config::Sources sources_of(const ConfigWords& given);

// Calls config::load() and takes the model's sizes from the folder that model.init_from names.
config::Config load_config(const config::Sources& sources);

// The default name of a run: the preset's, "quick", or the stem of the file.
std::string name_of(const config::Sources& sources);

struct PresetWords {
  std::string name, about;  // about: the first sentence of its file
};
std::vector<PresetWords> preset_words();

}  // namespace redline::cli
