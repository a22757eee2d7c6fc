// The table, and the sentences that are made of its rows.
#include "train/on_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace redline::train {
namespace {

using dist::Mode;

constexpr std::array kAll = {Mode::ddp, Mode::zero1, Mode::fsdp};

}  // namespace

std::span<const NotOnRanks> not_on_ranks() {
  static const std::array kRows = {
      NotOnRanks{"train.max_hours",
                 "train.max_hours",
                 [](const config::Config& c) { return c.train.max_hours > 0; },
                 {kAll.begin(), kAll.end()},
                 "each of them would count hours of its own",
                 "set train.max_steps or train.max_tokens"},
      NotOnRanks{"precision.matmul = \"fp8\"",
                 "precision.matmul",
                 [](const config::Config& c) { return c.precision.matmul == "fp8"; },
                 {Mode::zero1, Mode::fsdp},
                 "its copies of weights are made from whole ones",
                 "use parallel.mode = \"ddp\" or \"auto\", or precision.matmul = \"bf16\""},
      NotOnRanks{"train.accumulate_from = 1",
                 "train.accumulate_from",
                 [](const config::Config& c) { return c.train.accumulate_from == 1 && c.train.accumulate > 1; },
                 {Mode::ddp, Mode::zero1},
                 "ranks add their gradients up behind the last micro-batch of several",
                 "give 2 or more and a smaller train.batch_size, or parallel.mode = \"fsdp\""},
  };
  return kRows;
}

const NotOnRanks* refused_by(const config::Config& config, Mode mode) {
  for (const NotOnRanks& row : not_on_ranks())
    if (row.has(config) && std::ranges::find(row.modes, mode) != row.modes.end()) return &row;
  return nullptr;
}

std::string refusal(const config::Config& config, Mode mode) {
  const NotOnRanks* const row = refused_by(config, mode);
  if (!row) return "";
  const std::string with = row->modes.size() == kAll.size()
                               ? "several ranks"
                               : fmt::format("parallel.mode = \"{}\" on several ranks", name_of(mode));
  return fmt::format("{}{} does not go with {}: {}; {}", config.origins.prefix({row->key, "parallel.mode"}),
                     row->setting, with, row->because, row->instead);
}

std::vector<Mode> modes_for(const config::Config& config, int ranks) {
  std::vector<Mode> modes;
  for (const Mode mode : kAll)
    if (ranks == 1 || !refused_by(config, mode)) modes.push_back(mode);
  return modes;
}

void require_for_ranks(const config::Config& config) {
  const bool open = config.parallel.mode == "auto";
  if (open && !modes_for(config, 2).empty()) return;
  if (const std::string text = refusal(config, open ? Mode::fsdp : dist::mode_named(config.parallel.mode));
      !text.empty())
    fail_user("{}", text);
}

}  // namespace redline::train
