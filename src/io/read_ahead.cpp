// One thread, one descriptor of its own: the system's reading ahead goes by what a descriptor has read before.
#include "io/read_ahead.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <system_error>
#include <utility>

namespace redline::io {
namespace {

constexpr std::uint64_t kStep = std::uint64_t{4} << 20;  // bytes between two looks at who waits
constexpr std::uint64_t kEverything = std::numeric_limits<std::uint64_t>::max();

}  // namespace

ReadAhead::ReadAhead(const Path& path, std::vector<Range> ranges) : file_(path), ranges_(std::move(ranges)) {
  try {
    thread_ = std::thread([this] {
      try {
        work();
      } catch (const std::exception&) {  // whoever reads these bytes meets it too, and tells
      }
      set_there(kEverything);
    });
  } catch (const std::system_error&) {  // no thread to be had: it goes without
    there_ = kEverything;
  }
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ReadAhead::allow(std::uint64_t offset) {
  {
    const std::lock_guard lock(mutex_);
    allowed_ = std::max(allowed_, offset);
  }
  changed_.notify_all();
}

void ReadAhead::wait_for(std::uint64_t offset) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return there_ >= offset; });
}

void ReadAhead::set_there(std::uint64_t offset) {
  {
    const std::lock_guard lock(mutex_);
    there_ = offset;
  }
  changed_.notify_all();
}

void ReadAhead::work() {
  for (const Range& range : ranges_) {
    for (std::uint64_t at = range.begin, end = range.begin + range.bytes; at < end;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || at < allowed_; });
        if (stopping_) return;
      }
      const std::uint64_t step = std::min(kStep, end - at);
      file_.fetch(at, step);
      at += step;
      set_there(at);
    }
  }
}

}  // namespace redline::io
