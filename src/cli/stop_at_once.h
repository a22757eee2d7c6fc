// Ctrl-C for commands that have nothing on the disk before their end: they end wherever they are, with exit status 3
// and one sentence. A call into a library, a read from a terminal or a sort that takes half a minute need not be asked
// to stop. Commands with something to put in order first use train/signals.h.
#pragma once

namespace redline::cli {

// While it lives, SIGINT and SIGTERM end the process, unless it was started with them ignored. One at a time.
class StopAtOnce {
 public:
  explicit StopAtOnce(const char* sentence);  // lives as long as the program: "stopped; nothing was written"
  ~StopAtOnce();
  StopAtOnce(const StopAtOnce&) = delete;
  StopAtOnce& operator=(const StopAtOnce&) = delete;

  // Between the two, what is written is not cut in two: the first signal waits for the end of it, and is too late where
  // that never comes, since what was asked for is there then. A later one ends the process as without us.
  void hold();
  void release();
};

}  // namespace redline::cli
