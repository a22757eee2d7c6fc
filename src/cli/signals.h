// Signals that end a command wherever it is. Commands with something to put in order first use train/signals.h.
#pragma once

namespace redline::cli {

// Ctrl-C for commands that write nothing before their end. They stop wherever they are, with exit status 3 and one
// sentence, even within a library call, a read from a terminal or a long sort.
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

// Data files are mapped into memory. Where a file is cut short while it is read, or its disk fails, a SIGBUS comes, in
// any thread and in the middle of anything. From this call on such a SIGBUS ends the program with one sentence that
// names the file. The exit status is kBadInput where the file is shorter than it was, kFailed where its disk failed.
// Checkpoints are whole at every moment, so there is nothing to put in order first. A SIGBUS of any other cause has its
// default effect.
void tell_of_lost_files();

}  // namespace redline::cli
