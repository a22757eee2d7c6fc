// Compares the settings of a resume with those of the run. The table of keys (config/keys.h) has the settings that may
// change.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "config/config.h"

namespace redline::train {

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

// `before` is the configuration at `where`, a checkpoint or the run. A UserError names every key that may not change,
// or not without `allow_change`.
SettingChanges compare_settings(const config::Config& before, const Path& where, const config::Config& now,
                                bool allow_change);

// For a run's config.toml that is not sealed: a UserError names every key to which `file` alone gives another value
// than the checkpoint has.
void require_said(const config::Config& before, const Path& checkpoint, const config::Config& now, const Path& file);

// A sentence about the learning rate after `step` and from there on; empty where the schedule is that of `before`.
std::string schedule_change(const config::Config& before, const config::Config& now, std::int64_t step,
                            std::optional<double> batches_of_epoch);

// A UserError for data that are not where the run had them.
void require_data_there(const config::Data& data);

}  // namespace redline::train
