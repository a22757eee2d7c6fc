// A device that programs run on: its memory, its copies and its properties. Each kind of device has one
// implementation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/tensor.h"
#include "base/thread_pool.h"

namespace redline::device {

enum class Kind { cpu, cuda };

// Memory that frees itself, aligned to 256 bytes, and is counted by its device, which must outlive it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::byte* data() const = 0;
  virtual std::int64_t bytes() const = 0;
  virtual bool is_zero() const { return false; }  // whether it came as zeros and need not be filled with them
};

// Spans of the work given to a device, timed by the device's own clock. The caller numbers them, and may use a number
// again. Their device must outlive them.
class Spans {
 public:
  virtual ~Spans() = default;
  virtual void begin(std::size_t span) = 0;  // after the work queued so far; neither waits
  virtual void end(std::size_t span) = 0;
  virtual void wait(std::size_t span) = 0;  // until it has ended
  // In seconds, of spans that have ended.
  virtual double length(std::size_t span) const = 0;
  virtual double between_ends(std::size_t first, std::size_t second) const = 0;
};

// Copies between a device's memory and files: beside its work, in an order of their own, to addresses that no program
// knows. (Copies of programs are nodes.) One thread uses it at a time. Its device must outlive it.
class CopyLane {
 public:
  static constexpr int kMarks = 2;
  virtual ~CopyLane() = default;  // no copy is under way any more
  virtual void follow() = 0;      // copies from here on wait for the work so far
  // Returns at once where the host's end is memory of try_allocate_host(). Neither end is touched until it was waited
  // for.
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void mark(int number) = 0;  // the copies so far
  virtual void wait(int number) = 0;  // until all that was there at the mark has arrived; without a mark, not at all
};

class Device {
 public:
  virtual ~Device() = default;
  virtual Kind kind() const = 0;
  virtual std::string name() const = 0;                              // "CPU (2 threads, Neoverse-V1)", "NVIDIA H200"
  virtual std::string bus_id() const { return {}; }                  // of a card: "0000:1B:00.0"
  virtual std::int64_t memory_bytes() const = 0;                     // of the device, in all
  virtual std::int64_t available_bytes() const = 0;                  // that a run may still allocate
  virtual std::int64_t allocated_bytes() const = 0;                  // that redline holds on it now
  virtual std::unique_ptr<Buffer> allocate(std::int64_t bytes) = 0;  // contents undefined
  // Copies, fills and draws keep the order of the work given to the device; a host array is the caller's on return.
  virtual void copy_in(void* device_to, const void* host_from, std::int64_t bytes) = 0;
  virtual void copy_out(void* host_to, const void* device_from, std::int64_t bytes) = 0;
  virtual void fill(void* device_to, std::uint8_t byte, std::int64_t bytes) = 0;
  virtual void draw(const Normals& from, const Tensor& to) = 0;  // f32 or bf16; the same bits on every device
  virtual void wait() = 0;                                       // until all work given to it is done
  virtual bool runs_ahead() const = 0;                           // whether work goes on after the call that gave it
  virtual std::unique_ptr<Spans> make_spans() = 0;
  virtual std::unique_ptr<CopyLane> make_lane() = 0;
  // Memory of the host that copies reach while other work goes on; nothing where there is none. The host's available
  // memory is asked for first.
  virtual std::unique_ptr<Buffer> try_allocate_host(std::int64_t bytes) = 0;
  virtual bool shares_host_memory() const = 0;  // whether the host may use buffers itself, without copies
};

std::int64_t available_host_bytes();  // that this process may still allocate

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads = 0);  // 0: all cores
  Kind kind() const override { return Kind::cpu; }
  std::string name() const override;
  std::int64_t memory_bytes() const override;
  std::int64_t available_bytes() const override;
  std::int64_t allocated_bytes() const override;
  std::unique_ptr<Buffer> allocate(std::int64_t bytes) override;
  void copy_in(void* to, const void* from, std::int64_t bytes) override;
  void copy_out(void* to, const void* from, std::int64_t bytes) override;
  void fill(void* to, std::uint8_t byte, std::int64_t bytes) override;
  void draw(const Normals& from, const Tensor& to) override { redline::draw(from, to, pool_); }
  void wait() override {}
  bool runs_ahead() const override { return false; }
  std::unique_ptr<Spans> make_spans() override;
  std::unique_ptr<CopyLane> make_lane() override;
  std::unique_ptr<Buffer> try_allocate_host(std::int64_t bytes) override;
  bool shares_host_memory() const override { return true; }
  ThreadPool& pool() { return pool_; }

 private:
  ThreadPool pool_;
  std::int64_t memory_;
  std::atomic<std::int64_t> allocated_ = 0;
  friend class CpuBuffer;
};

// Whether cards of a compute capability multiply fp8 operands.
constexpr bool has_fp8(int major, int minor) { return 10 * major + minor >= 89; }

// CUDA as `redline info` shows it: built or not, and the cards of the driver. A build without it has no_cuda.cpp.
struct CudaCard {
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0;
  std::int64_t memory_bytes = 0;
};
struct CudaStatus {
  bool built = false;
  std::string runtime_version, driver_version;  // empty: none
  std::vector<CudaCard> cards;
  std::string problem;  // why no card can be used; empty: one can
};
CudaStatus cuda_status();

// Whether code for these architectures, as "80 90a", runs on a card: "90a" on 9.0 alone, "80-real" on 8.x, and "80",
// which brings PTX along, on every later card, too. CMake's words, as "native", name no card that could be refused.
bool has_code_for(std::string_view architectures, int major, int minor);

// The memory that the driver takes beside the buffers once a run is under way: graphs, and kernels of the libraries,
// which are loaded at their first use. A run that left less free would end in its first step. Together with the memory
// that the driver takes when a card is opened it is some 550 MiB on an H200.
inline constexpr std::int64_t kCudaFirstStepBytes = std::int64_t{256} << 20;

// The first card, when cuda_status() has no problem with it.
std::unique_ptr<Device> open_cuda();

// "cpu" | "cuda" | "auto": a card when one can be used, else the CPU. A device that cannot train here is a UserError
// that says why.
std::unique_ptr<Device> open_device(std::string_view which);

}  // namespace redline::device
