// From the words of the command line to an exit status: finds the command, runs it, and turns whatever is thrown into
// one sentence on standard error.
#pragma once

namespace redline::cli {

// 0 done; 1 the machine failed, a number was not finite, or a check did not hold; 2 bad input; 3 stopped by a signal.
int run(int argc, const char* const* argv);

}  // namespace redline::cli
