// Ctrl-C for commands that write nothing before their end. They stop wherever they are, with exit status 3 and one
// sentence, even within a library call, a read from a terminal or a long sort. Commands with something to put in order
// first use train/signals.h.
#pragma once

namespace redline::cli {

// While it lives, SIGINT and SIGTERM end the process, unless it was started with them ignored. One at a time.
class StopAtOnce {
 public:
  explicit StopAtOnce(const char* sentence);  // lives as long as the program: "stopped; nothing was written"
  ~StopAtOnce();
  StopAtOnce(const StopAtOnce&) = delete;
  StopAtOnce& operator=(const StopAtOnce&) = delete;

  // Between hold() and release() output is not cut in two. The first signal waits for release(); where that never comes
  // the command has done its work. A second signal ends the process at once.
  void hold();
  void release();
};

}  // namespace redline::cli
