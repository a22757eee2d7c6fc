// Reads a run's folder, and compares settings key by key: what differs, whether it may, and what it means for the
// state.
#include "train/run_folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <tuple>

#include "base/error.h"
#include "base/hash.h"
#include "config/keys.h"
#include "config/load.h"
#include "config/toml.h"
#include "data/from_config.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "model/family.h"
#include "optim/schedule.h"
#include "train/ends.h"
#include "train/trainer.h"

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

config::Config read_config(FileSystem& files, const Path& path) {
  return config::parse(read_at_most(files, path, config::kMostTomlBytes), path.string(), model::settle_family);
}

// The newest checkpoint, or the one of that step, of which all but the tensors is whole: its copy of the configuration
// is as it was written.
std::optional<Path> newest_checkpoint(FileSystem& files, const Path& run, std::optional<std::int64_t> only = {}) {
  const auto found = io::newest_whole_checkpoint(
      files, checkpoints_of(run), [](const io::SkippedCheckpoint&) {}, [](const io::FoundCheckpoint&) { return ""; },
      only);
  return found ? std::optional(found->folder) : std::nullopt;
}

// Whether what the configuration file says need not be what the run wrote.
bool doubted(FileSystem& files, const Path& path) { return files.exists(path) && !is_sealed(files.read(path)); }

// --from-step names a checkpoint, and a run keeps few of them.
void require_step_kept(FileSystem& files, const Path& folder, std::int64_t step) {
  std::vector<std::int64_t> steps;
  for (const io::FoundCheckpoint& c : io::list_checkpoints(files, checkpoints_of(folder)))
    steps.insert(steps.begin(), c.step);
  if (std::ranges::find(steps, step) != steps.end()) return;
  fail_user(
      "--from-step {}: {} keeps no checkpoint of that step; {}", step, folder.string(),
      steps.empty() ? std::string("it has none") : fmt::format("it has those of steps {}", fmt::join(steps, ", ")));
}

// For a config.toml that is not sealed: a UserError names every key to which the file alone gives another value than
// the checkpoint has.
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

// `before` is the configuration at `where`, a checkpoint or the run. A UserError names every key that may not change,
// or not without `allow_change`.
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
  if (before.precision.masters != now.precision.masters)
    changes.sentences.push_back(now.precision.masters == "bf16" ? "weights are rounded from fp32 to bf16"
                                                                : "weights are taken from bf16 to fp32 as they are");
  else if (before.precision != now.precision)
    changes.sentences.push_back("parameters and moments are the same in every precision: nothing of them is converted");
  if (before.optim.moments != now.optim.moments)
    changes.sentences.push_back(
        fmt::format("moments are converted from {} to {}", before.optim.moments, now.optim.moments));
  return changes;
}

// A UserError for data that are not where the run had them.
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

bool holds_run(FileSystem& files, const Path& folder) {
  return files.exists(folder / kRunConfig) || files.exists(folder / "metrics.jsonl") ||
         !files.list(checkpoints_of(folder)).empty();
}

config::Config read_run_config(FileSystem& files, const Path& folder) {
  const Path path = folder / kRunConfig;
  if (!files.exists(path)) {
    if (const std::optional<Path> checkpoint = newest_checkpoint(files, folder))
      fail_user("{} holds a run without its {}; put the copy of its newest checkpoint in its place: {}",
                folder.string(), kRunConfig, (*checkpoint / kRunConfig).string());
    fail_user("{} holds no run (no {}); give the configuration, or another --out", folder.string(), kRunConfig);
  }
  try {
    return read_config(files, path);
  } catch (const NoPermission&) {
    throw;
  } catch (const UserError& e) {
    const std::optional<Path> checkpoint = newest_checkpoint(files, folder);
    fail_user("{} cannot be used ({}); {}", path.string(), e.what(),
              checkpoint ? fmt::format("put its copy in its place: {}", (*checkpoint / kRunConfig).string())
                         : "no checkpoint holds a copy of it: give the configuration that the run was started with");
  }
}

