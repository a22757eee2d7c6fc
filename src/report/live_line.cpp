// Terminal control of one line, and the pauses between its rewrites.
#include "report/live_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/words.h"

namespace redline::report {
namespace {

constexpr auto kBetweenRewrites = std::chrono::milliseconds(50), kBetweenLogLines = std::chrono::milliseconds(5000);

bool is_terminal(std::FILE* stream) {
  const char* kind = std::getenv("TERM");
  return ::isatty(::fileno(stream)) == 1 && kind && std::string_view(kind) != "dumb";
}

}  // namespace

LiveLine::LiveLine(std::FILE* stream) : LiveLine(stream, is_terminal(stream)) {}
LiveLine::LiveLine(std::FILE* stream, bool terminal) : stream_(stream), terminal_(terminal) {}

// A live line must not wrap: the carriage return would only reach its last row.
std::size_t LiveLine::columns() const {
  winsize size{};
  if (!terminal_ || ::ioctl(::fileno(stream_), TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return 119;
  return static_cast<std::size_t>(size.ws_col) - 1;
}

void LiveLine::show(const std::string& text) {
  const Clock::time_point now = Clock::now();
  if (!terminal_) {
    if (now - last_ >= kBetweenLogLines) keep(text);
    return;
  }
  if (showing_ && now - last_ < kBetweenRewrites) return;
  last_ = now;
  showing_ = true;
  write(fmt::format("\r{}\x1b[K", visible(text).substr(0, columns())));
}

void LiveLine::keep(const std::string& text) {
  clear();
  write(visible(text) + "\n");
  last_ = Clock::now();
}

void LiveLine::clear() {
  if (showing_) write("\r\x1b[K");
  showing_ = false;
}

// A reader that has gone away (| head) must not end a run, so failures are not looked at here.
void LiveLine::write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stream_);
  std::fflush(stream_);
}

}  // namespace redline::report
