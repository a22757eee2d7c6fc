// The one table of configuration keys: the place of each in Config, its range and its meaning. Parsing, validation,
// --help, the resolved dump and docs/config.md all come from it, so a key is written down once. The names of
// model.family are known on a higher floor only: any word passes here, and that floor refuses unknown ones
// (config::Complete).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace redline::config {

// A value as a file or the command line gave it. monostate: nothing a key can hold (a date, a table), or unset.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<std::string>,
                           std::vector<std::int64_t>, std::vector<double>>;

// Where a key lives.
template <class T>
struct Field {
  T& (*edit)(Config&);
  const T& (*read)(const Config&);
};
// An integer, or "auto", which leaves the number as it was.
struct AutomaticInteger {
  Field<std::int64_t> number;
  Field<bool> automatic;
};
inline constexpr std::string_view kAutomatic = "auto";

using AnyField = std::variant<Field<bool>, Field<std::optional<bool>>, Field<std::int64_t>, AutomaticInteger,
                              Field<double>, Field<std::string>, Field<std::vector<std::string>>,
                              Field<std::vector<std::int64_t>>, Field<std::vector<double>>>;

// The range of a number. Infinite ends are not shown; an open end is not itself allowed.
struct Range {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;
};

// How a resumed run treats a changed value (docs/training.md).
enum class OnResume {
  free,       // taken as it is, and said
  rows,       // free while the rows of a step (batch_size * accumulate) stay the same; else as `allowed`
  same_data,  // free while the data are the same, however they are called; else as `new_order`
  allowed,    // with --allow-change
  new_order,  // with --allow-change, and the order of the data begins anew
  never,      // the parameters would not fit
};

struct Key {
  std::string_view name;  // dotted: "train.seq_len"
  OnResume on_resume;
  AnyField field;
  Range range;                            // numbers and lists of them
  std::vector<std::string_view> choices;  // strings and lists of them; empty: anything
  std::string_view unit;                  // "tokens"; empty: a plain number
  std::string_view help;                  // one sentence, without its full stop
  // What a run's config.toml that lacks the key means, as TOML writes it; empty: the default. A key that is younger
  // than some runs has it where its default is not what the program did before.
  std::string_view before = {};
};

const std::vector<Key>& keys();  // section by section, in the order of config.h
const Key* find_key(std::string_view name);
bool is_section(std::string_view name);  // "train"

// The values that a key takes: "integer >= 1", "number in [0, 1)", "pack | stream", "true | false".
std::string expected(const Key& key);

// The key's value in a configuration, and its replacement. assign() throws a UserError that starts with `place` when
// the type, the range or the choice is wrong. Integers pass as numbers, and 1e9 as an integer.
Value read(const Key& key, const Config& config);
void assign(const Key& key, const Value& value, std::string_view place, Config& config);

// Gives every key that has one its old meaning (Key::before).
void assign_old_meanings(Config& config);

// A value as TOML writes it; doubles in the shortest form that reads back the same.
std::string literal(const Value& value);

// "--allow-change; the data begin anew": for docs/config.md.
std::string_view in_words(OnResume on_resume);

// One line a key: "train.seq_len  integer >= 1  default 256  tokens of a row". For --help.
std::string describe_keys(std::span<const Key> keys);

// docs/config.md.
std::string keys_as_markdown(std::span<const Key> keys);

// "unknown key 'train.batchsize'; did you mean 'train.batch_size'?" With the value that it was given, as text, another
// trainer's key gets its setting here.
std::string unknown_key(std::string_view name, std::string_view value = {});

// Our name for a key or section of another trainer: "optim.lr" for "learning_rate", whatever its section was. It is a
// flag ("--out") where redline has no such key. Empty: no trainer we know has that name.
std::string key_in_other_trainers(std::string_view name);
std::string section_in_other_trainers(std::string_view name);

// "here it is 'kernels.tuning=max'" for a "compile_mode" of "max-autotune", or why there is nothing to set for such a
// key. Empty: neither is known.
std::string advice_from_other_trainers(std::string_view name, std::string_view value);

// A key of another trainer with one of its values, and what sets the same here.
struct Elsewhere {
  std::string_view key, value, here;
};
std::span<const Elsewhere> settings_elsewhere();

}  // namespace redline::config