std::optional<config::Config> config_of_run(FileSystem& files, const Path& folder) {
  std::vector<Path> places = {folder};
  if (const std::optional<Path> checkpoint = newest_checkpoint(files, folder)) places.push_back(*checkpoint);
  for (const Path& place : places) {
    try {
      if (files.exists(place / kRunConfig)) return read_config(files, place / kRunConfig);
    } catch (const UserError&) {  // whoever needs the file says what is wrong with it
    }
  }
  return {};
}

std::optional<config::Config> config_of_checkpoint(FileSystem& files, const Path& checkpoint) {
  if (!files.exists(checkpoint / kRunConfig)) return {};
  return read_config(files, checkpoint / kRunConfig);
}

std::string to_text(const CountedEpoch& e) {
  return io::Json{{"documents", e.size.documents},
                  {"tokens", e.size.tokens},
                  {"pieces", e.size.pieces},
                  {"rows", e.rows},
                  {"of", hex64(e.of)}}
             .dump() +
         "\n";
}

CountedEpoch parse_counted_epoch(const std::string& text, const std::string& file_name) {
  const io::Json json = io::parse_json(text, file_name);
  const auto number = [&](std::string_view key) { return io::integer_at(json, key, file_name); };
  CountedEpoch e{{number("documents"), number("tokens"), number("pieces")}, number("rows"), 0};
  const std::string of = io::string_at(json, "of", file_name);
  const auto [end, error] = std::from_chars(of.data(), of.data() + of.size(), e.of, 16);
  if (error != std::errc() || end != of.data() + of.size() || e.rows < 0) fail_user("{}: no count of rows", file_name);
  return e;
}

std::optional<CountedEpoch> read_counted_epoch(FileSystem& files, const Path& run) {
  const Path path = run / kEpochFile;
  try {
    if (files.exists(path)) return parse_counted_epoch(read_at_most(files, path, 1 << 16), path.string());
  } catch (const UserError&) {  // the data say it again
  }
  return {};
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

SettingChanges compare_with(const config::Config& before, const Path& checkpoint, const TrainOptions& options,
                            FileSystem& files) {
  const Path own = options.folder / kRunConfig;
  if (options.own_config && !options.allow_change && doubted(files, own))
    require_said(before, checkpoint, options.config, own);
  return compare_settings(before, checkpoint, options.config, options.allow_change);
}

void check_folder(const TrainOptions& options, FileSystem& files) {
  const Path& folder = options.folder;
  if (options.from_step) require_step_kept(files, folder, *options.from_step);
  if (!holds_run(files, folder)) return;
  if (!options.resume)
    fail_user("{} already holds a run; continue it with --resume, or choose another --out", folder.string());
  require_data_there(options.config.data);
  if (const std::optional<Path> checkpoint = newest_checkpoint(files, folder, options.from_step)) {
    if (const auto before = config_of_checkpoint(files, *checkpoint))
      compare_with(*before, *checkpoint, options, files);
  } else if (const Path own = folder / kRunConfig; files.exists(own)) {  // else it was stopped before it had begun
    const config::Config before = read_run_config(files, folder);
    for (const std::string& change : compare_settings(before, folder, options.config, options.allow_change).sentences)
      for (Observer* o : options.observers) o->on(Note{change});
    if (options.own_config && doubted(files, own))
      for (Observer* o : options.observers)
        o->on(
            Warning{fmt::format("{} is not as the run wrote it, and there is no checkpoint to hold it against: the run "
                                "begins with what it says",
                                own.string())});
  }
}

void keep_tokenizer(FileSystem& files, const Path& run, const data::TokenizerFiles& tokenizer) {
  const Path folder = run / kTokenizer;
  if (!tokenizer.empty()) files.create_folders(folder);
  for (const auto& [name, text] : tokenizer)
    if (!files.exists(folder / name) || files.read(folder / name) != text) files.replace(folder / name, text);
  std::error_code ignored;
  for (const std::string& name : files.list(folder))  // of another tokenizer
    if (!tokenizer.contains(name) && std::filesystem::is_regular_file(folder / name, ignored))
      files.remove_all(folder / name);
}

}  // namespace redline::train
