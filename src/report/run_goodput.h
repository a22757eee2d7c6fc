// Sums up where the time of a run went, over all its sessions in goodput.jsonl. It adds the time between sessions, and
// the work that was lost to crashes.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"
#include "io/json_fwd.h"
#include "train/goodput.h"

namespace redline::report {

struct SessionGoodput {
  double began = 0, ended = 0;  // seconds since 1970: its process, and its last sign of life
  std::int64_t first_step = 0;  // updates that were done before it
  train::Account account = {};  // work that a later session repeated counts as lost
  double until_next = 0;        // seconds in which nothing ran
};

struct RunGoodput {
  std::vector<SessionGoodput> sessions;  // none: not known

  // The account of the whole run. Tokens and joules are of the sessions that measured energy.
  train::Account account() const;
};

RunGoodput read_goodput(FileSystem& files, const Path& path, std::vector<std::string>& problems);

// The members "goodput", and "energy" where it is known, of a run. Empty without sessions.
io::Json to_json(const RunGoodput& goodput);

}  // namespace redline::report
