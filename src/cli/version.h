// The version of this program: the git tag it was built from, or the number in CMakeLists.txt
// (cmake/WriteVersion.cmake).
#pragma once

#include <string_view>

namespace redline::cli {

std::string_view version();  // "0.1.0", or "0.1.0-12-g1a2b3c4" twelve commits after the tag

}  // namespace redline::cli
