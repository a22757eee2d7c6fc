// run() finds the command that the words name, runs it, and turns an exception into one sentence on standard error.
#pragma once

namespace redline::cli {

// The exit status: 0 done; 1 the machine failed, a number was not finite, or a check did not hold; 2 bad input; 3
// stopped by a signal.
int run(int argc, const char* const* argv);

}  // namespace redline::cli
