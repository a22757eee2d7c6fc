// The CPU as a device: memory of the host, and what the host says of itself. Also the choice between it and a card.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/words.h"
#include "device/device.h"
#include "device/host_pages.h"

namespace redline::device {
namespace {

// The value of the first "key : value" line of a text like /proc/cpuinfo.
std::optional<std::string> line_value(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    at += line.size() + 1;
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    if (colon == line.npos || line.find_first_not_of(" \t", key.size()) != colon) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (begin != line.npos) return std::string(line.substr(begin));
  }
  return {};
}

// ARM kernels give numbers, not names: who made the core and which one it is.
struct ArmCore {
  unsigned implementer, part;
  std::string_view name;
};
constexpr std::array kArmCores = {
    ArmCore{0x41, 0xd03, "Cortex-A53"},  ArmCore{0x41, 0xd08, "Cortex-A72"},  ArmCore{0x41, 0xd0b, "Cortex-A76"},
    ArmCore{0x41, 0xd0c, "Neoverse-N1"}, ArmCore{0x41, 0xd40, "Neoverse-V1"}, ArmCore{0x41, 0xd41, "Cortex-A78"},
    ArmCore{0x41, 0xd49, "Neoverse-N2"}, ArmCore{0x41, 0xd4f, "Neoverse-V2"}, ArmCore{0x41, 0xd84, "Neoverse-V3"},
    ArmCore{0x41, 0xd8e, "Neoverse-N3"}, ArmCore{0xc0, 0xac3, "Ampere-1"},    ArmCore{0xc0, 0xac4, "Ampere-1a"},
};
constexpr unsigned kApple = 0x61;

unsigned hex_number(std::string_view text) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  unsigned value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

std::string processor_name() {
  FileSystem& files = real_files();
  const Path path = "/proc/cpuinfo";
  if (!files.exists(path)) return "unknown processor";
  const std::string cpuinfo = files.read(path);
  if (const auto model = line_value(cpuinfo, "model name")) return *model;
  const auto implementer = line_value(cpuinfo, "CPU implementer"), part = line_value(cpuinfo, "CPU part");
  if (!implementer || !part) return "unknown processor";
  const unsigned made_by = hex_number(*implementer), core = hex_number(*part);
  for (const ArmCore& known : kArmCores) {
    if (known.implementer == made_by && known.part == core) return std::string(known.name);
  }
  return made_by == kApple ? fmt::format("Apple 0x{:03x}", core) : fmt::format("ARM 0x{:02x}/0x{:03x}", made_by, core);
}

const Path kContainers = "/sys/fs/cgroup";

// The memory of this process: the machine's, or the container's where that is less.
std::int64_t host_memory() {
  const std::int64_t physical = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const std::optional<ContainerMemory> container = container_memory(kContainers);
  return container ? std::min(physical, container->limit) : physical;
}

// The machine's memory that is still available, with caches that give way; nothing where the system does not
// say.
std::optional<std::int64_t> machine_available() {
  FileSystem& files = real_files();
  const Path path = "/proc/meminfo";
  if (!files.exists(path)) return {};
  const auto value = line_value(files.read(path), "MemAvailable");  // "23518276 kB"
  std::int64_t kib = 0;
  if (!value || std::from_chars(value->data(), value->data() + value->size(), kib).ec != std::errc()) return {};
  return kib * 1024;
}

// A positive number at the beginning of a file; "max" and numbers past 63 bits are none.
std::optional<std::int64_t> number_in(const Path& path) {
  FileSystem& files = real_files();
  if (!files.exists(path)) return {};
  const std::string text = files.read(path);
  std::int64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc() || number <= 0) return {};
  return number;
}

// The number behind a word at the beginning of a line; 0: there is no such line.
std::int64_t number_behind(std::string_view word, const Path& path) {
  FileSystem& files = real_files();
  std::istringstream lines(files.exists(path) ? files.read(path) : std::string());
  std::string first;
  for (std::int64_t number = 0; lines >> first >> number;)
    if (first == word) return number;
  return 0;
}

}  // namespace

