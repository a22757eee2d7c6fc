// Pages of one file that fetch nothing: page.html, which draws the data that it is given.
#pragma once

#include <string>
#include <string_view>

#include "io/json.h"

namespace redline::report {

// drawing["page"], "runs", "lengths", "doctor" or "ladder", says which page the script makes of `drawing` and `data`.
// Where no script may run, a reader finds the data as tables.
std::string page(std::string_view title, io::Json drawing, const io::Json& data);

}  // namespace redline::report
