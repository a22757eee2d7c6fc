// Where the time of a run went, over all of its sessions: what goodput.jsonl says, and what it says between the lines:
// how long a run stood still, and what of a session was lost to the crash that ended it.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"
#include "io/json.h"
#include "train/goodput.h"

namespace redline::report {

struct SessionGoodput {
  double began = 0, ended = 0;  // seconds since 1970: its process, and its last sign of life
  std::int64_t first_step = 0;  // updates that were done before it
  train::Account account = {};  // with what a later session made again as lost
  double until_next = 0;        // seconds in which nothing ran
};

struct RunGoodput {
  std::vector<SessionGoodput> sessions;  // none: not known

  // Of the whole run. Tokens and joules are of the sessions that know their joules.
  train::Account account() const;
};

RunGoodput read_goodput(FileSystem& files, const Path& path, std::vector<std::string>& problems);

// "goodput", and "energy" where it is known, as members of a run. Nothing where there are no sessions.
io::Json to_json(const RunGoodput& goodput);

}  // namespace redline::report