std::optional<ContainerMemory> container_memory(const Path& root) {
  struct Names {
    Path limit, used, details;
    std::string_view gives_way;  // files that were read once
  };
  const Path old = root / "memory";
  for (const Names& at : {Names{root / "memory.max", root / "memory.current", root / "memory.stat", "inactive_file"},
                          Names{old / "memory.limit_in_bytes", old / "memory.usage_in_bytes", old / "memory.stat",
                                "total_inactive_file"}})
    if (const std::optional<std::int64_t> limit = number_in(at.limit)) {
      const std::int64_t used = number_in(at.used).value_or(0), files = number_behind(at.gives_way, at.details);
      return ContainerMemory{*limit, std::max<std::int64_t>(*limit - std::max<std::int64_t>(used - files, 0), 0)};
    }
  return {};
}

std::int64_t available_host_bytes() {
  const std::int64_t all = host_memory();
  std::int64_t free = std::min(all, machine_available().value_or(all));
  if (const std::optional<ContainerMemory> container = container_memory(kContainers))
    free = std::min(free, container->left);
  constexpr std::int64_t kSpare = 64;  // of so many parts one, for all else on the machine
  return free - free / kSpare;
}

HostPages map_pages(std::int64_t bytes) {
  bytes = whole_pages(bytes);
  const auto size = static_cast<std::size_t>(bytes + kHugePage);
  void* const address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return {nullptr, UnmapPages{0}};
  auto* const begin = static_cast<std::byte*>(address);
  const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address) % kHugePage);
  std::byte* const data = begin + (kHugePage - misaligned);
  ::munmap(begin, static_cast<std::size_t>(kHugePage - misaligned));
  if (misaligned > 0) ::munmap(data + bytes, static_cast<std::size_t>(misaligned));
  // Advice: a gigabyte in pages of 4 KiB took four times as long to touch for the first time.
  ::madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  return {data, UnmapPages{bytes}};
}

void touch(const HostPages& pages, ThreadPool& pool) {
  constexpr std::int64_t kSmallPage = 4096;  // of systems without huge ones
  pool.for_ranges(pages.get_deleter().bytes, 4 * kHugePage, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += kSmallPage)
      *static_cast<volatile std::byte*>(pages.get() + at) = std::byte{0};
  });
}

// A large one comes from the system as zeros, and untouched: who fills it first pays for its pages, once.
class CpuBuffer final : public Buffer {
 public:
  CpuBuffer(CpuDevice& device, std::int64_t bytes) : device_(device), bytes_(bytes) {
    if (bytes >= 4 * kHugePage) {
      pages_ = map_pages(bytes);
    } else {
      const std::int64_t rounded = (std::max<std::int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
      small_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<std::size_t>(rounded))));
    }
    if (!data()) fail_machine("cannot allocate {:.2f} GiB of the host's memory", gib(bytes));
    device_.allocated_ += bytes_;
  }
  ~CpuBuffer() override { device_.allocated_ -= bytes_; }
  std::byte* data() const override { return pages_ ? pages_.get() : small_.get(); }
  std::int64_t bytes() const override { return bytes_; }
  bool is_zero() const override { return pages_ != nullptr; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };

  CpuDevice& device_;
  std::int64_t bytes_;
  HostPages pages_{nullptr, UnmapPages{0}};
  std::unique_ptr<std::byte, Free> small_;
};

CpuDevice::CpuDevice(int threads) : pool_(threads), memory_(host_memory()) {}

std::string CpuDevice::name() const {
  const int n = pool_.threads();
  return fmt::format("CPU ({}, {})", counted(n, "thread"), processor_name());
}

std::int64_t CpuDevice::memory_bytes() const { return memory_; }

std::int64_t CpuDevice::available_bytes() const {
  const std::int64_t left = memory_ - allocated_;
  return std::min(left, machine_available().value_or(left));
}

std::int64_t CpuDevice::allocated_bytes() const { return allocated_; }

