// The table, and the sentences that are made of its rows.
#include "train/on_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/words.h"

namespace redline::train {
namespace {

using dist::Mode;

constexpr std::array kAll = {Mode::ddp, Mode::zero1, Mode::fsdp};

}  // namespace

std::span<const NotOnRanks> not_on_ranks() {
  static const std::array kRows = {
      NotOnRanks{"a parallel.sequence that does not divide model.heads",
                 "parallel.sequence",
                 [](const config::Config& c) { return c.model.heads % c.parallel.sequence != 0; },
                 {kAll.begin(), kAll.end()},
                 "the ranks of a row have as many heads each",
                 "give one that does"},
      NotOnRanks{"a train.seq_len that parallel.sequence does not divide",
                 "train.seq_len",
                 [](const config::Config& c) {
                   const bool sixteens = c.precision.matmul == "fp8" && c.parallel.sequence > 1;
                   return c.train.seq_len % (c.parallel.sequence * (sixteens ? 16 : 1)) != 0;
                 },
                 {kAll.begin(), kAll.end()},
                 "the ranks of a row have as many tokens each, in fp8 a multiple of 16",
                 "give one that it does"},
      NotOnRanks{"model.experts with a parallel.sequence above 1",
                 "model.experts",
                 [](const config::Config& c) { return c.model.experts > 0 && c.parallel.sequence > 1; },
                 {kAll.begin(), kAll.end()},
                 "a router knows the padding of whole rows alone",
                 "set parallel.sequence = 1"},
      NotOnRanks{"precision.gradients = \"bf16\"",
                 "precision.gradients",
                 [](const config::Config& c) { return c.precision.gradients == "bf16"; },
                 {kAll.begin(), kAll.end()},
                 "ranks add up gradients in fp32",
                 "set precision.gradients = \"fp32\""},
      NotOnRanks{"precision.masters = \"bf16\"",
                 "precision.masters",
                 [](const config::Config& c) { return c.precision.masters == "bf16"; },
                 {kAll.begin(), kAll.end()},
                 "ranks share out masters in fp32",
                 "set precision.masters = \"fp32\""},
      NotOnRanks{"parallel.shards",
                 "parallel.shards",
                 [](const config::Config& c) { return c.parallel.shards > 0; },
                 {Mode::ddp},
                 "it shares nothing out",
                 "set parallel.mode to \"fsdp\" or \"zero1\", or parallel.shards = 0"},
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

void require_for_ranks(const config::Config& config, int ranks) {
  if (const std::int64_t of = config.parallel.sequence; ranks % of != 0)
    fail_user("{}parallel.sequence = {} shares every row among {}, and there {}; start a multiple of {}, or set 1",
              config.origins.prefix({"parallel.sequence"}), of, counted(of, "rank"),
              ranks == 1 ? "is 1" : fmt::format("are {}", ranks), of);
  if (const std::int64_t of = config.parallel.shards; of > 0 && ranks % of != 0)
    fail_user("{}parallel.shards = {} shares the state out among {}, and there {}; start a multiple of {}, or set 0",
              config.origins.prefix({"parallel.shards"}), of, counted(of, "rank"),
              ranks == 1 ? "is 1" : fmt::format("are {}", ranks), of);
  if (ranks == 1) return;
  const bool open = config.parallel.mode == "auto";
  if (open && !modes_for(config, 2).empty()) return;
  if (const std::string text = refusal(config, open ? Mode::fsdp : dist::mode_named(config.parallel.mode));
      !text.empty())
    fail_user("{}", text);
}

void share_micro_batches(config::Config& c, std::int64_t ranks, const config::Config* begun, bool given_counts) {
  // Groups of them, which have the micro-batches; so has parallel.ranks. Fewer ranks than a group needs are measured.
  ranks = std::max<std::int64_t>(1, ranks / c.parallel.sequence);
  const char* const who = c.parallel.sequence > 1 ? "group" : "rank";
  const std::int64_t before = begun ? std::max<std::int64_t>(begun->parallel.ranks, 1) : c.parallel.ranks;
  if (before == ranks || before == 0) {
    if (ranks > 1) c.parallel.ranks = ranks;
    return;
  }
  c.parallel.ranks = ranks;
  if (given_counts && (begun || c.origins.on_command_line("train.accumulate"))) return;
  if (begun && c.train.batch_size != begun->train.batch_size) return;  // which is refused where settings are compared
  const auto share = [&](std::string_view step, std::string_view key, std::int64_t had, std::int64_t& micro_batches) {
    const std::int64_t all = had * before;
    if (micro_batches * ranks == all) return;
    if (all % ranks != 0)
      fail_user(
          "{} has {} ({} = {} on {}), which {} cannot share alike; start a number of ranks that divides it, or give {}"
          "{}",
          step, counted(all, "micro-batch"), key, had, counted(before, who), counted(ranks, who), key,
          begun ? " and --allow-change" : "");
    micro_batches = all / ranks;
  };
  const config::Train had = begun ? begun->train : c.train;
  share("a step", "train.accumulate", had.accumulate, c.train.accumulate);
  share("the first step", "train.accumulate_from", had.accumulate_from, c.train.accumulate_from);
}

}  // namespace redline::train
