// Terminal control of one line, the pauses between its rewrites, and the words of progress in bytes.
#include "report/live_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/clock.h"
#include "base/words.h"
#include "report/figures.h"

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

std::string BytesProgress::text(const std::string& doing, std::uint64_t done, std::uint64_t of, double seconds) {
  const double share = of > 0 ? static_cast<double>(done) / static_cast<double>(of) : 1;
  return fmt::format("{}: {} of {}{}", doing, percent(share), bytes(static_cast<double>(of)),
                     time_left(seconds, share));
}

void BytesProgress::show(LiveLine& line, std::uint64_t done, std::uint64_t of) {
  const double now = steady_seconds();
  if (start_ < 0 || done == 0) start_ = now;
  if (now - start_ >= quiet_) line.show(text(doing_, done, of, now - start_));
}

BackgroundLine::~BackgroundLine() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
  line_.clear();
}

void BackgroundLine::show(double quiet) {
  const double start = steady_seconds();
  std::unique_lock lock(mutex_);
  for (std::chrono::duration<double> pause(quiet); !changed_.wait_for(lock, pause, [this] { return over_; });
       pause = std::chrono::milliseconds(100)) {
    const std::string text = text_(steady_seconds() - start);
    if (!text.empty()) line_.show(text);
  }
}

}  // namespace redline::report