std::unique_ptr<Buffer> CpuDevice::allocate(std::int64_t bytes) {
  REDLINE_CHECK(bytes >= 0, "a buffer of {} bytes", bytes);
  // Linux would promise more than there is and kill the process when it is used.
  if (bytes > memory_) {
    fail_machine("cannot allocate {:.2f} GiB: this machine has {:.2f} GiB of memory in all", gib(bytes), gib(memory_));
  }
  return std::make_unique<CpuBuffer>(*this, bytes);
}

namespace {

// Work is over when the call that gave it returns: the host's clock is the device's.
class CpuSpans final : public Spans {
 public:
  void begin(std::size_t span) override { at(span).begun = steady_seconds(); }
  void end(std::size_t span) override { at(span).ended = steady_seconds(); }
  void wait(std::size_t) override {}
  double length(std::size_t span) const override { return spans_[span].ended - spans_[span].begun; }
  double between_ends(std::size_t first, std::size_t second) const override {
    return spans_[second].ended - spans_[first].ended;
  }

 private:
  struct Span {
    double begun = 0, ended = 0;
  };
  Span& at(std::size_t span) {
    if (span >= spans_.size()) spans_.resize(span + 1);
    return spans_[span];
  }
  std::vector<Span> spans_;
};

// Work is over when the call that gave it returns, and so are copies.
class CpuLane final : public CopyLane {
 public:
  void follow() override {}
  void copy(void* to, const void* from, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void mark(int) override {}
  void wait(int) override {}
};

}  // namespace

std::unique_ptr<Spans> CpuDevice::make_spans() { return std::make_unique<CpuSpans>(); }

void CpuDevice::copy_in(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void CpuDevice::copy_out(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

std::unique_ptr<CopyLane> CpuDevice::make_lane() { return std::make_unique<CpuLane>(); }

// Linux would promise more than there is: a snapshot is worth less than the processes that it would end.
std::unique_ptr<Buffer> CpuDevice::try_allocate_host(std::int64_t bytes) {
  if (bytes > available_bytes()) return nullptr;
  try {
    return allocate(bytes);
  } catch (const MachineError&) {  // a limit of the process
    return nullptr;
  }
}

void CpuDevice::fill(void* to, std::uint8_t byte, std::int64_t bytes) {
  // By all threads: the first touch of memory is the system's work as well.
  pool_.for_ranges(bytes, 4 * kHugePage, [&](std::int64_t begin, std::int64_t end) {
    std::memset(static_cast<std::byte*>(to) + begin, byte, static_cast<std::size_t>(end - begin));
  });
}

bool has_code_for(std::string_view architectures, int major, int minor) {
  while (!architectures.empty()) {
    const std::size_t end = std::min(architectures.find(' '), architectures.size());
    const std::string_view word = architectures.substr(0, end);
    architectures.remove_prefix(std::min(end + 1, architectures.size()));
    int built = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), built);
    if (error != std::errc()) return true;  // "native", "all": CMake chose them
    const std::string_view kind(rest, static_cast<std::size_t>(word.data() + word.size() - rest));
    const int card = 10 * major + minor;
    if (kind.starts_with('a') ? card == built
        : kind == "-real"     ? card >= built && card / 10 == built / 10
                              : card >= built)
      return true;
  }
  return false;
}

std::unique_ptr<Device> open_device(std::string_view which) {
  if (which == "cpu") return std::make_unique<CpuDevice>();
  if (which != "cuda" && which != "auto")
    fail_user("--device {}: there is no such device; use cpu, cuda or auto", which);
  const CudaStatus status = cuda_status();
  if (status.problem.empty()) return open_cuda();
  if (which == "cuda") fail_user("--device cuda: {}; use --device cpu", status.problem);
  if (!status.driver_version.empty())  // there is a card, or there should be
    log::warn("--device auto takes the CPU: {}", status.problem);
  return std::make_unique<CpuDevice>();
}

}  // namespace redline::device
