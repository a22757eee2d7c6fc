// goodput.jsonl tells where the time of each session went so far, one object every few seconds. It is a history: a
// resume adds to it and removes nothing, so that the cost of a crash is known.
#pragma once

#include "report/rows_file.h"

namespace redline::report {

RowsFile goodput_file(FileSystem& files, Path path);

}  // namespace redline::report
