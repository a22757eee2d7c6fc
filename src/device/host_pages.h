// Large memory of the host, straight from the system: whole pages, huge ones where it has them, all zeros.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/files.h"
#include "base/thread_pool.h"

namespace redline::device {

inline constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
constexpr std::int64_t whole_pages(std::int64_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

struct UnmapPages {
  std::int64_t bytes = 0;
  void operator()(std::byte* data) const { ::munmap(data, static_cast<std::size_t>(bytes)); }
};
using HostPages = std::unique_ptr<std::byte, UnmapPages>;

// Pages for so many bytes, aligned to huge ones; null where there is no room. Who touches one first pays for it.
HostPages map_pages(std::int64_t bytes);
// Touches every page, by all threads at once: for those who need them all now.
void touch(const HostPages& pages, ThreadPool& pool);

// Memory that a container, whose figures lie in this folder, allows its processes, and what is left of it with files
// that give way; nothing where it sets no limit.
struct ContainerMemory {
  std::int64_t limit = 0, left = 0;
};
std::optional<ContainerMemory> container_memory(const Path& root);

}  // namespace redline::device
