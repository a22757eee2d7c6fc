// Key by key: what differs, whether it may, and what it means for the state.
#include "train/resume_settings.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "base/error.h"
#include "base/hash.h"
#include "config/keys.h"
#include "config/load.h"
#include "data/from_config.h"
#include "optim/schedule.h"
#include "train/ends.h"

namespace redline::train {
namespace {

constexpr std::string_view kSeal = "# xxh3 of the lines above: ";

struct Difference {
  const config::Key* key;
  std::string was, is;

  std::string made_with() const { return fmt::format("{} = {}, not {}", key->name, was, is); }
};

std::vector<Difference> differences(const config::Config& before, const config::Config& now) {
  std::vector<Difference> found;
  for (const std::string& name : config::differing_keys(before, now)) {
    if (name == "preset") continue;  // where the values came from does not matter, the values do
    const config::Key* key = config::find_key(name);
    found.push_back({key, config::literal(config::read(*key, before)), config::literal(config::read(*key, now))});
  }
  return found;
}

std::int64_t ranks(const config::Config& c) { return std::max<std::int64_t>(c.parallel.ranks, 1); }
std::int64_t rows(const config::Config& c) { return c.train.batch_size * c.train.accumulate * ranks(c); }
std::int64_t first_rows(const config::Config& c) { return c.train.batch_size * c.train.accumulate_from * ranks(c); }

bool needs_permission(const Difference& d, bool same_rows) {
  using enum config::OnResume;
  const config::OnResume how = d.key->on_resume;
  return how == allowed || how == new_order || (how == rows && !same_rows);
}

std::string joined(const std::vector<std::string>& parts) { return fmt::format("{}", fmt::join(parts, ", and ")); }

}  // namespace

config::Config as_kept(config::Config config) {
  config.data = data::with_absolute_paths(std::move(config.data));
  std::error_code error;
  std::string& start = config.model.init_from;
  if (const Path absolute = std::filesystem::absolute(start, error); !start.empty() && !error)
    start = absolute.string();
  return config;
}

std::string sealed_text(const config::Config& config) {
  const std::string text = config::dump(config);
  return fmt::format("{}{}{}\n", text, kSeal, hex64(hash64(text)));
}

bool is_sealed(std::string_view text) {
  const std::size_t at = text.rfind(kSeal);
  return at != text.npos && text.substr(at + kSeal.size()) == hex64(hash64(text.substr(0, at))) + "\n";
}

void require_said(const config::Config& before, const Path& checkpoint, const config::Config& now, const Path& file) {
  std::vector<std::string> unsaid;
  for (const Difference& d : differences(as_kept(before), as_kept(now)))
    if (!now.origins.on_command_line(d.key->name))
      unsaid.push_back(fmt::format("{} = {} where the checkpoint has {}", d.key->name, d.is, d.was));
  if (unsaid.empty()) return;
  fail_user(
      "{} is not as the run wrote it: it has {}. Put the copy {} in its place; or, where the change is meant, give the "
      "keys on the command line (key=value), or all of them with --allow-change",
      file.string(), joined(unsaid), (checkpoint / file.filename()).string());
}

SettingChanges compare_settings(const config::Config& before, const Path& where, const config::Config& now,
                                bool allow_change) {
  using config::OnResume;
  const bool same_rows = rows(before) == rows(now) && first_rows(before) == first_rows(now);
  std::vector<std::string> never, refused;
  SettingChanges changes;
  for (const Difference& d : differences(as_kept(before), as_kept(now))) {
    const OnResume how = d.key->on_resume;
    const bool asks = needs_permission(d, same_rows);
    if (how == OnResume::never) never.push_back(d.made_with());
    if (asks && !allow_change) refused.push_back(d.made_with());
    changes.allowed = changes.allowed || asks;
    changes.new_order = changes.new_order || how == OnResume::new_order;
    changes.sentences.push_back(fmt::format("resuming with {} = {} (it was {})", d.key->name, d.is, d.was));
  }
  if (!never.empty())
    fail_user(
        "{} was made with {}, which its parameters cannot follow; resume it with its own, or start another run with "
        "another --out",
        where.string(), joined(never));
  if (!refused.empty())
    fail_user(
        "{} was made with {}; resume it with its own, allow the change with --allow-change, or start another run with "
        "another --out",
        where.string(), joined(refused));
  if (rows(before) != rows(now))
    changes.sentences.push_back(fmt::format(
        "a step has {} rows now, and had {}; the learning rate is not scaled with them", rows(now), rows(before)));
  if (before.precision != now.precision)
    changes.sentences.push_back("parameters and moments are the same in every precision: nothing of them is converted");
  if (before.optim.moments != now.optim.moments)
    changes.sentences.push_back(
        fmt::format("moments are converted from {} to {}", before.optim.moments, now.optim.moments));
  return changes;
}

std::string schedule_change(const config::Config& before, const config::Config& now, std::int64_t step,
                            std::optional<double> batches_of_epoch) {
  if (before.train.fit_hours || now.train.fit_hours)
    return {};  // the steps are counted then (train/ends.h), which says so itself
  const auto limits = [](const config::Train& t) {
    return std::tuple(t.epochs, t.max_steps, t.max_tokens, t.accumulate_ramp_steps);
  };
  if (before.optim == now.optim && limits(before.train) == limits(now.train) && rows(before) == rows(now) &&
      first_rows(before) == first_rows(now))
    return {};
  const auto steps = [&](const config::Config& c) {  // a batch of fewer rows makes more of them
    const double share = static_cast<double>(now.train.batch_size) / static_cast<double>(c.train.batch_size);
    return total_steps(c.train, batches_of_epoch ? std::optional(share * *batches_of_epoch) : std::nullopt, ranks(c));
  };
  const auto rate = [&](const config::Config& c, std::int64_t s) {
    return optim::learning_rate(c, s, steps(c), ranks(c));
  };
  const std::int64_t had = steps(before), has = steps(now);
  if (step >= has || had == 0) return {};  // 0: not known
  const bool ended = step >= had;
  const double next = rate(now, step), end = rate(now, has - 1), would = rate(before, ended ? had - 1 : step);
  if (!ended && next == would && had == has && end == rate(before, had - 1)) return {};
  return fmt::format("the learning rate goes on with {:.3g} ({} {:.3g}) and ends with {:.3g} at step {}", next,
                     ended ? "the run had ended with" : "as it was, it would be", would, end, has);
}

void require_data_there(const config::Data& data) {
  const config::Data kept = data::with_absolute_paths(data);
  const auto require = [](std::string_view key, const std::string& name) {
    // Patterns, and what is no path, are for whoever opens them; Megatron's pairs are called by what their names share.
    if (!name.starts_with('/') || name.find_first_of("*?[") != name.npos) return;
    if (real_files().exists(name) || real_files().exists(name + ".bin")) return;
    fail_user("{}: there is no {} any more; where it was moved, resume with {}=PATH", key, name, key);
  };
  for (const std::string& name : kept.train) require("data.train", name);
  for (const std::string& name : kept.eval) require("data.eval", data::named_path(name).path);
  require("data.tokenizer", kept.tokenizer);
}

}  // namespace redline::train
