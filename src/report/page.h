// Makes an HTML page of one file that fetches nothing: page.html with the data that its script draws.
#pragma once

#include <string>
#include <string_view>

#include "io/json_fwd.h"

namespace redline::report {

// drawing["page"] ("runs", "lengths", "doctor" or "ladder") chooses the page that the script makes of `drawing` and
// `data`. Where scripts may not run, the reader sees the data as tables.
std::string page(std::string_view title, io::Json drawing, const io::Json& data);

}  // namespace redline::report
