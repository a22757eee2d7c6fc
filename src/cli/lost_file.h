// Data are mapped: a file that somebody cuts short while it is read, or a disk that fails, ends in SIGBUS, in any
// thread and in the middle of anything.
#pragma once

namespace redline::cli {

// From now on that ends the program with one sentence that names the file: exit status kBadInput where the file is
// shorter than it was, kFailed where its disk failed. Checkpoints are whole at every moment, so nothing is left to put
// in order. A SIGBUS of any other cause does what it does without us.
void tell_of_lost_files();

}  // namespace redline::cli
