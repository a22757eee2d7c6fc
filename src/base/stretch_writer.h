// Writes at any offset of an existing file, while other ranks may write elsewhere in it: one rank's part of a
// checkpoint. Errors are those of base/files.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/files.h"

namespace redline {

class StretchWriter {
 public:
  virtual ~StretchWriter() = default;
  virtual void write(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void sync() = 0;   // to the disk
  virtual void close() = 0;  // reports errors, which a destructor cannot
};

// Tests have one that fails (tests/testing/failing_files.h).
using OpenStretches = std::function<std::unique_ptr<StretchWriter>(const Path& path)>;
std::unique_ptr<StretchWriter> open_stretches(const Path& path);  // of the real file system; follows no link

}  // namespace redline
