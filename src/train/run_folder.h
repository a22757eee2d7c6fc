// What a run's folder says of it: whether it holds a run, with which settings, and which of them may be others when the
// run goes on. The table of keys (config/keys.h) has the settings that may change. train/trainer.cpp writes the folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "config/config.h"
#include "data/pieces.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::train {

struct TrainOptions;

inline constexpr const char* kRunConfig = "config.toml";
inline constexpr const char* kCheckpoints = "checkpoints";
inline constexpr const char* kTokenizer = "tokenizer";  // the folder of its files
inline constexpr const char* kStopFile = "stop";        // whoever makes it asks the run to stop, as SIGTERM does
inline Path checkpoints_of(const Path& run) { return run / kCheckpoints; }

// Whether a folder holds a run (or the beginnings of one).
bool holds_run(FileSystem& files, const Path& folder);

// The configuration of the run in `folder`, as it was resolved when it started.
config::Config read_run_config(FileSystem& files, const Path& folder);
// The same, or that of the newest checkpoint where the run's own file cannot be used; empty where neither can.
std::optional<config::Config> config_of_run(FileSystem& files, const Path& folder);
// The configuration that a checkpoint was made with; those of other programs have none.
std::optional<config::Config> config_of_checkpoint(FileSystem& files, const Path& checkpoint);

// An epoch of data that do not tell their length, as train.epochs had it counted. It is in rows, of which batches of
// any size are made. The run keeps it beside its configuration.
struct CountedEpoch {
  data::EpochSize size;
  std::int64_t rows = 0;
  std::uint64_t of = 0;  // a hash of the data and of what was done with them
};
inline constexpr const char* kEpochFile = "epoch.json";
std::string to_text(const CountedEpoch& epoch);
CountedEpoch parse_counted_epoch(const std::string& text,
                                 const std::string& file_name);                      // a UserError where it is none
std::optional<CountedEpoch> read_counted_epoch(FileSystem& files, const Path& run);  // nothing: it is counted again

// The configuration as a run keeps it: its paths mean the same from any working directory.
config::Config as_kept(config::Config config);

// The text of a run's config.toml. Its last line is a hash of the others, which reveals changes by hand or by a bad
// disk.
std::string sealed_text(const config::Config& config);
bool is_sealed(std::string_view text);

struct SettingChanges {
  std::vector<std::string> sentences;  // one a change
  bool allowed = false;                // some of them needed --allow-change
  bool new_order = false;              // the order of the data begins anew
};

// A sentence about the learning rate after `step` and from there on; empty where the schedule is that of `before`.
std::string schedule_change(const config::Config& before, const config::Config& now, std::int64_t step,
                            std::optional<double> batches_of_epoch);

// A UserError where the folder holds a run and `resume` is off, or where a setting differs that may not change. The
// run's settings are those of its newest checkpoint, or of its config.toml where it has none.
void check_folder(const TrainOptions& options, FileSystem& files);

// What differs from the configuration of a checkpoint. A UserError names every key that may not change, or not without
// --allow-change. Where the run's config.toml was changed by hand, no key may differ that the command line does not
// name.
SettingChanges compare_with(const config::Config& before, const Path& checkpoint, const TrainOptions& options,
                            FileSystem& files);

// Writes the tokenizer's files to RUN/tokenizer, and removes those of another one.
void keep_tokenizer(FileSystem& files, const Path& run, const data::TokenizerFiles& tokenizer);

}  // namespace redline::train
