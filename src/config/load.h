// From a TOML file, a preset and `key=value` words to one validated Config, and back to TOML. Every error is a
// UserError that names the key, the file and line (or the override), and the nearest valid name.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "config/config.h"

namespace redline::config {

// A key whose place (Origins) begins so was chosen by the program. What follows is the reason: the text of a
// configuration has it above the key, and gives it back.
inline constexpr std::string_view kChosen = "chosen: ";

struct Sources {
  std::string file;  // a TOML file; empty: none
  // From --preset, else from `preset=` on the command line, else from the file's own `preset = `. Where none is given,
  // a file starts from the bare defaults, and so do model.init_from and "none"; else it is "quick".
  std::string preset;
  std::vector<std::string> overrides;  // "train.batch_size=64", applied last, in order
  // The file is a run's config.toml: keys that it lacks have their old meaning (Key::before), and the preset that it
  // names is a name alone, since the file has all that it came to.
  bool of_run = false;
};

// Fills in values from elsewhere (model.init_from, the family's model.qk_norm), after all settings were read and before
// they are checked.
using Complete = std::function<void(Config& config)>;

// defaults < preset < file < overrides; then completed, checked as a whole, and derived values
// (kv_heads, head_dim) filled.
Config load(const Sources& sources, const Complete& complete = {});

// As load(), from the text of one run's config.toml and no preset (its name is kept). Keys that it lacks have their old
// meaning (Key::before).
Config parse(std::string_view text, std::string_view file_name, const Complete& complete = {});

// For a run that goes on with another file or preset than its own: keys to which the run gives their old meaning, and
// which the user did not write, keep it. Returns their names.
std::vector<std::string> keep_old_meanings(const Config& run, Config& config);

// data.train has no default, so that nobody trains on data that he did not name: a UserError asks for it. Whatever
// measures needs none: stand_in_for_data() puts random tokens, which have no end, in its place, and returns true where
// it did.
void require_data(const Config& config);
bool stand_in_for_data(Config& config);

// Bytes of an amount of memory, "24GiB" or "1.5MiB"; no limit where the text is empty, and 0 where it is no amount.
std::int64_t bytes_of_amount(std::string_view text);

// Fills in derived values and checks the rules over several keys (head_dim, kv_heads, schedule against steps...).
void resolve(Config& config);

// The whole tree as commented TOML; parse(dump(c)) == c for a resolved configuration.
std::string dump(const Config& config);

// Names of the keys that two configurations set differently.
std::vector<std::string> differing_keys(const Config& a, const Config& b);

// Words nearest to `word` among `choices` by edit distance; empty when none is near. For "did you mean".
std::string nearest(std::string_view word, const std::vector<std::string>& choices);
// "did you mean 'ndr'? the networks are nvlink, ndr, hdr", of an unknown word.
std::string names_known(std::string_view word, std::string_view whose, const std::vector<std::string>& names);

struct EmbeddedFile {
  std::string_view name;  // "quick"
  std::string_view text;  // the TOML
};

std::span<const EmbeddedFile> embedded_configs();  // sorted by name; generated from configs/ when building

}  // namespace redline::config
