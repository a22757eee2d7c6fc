// Both paths come from CMake.
#include "testing/paths.h"

namespace redline::testing {

const char* program() { return REDLINE_BINARY; }
std::string source_folder() { return REDLINE_SOURCE_DIR; }

}  // namespace redline::testing
