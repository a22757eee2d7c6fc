// Lines to standard error, each in one write so that lines of several threads do not mix.
#include "base/log.h"

#include <cstdio>
#include <string>

namespace redline::log {
namespace {

void write_line(std::string_view prefix, std::string_view text) {
  std::string line;
  line.reserve(prefix.size() + text.size() + 1);
  line.append(prefix).append(text).push_back('\n');
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void note_line(std::string_view text) { write_line("redline: ", text); }
void warn_line(std::string_view text) { write_line("redline: warning: ", text); }

}  // namespace redline::log
