// Where the program under test and the sources lie. One file knows it (paths.cpp), so that the flags of all others are
// the same.
#pragma once

#include <string>

namespace redline::testing {

const char* program();        // build/redline
std::string source_folder();  // the root of the sources, without a slash at its end
inline std::string fixture(const std::string& name) { return source_folder() + "/tests/fixtures/" + name; }

}  // namespace redline::testing
