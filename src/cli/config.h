// "[CONFIG] [key=value ...] [--preset NAME] [--tier NAME] [--overlay FILE]": how several commands name a configuration.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "config/load.h"

namespace redline::cli {

struct ConfigWords {
  std::vector<std::string> words;  // key=value; at most one that is not: a TOML file or the name of a preset
  std::string preset;
  std::string tier, overlay;  // put over the file or preset, in this order, and under key=value

  // `with_folders`: a folder of text may stand in the place of the file.
  void declare(Arguments& arguments, bool with_folders = false);
};

// The file, preset and overrides among the words. A word that is neither a file nor a preset is a UserError.
config::Sources sources_of(const ConfigWords& given);

// Calls config::load() and takes the model's sizes from the folder that model.init_from names, and from its size what
// the recipe lacks.
config::Config load_config(const config::Sources& sources);
// The same for a command that looks at steps and does not train: random tokens stand in for data that nobody named, and
// where `say` is set a note tells so; an end of the run need not be given. A step has the micro-batches that each of so
// many ranks would take; 0: those that the configuration has.
config::Config load_to_measure(const config::Sources& sources, bool say = true, std::int64_t ranks = 1);

// The default name of a run: the stem of the file, the preset's, the last part of model.init_from, or "quick".
std::string name_of(const config::Sources& sources);

struct PresetWords {
  std::string name, about;  // about: the first sentence of its file
};
std::vector<PresetWords> preset_words();

}  // namespace redline::cli
