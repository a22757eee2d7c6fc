// Lines to standard error, each in one write so that lines of several threads do not mix.
#include "base/log.h"

#include <cstdio>
#include <mutex>
#include <string>

#include "base/error.h"
#include "base/words.h"

namespace redline::log {
namespace {

std::mutex listening;
Listener::Take listener;

void hand_on(bool warning, std::string_view text) {
  Listener::Take take;
  {
    const std::lock_guard lock(listening);
    take = listener;
  }
  if (take)
    take(warning, text);
  else
    write_line(warning, text);
}

}  // namespace

void write_line(bool warning, std::string_view text) {
  std::string line = warning ? "redline: warning: " : "redline: ";
  line.append(visible(text)).push_back('\n');
  std::fwrite(line.data(), 1, line.size(), stderr);
}

Listener::Listener(Take take) {
  const std::lock_guard lock(listening);
  REDLINE_CHECK(!listener, "there is a listener already");
  listener = std::move(take);
}

Listener::~Listener() {
  const std::lock_guard lock(listening);
  listener = nullptr;
}

void note_line(std::string_view text) { hand_on(false, text); }
void warn_line(std::string_view text) { hand_on(true, text); }

}  // namespace redline::log
