// redline config.
#include "base/error.h"
#include "cli/commands.h"
#include "cli/config_words.h"
#include "cli/output.h"
#include "cli/pages.h"
#include "config/load.h"
#include "model/family.h"

namespace redline::cli {
namespace {

std::string preset_lines() {
  std::string out;
  for (const PresetWords& preset : preset_words()) out += fmt::format("{:<14} {}\n", preset.name, preset.about);
  return out;
}

}  // namespace

// The first sentence of a preset's file, without its name.
std::vector<PresetWords> preset_words() {
  std::vector<PresetWords> all;
  for (const config::EmbeddedFile& file : config::embedded_configs()) {
    std::string about;
    std::string_view rest = file.text;
    while (rest.starts_with("# ") && about.find(". ") == about.npos) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      about += std::string(rest.substr(2, end - 2)) + " ";
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    about = about.substr(0, about.find(". "));
    const std::string own_name = std::string(file.name) + ": ";
    if (about.starts_with(own_name)) about.erase(0, own_name.size());
    all.push_back({std::string(file.name), about});
  }
  return all;
}

int run_config(const Words& words) {
  Arguments arguments("config", "print the resolved configuration: every key with its value and meaning",
                      "[CONFIG] [key=value ...] [--keys | --markdown | --presets]",
                      {"redline config                           the defaults of `redline train`",
                       "redline config ping-95m train.batch_size=16 > my.toml", "redline config --keys"});
  ConfigWords config;
  bool keys = false, markdown = false, presets = false;
  config.declare(arguments);
  arguments.flag("--keys", keys, "one line a key: what it takes, its default, its meaning");
  arguments.flag("--markdown", markdown, "the same as a Markdown page");
  arguments.flag("--presets", presets, "the shipped configurations");
  if (!arguments.parse(words)) return kDone;
  if (keys + markdown + presets > 1) fail_user("--keys, --markdown and --presets cannot be combined");

  if (keys)
    print(config::describe_keys(model::keys_with_families()));
  else if (markdown)
    print(config::keys_as_markdown(model::keys_with_families()));
  else if (presets)
    print(preset_lines());
  else
    print(config::dump(load_config(sources_of(config))));
  return kDone;
}

}  // namespace redline::cli
