// The list of families: adding a model is its file and its entry here.
#include <fmt/ranges.h>

#include "base/error.h"
#include "config/load.h"
#include "io/json.h"
#include "model/family.h"

namespace redline::model {

extern const Family kLlama, kOlmo2, kQwen3;

namespace {

constexpr const Family* kFamilies[] = {&kLlama, &kQwen3, &kOlmo2};

// The names of families for which `has` holds.
template <class Has>
std::vector<std::string> names_of(const Has& has) {
  std::vector<std::string> names;
  for (const Family* f : kFamilies)
    if (has(*f)) names.emplace_back(f->name);
  return names;
}

const Family& find(const std::string& name, std::string_view place) {
  for (const Family* f : kFamilies)
    if (f->name == name) return *f;
  const std::vector<std::string> names = names_of([](const Family&) { return true; });
  const std::string guess = config::nearest(name, names);
  fail_user("{}model.family must be one of {}, not {}{}", place, fmt::join(names, " | "), io::in_quotes(name),
            guess.empty() ? "" : fmt::format("; did you mean {}?", io::in_quotes(guess)));
}

}  // namespace

std::span<const Family* const> families() { return kFamilies; }

const Family& family_of(const config::Model& model) { return find(model.family, ""); }

void settle_family(config::Config& config) {
  config::Model& m = config.model;
  const Family& family = find(m.family, config.origins.prefix({"model.family"}));
  const bool norm = family.decoder.qk_norm.has_value();
  if (m.qk_norm.value_or(norm) != norm)
    fail_user("{}model.qk_norm must be {} for model.family \"{}\"; it is {} for {}",
              config.origins.prefix({"model.qk_norm", "model.family"}), norm, m.family, !norm,
              fmt::join(names_of([&](const Family& f) { return f.decoder.qk_norm.has_value() != norm; }), ", "));
  m.qk_norm = norm;
}

std::vector<config::Key> keys_with_families() {
  std::vector<config::Key> keys = config::keys();
  for (config::Key& key : keys)
    if (key.name == "model.family")
      for (const Family* f : kFamilies) key.choices.push_back(f->name);
  return keys;
}

}  // namespace redline::model
