// "Did you mean": the nearest of a list of names, and the sentence about an unknown key.
#include <algorithm>
#include <limits>
#include <vector>

#include "base/error.h"
#include "config/keys.h"
#include "config/load.h"

namespace redline::config {
namespace {

// Insertions, deletions, substitutions and swaps of neighbours (people type "trian").
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

// More than a third of the letters wrong is another word.
std::size_t tolerance(std::string_view word) { return std::max<std::size_t>(2, word.size() / 3); }

std::string_view last_part(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& choices) {
  std::string best;
  std::size_t best_distance = std::numeric_limits<std::size_t>::max();
  if (word.size() > 200) return best;  // not a name that anybody mistyped
  for (const std::string& choice : choices) {
    const std::size_t d = edit_distance(word, choice);
    if (d < best_distance && d <= tolerance(word) && d < choice.size()) {
      best = choice;
      best_distance = d;
    }
  }
  return best;
}

std::string unknown_key(std::string_view name) {
  if (const std::string here = key_in_other_trainers(name); !here.empty()) {
    const Key* key = find_key(here);
    const std::string unit = key && !key->unit.empty() ? fmt::format(", {}", key->unit) : "";
    return fmt::format("unknown key '{}'; here it is {}{}", name, here.starts_with('-') ? "the flag " : "",
                       key ? fmt::format("'{}' ({}{})", here, expected(*key), unit) : fmt::format("'{}'", here));
  }
  std::vector<std::string> names;
  std::string moved;  // the right name in the wrong section, or in none
  for (const Key& key : keys()) {
    names.emplace_back(key.name);
    if (moved.empty() && last_part(key.name) == last_part(name)) moved = key.name;
  }
  const std::string guess = moved.empty() ? nearest(name, names) : moved;
  if (guess.empty()) return fmt::format("unknown key '{}'; all keys stand in docs/config.md", name);
  return fmt::format("unknown key '{}'; did you mean '{}'?", name, guess);
}

}  // namespace redline::config
