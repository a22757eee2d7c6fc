// The table of a sweep, one row a run; runs that differ only in their seed also have a mean and a deviation. It goes to
// the terminal, to sweep.csv and to --json. Curves are in the report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/json_fwd.h"
#include "report/figures.h"

namespace redline::report {

struct SweepRow {
  std::string name, folder;
  std::vector<std::string> values;  // of SweepTable::keys
  std::string group;                // the same for runs that differ only in their seed
  std::string state;                // "finished", "hopeless", "diverged", "failed", "interrupted", "waiting", "running"
  std::string why;                  // a sentence, where the state needs a reason
  std::int64_t steps = 0, of = 0;   // done, and asked for; 0: not known
  double tokens = 0, seconds = 0;
  double loss = kUnknown, eval_loss = kUnknown;  // the last ones
  double eval_tokens = kUnknown;                 // that eval_loss covers
  double tokens_per_s = kUnknown;
  bool trained_on = false;  // what it was evaluated on, so that eval_loss is not held out

  bool finished() const { return state == "finished"; }
};

struct SweepTable {
  std::vector<std::string> keys;    // in which the runs differ: "optim.lr"
  std::vector<std::string> titles;  // of them, shorter: "lr"
  std::vector<SweepRow> rows;

  // The finished run with the lowest held-out loss.
  std::optional<std::size_t> best() const;
  bool held_out() const;  // no run was evaluated on what it was trained on
};

// Finished runs that differ only in train.seed.
struct SweepGroup {
  std::vector<std::size_t> rows;
  double mean = kUnknown, deviation = kUnknown;  // of the held-out loss; the sample's deviation
};
// In the order of their first rows; empty where no two rows are of one group.
std::vector<SweepGroup> seed_groups(const SweepTable& table);

// Sentences about finished runs whose losses were not found alike: on different numbers of training tokens, or over
// different held-out ones; and about losses that are not of held-out data.
std::vector<std::string> unlike_in_words(const SweepTable& table);

std::string to_text(const SweepTable& table);
std::string groups_to_text(const SweepTable& table);  // empty where there are none
std::string to_csv(const SweepTable& table);
io::Json to_json(const SweepTable& table);  // "runs", "groups" and "best" as members of an object

}  // namespace redline::report
