// Starts processes, hands signals on to them, and ends all when one of them fails.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace redline::cli {

struct ProcessToStart {
  std::string program;                                           // a path, or a name that is looked for in PATH
  std::vector<std::string> words;                                // its arguments
  std::vector<std::pair<std::string, std::string>> environment;  // added to ours; an empty value removes a variable
  std::string name;                                              // in sentences: "rank 3"
  std::string prefix;  // before each line of its output; empty: its output is ours
  std::string log;     // a file that its output is appended to, without the prefix; empty: none
  std::string out;     // with a log: another file, for its standard output; empty: the log
};

struct ProcessesEnd {
  int status = 0;         // of the first that failed; 1 where a signal ended it
  std::string who, how;   // the name of the first that failed, and "exit status 1" or "signal 9 (Killed)"
  bool asked_to = false;  // SIGINT, SIGTERM or SIGHUP came to us
  std::vector<std::string> killed = {};  // names of those that did not end when another had failed
};

struct EndingSeconds {
  double before_term = 5;  // for the others to end by themselves once one has failed
  double before_kill = 5;  // after SIGTERM
};

// Called about five times a second while they run. `asked_to` is as in ProcessesEnd. A result other than 0 is sent to
// all of them as a signal.
using Look = std::function<int(bool asked_to)>;

// Returns when all have ended. Exit status 3 (stopped by a signal) ends no other process: all are stopping then.
ProcessesEnd run_processes(const std::vector<ProcessToStart>& all, const EndingSeconds& seconds = {},
                           const Look& look = {});

std::string own_path();  // of this program

}  // namespace redline::cli
