// goodput.jsonl: where the time of each session went so far, one object every few seconds. A history: a resume adds to
// it and takes nothing back, so that what a crash cost is known.
#pragma once

#include "report/rows_file.h"

namespace redline::report {

RowsFile goodput_file(FileSystem& files, Path path);

}  // namespace redline::report
