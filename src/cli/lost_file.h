// Data files are mapped into memory. Where somebody cuts one short while it is read, or its disk fails, a SIGBUS comes,
// in any thread and in the middle of anything.
#pragma once

namespace redline::cli {

// From this call on such a SIGBUS ends the program with one sentence that names the file. The exit status is kBadInput
// where the file is shorter than it was, kFailed where its disk failed. Checkpoints are whole at every moment, so there
// is nothing to put in order first. A SIGBUS of any other cause has its default effect.
void tell_of_lost_files();

}  // namespace redline::cli
