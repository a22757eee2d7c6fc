// What the targets of both decompressors do: read to the end in pieces of odd sizes, and count.
#pragma once

#include <vector>

#include "data/input/byte_stream.h"
#include "fuzz.h"

namespace redline::fuzz {

inline void decompress(const std::uint8_t* data, std::size_t size, const char* name) {
  constexpr std::size_t kMost = std::size_t{1} << 24;  // of output: a few bytes can stand for gigabytes
  expect_user_errors([&] {
    const auto stream = data::stream_of({reinterpret_cast<const char*>(data), size}, name);
    std::vector<char> buffer(1 + size % 70'000);
    for (std::size_t total = 0; total < kMost;) {
      const std::size_t got = stream->read(buffer);
      require(stream->consumed() <= static_cast<std::int64_t>(size), "more consumed than there is");
      total += got;
      if (got < buffer.size()) {
        require(stream->read(buffer) == 0, "bytes after the end");
        require(stream->consumed() == static_cast<std::int64_t>(size), "an end before the end of the file");
        return;
      }
    }
  });
}

}  // namespace redline::fuzz
