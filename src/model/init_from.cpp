// Key by key, so that a conflict names its key.
#include "model/init_from.h"

#include "base/error.h"
#include "config/keys.h"
#include "io/checkpoint_folder.h"
#include "model/family.h"
#include "model/hf_config.h"

namespace redline::model {
namespace {

enum class Says { folder, user, whoever_wrote };

Says who_says(std::string_view key) {
  if (!key.starts_with("model.") || key == "model.init_from" || key == "model.dropout" || key == "model.init")
    return Says::user;
  if (key == "model.max_positions" || key == "model.init_std") return Says::whoever_wrote;
  return Says::folder;
}

// 0 heads and an unset norm mean "as follows from the rest".
bool follows(std::string_view key, const config::Value& value) {
  if (std::holds_alternative<std::monostate>(value)) return true;
  return (key == "model.kv_heads" || key == "model.head_dim") && value == config::Value(std::int64_t{0});
}

}  // namespace

void take_model(config::Config& config, const config::Model& from, std::string_view where) {
  config::Config source;
  source.model = from;
  for (const config::Key& key : config::keys()) {
    const Says says = who_says(key.name);
    if (says == Says::user) continue;
    const config::Value given = config::read(key, config), wanted = config::read(key, source);
    const bool written = config.origins.written(key.name) && !follows(key.name, given);
    if (given == wanted || (written && says == Says::whoever_wrote)) continue;
    if (written)
      fail_user("{}{} is {}, but {} says {}; leave the key out: model.init_from decides it",
                config.origins.prefix({key.name}), key.name, config::literal(given), where, config::literal(wanted));
    config::assign(key, wanted, where, config);
  }
}

config::Complete complete_model(FileSystem& files) {
  return [&files](config::Config& config) {
    if (!config.model.init_from.empty()) {
      const auto place = config.origins.prefix({"model.init_from"});
      try {
        const Path file = io::find_weights_folder(files, config.model.init_from) / "config.json";
        take_model(config, read_hf_config(files, file), file.string());
      } catch (const UserError& e) {
        const std::string_view what = e.what();
        // An error that names a key says enough.
        if (what.find("model.init_from") != what.npos) throw;
        fail_user("{}model.init_from: {}", place, what);
      }
    }
    settle_family(config);
  };
}

}  // namespace redline::model
