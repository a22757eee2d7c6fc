// Processes that end together: started, given the signals that come to us, and ended when one of them fails.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace redline::cli {

struct ProcessToStart {
  std::string program;                                           // a path, or a name that is looked for in PATH
  std::vector<std::string> words;                                // behind it
  std::vector<std::pair<std::string, std::string>> environment;  // beside ours; an empty value takes a variable away
  std::string name;                                              // as sentences call it: "rank 3"
  std::string prefix;                // before each line that it writes; empty: it writes where we do
  std::string log;                   // a file behind whose end it writes instead, and no prefix; empty: none
  bool passes_signals_down = false;  // it would end its children where we want them asked: signals go to those instead
};

struct ProcessesEnd {
  int status = 0;         // of the first that failed; 1 where a signal ended it
  std::string who, how;   // the name of the first that failed, and "exit status 1" or "signal 9 (Killed)"
  bool asked_to = false;  // SIGINT, SIGTERM or SIGHUP came to us
};

struct EndingSeconds {
  double before_term = 5;  // for the others to end by themselves once one has failed
  double before_kill = 5;  // behind SIGTERM
};

// Called about five times a second while they run. `asked_to`: as in ProcessesEnd. What it returns goes to all of them
// as a signal; 0: none.
using Look = std::function<int(bool asked_to)>;

// Returns when all have ended. Exit status 3 (stopped by a signal) is no failure that ends others: they are stopping,
// too.
ProcessesEnd run_processes(const std::vector<ProcessToStart>& all, const EndingSeconds& seconds = {},
                           const Look& look = {});

std::string own_path();  // of this program

}  // namespace redline::cli
