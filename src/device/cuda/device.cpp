// Card memory that is counted, copies on the one stream, how a card is opened, and the state of CUDA on this machine.
#include "device/cuda/device.h"

#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "device/host_pages.h"

namespace redline::device {
namespace cuda {

// Segments of pinned memory, filled one after the other.
UploadRing::UploadRing() : pinned_(pinned_bytes(kSegments * kSegmentBytes)) {
  for (Event& event : read_) event = make_event(cudaEventDisableTiming);
}

void UploadRing::copy(void* to, const void* from, std::int64_t bytes, cudaStream_t stream) {
  for (; bytes > kSegmentBytes; bytes -= kSegmentBytes) {  // weights and moments, at the start of a run
    copy(to, from, kSegmentBytes, stream);
    to = static_cast<std::byte*>(to) + kSegmentBytes;
    from = static_cast<const std::byte*>(from) + kSegmentBytes;
  }
  const auto size = static_cast<std::size_t>(bytes);
  if (used_ + bytes > kSegmentBytes) next_segment(stream);
  const std::int64_t at = static_cast<std::int64_t>(segment_) * kSegmentBytes + used_;
  std::memcpy(pinned_.get() + at, from, size);
  REDLINE_CUDA(cudaMemcpyAsync(to, pinned_.get() + at, size, cudaMemcpyHostToDevice, stream));
  used_ += aligned(bytes);
}

void UploadRing::next_segment(cudaStream_t stream) {
  REDLINE_CUDA(cudaEventRecord(read_[segment_].get(), stream));
  segment_ = (segment_ + 1) % kSegments;
  REDLINE_CUDA(cudaEventSynchronize(read_[segment_].get()));  // an event that was never recorded has happened
  used_ = 0;
}

}  // namespace cuda

namespace {

constexpr int kCard = 0;
constexpr int kOldestMajor = 8;  // bf16 tensor cores came with compute capability 8.0

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string reason(cudaError_t error) {
  cudaGetLastError();  // the runtime keeps the error for the next caller otherwise
  return cudaGetErrorString(error);
}

struct Memory {
  std::size_t free = 0, total = 0;
};
Memory card_memory() {
  Memory m;
  REDLINE_CUDA(cudaMemGetInfo(&m.free, &m.total));
  return m;
}

cuda::DeviceBytes device_bytes(std::int64_t bytes, const std::string& card) {
  cuda::DeviceBytes data = cuda::try_device_bytes(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  if (!data) {
    const Memory m = card_memory();
    fail_machine("cannot allocate {:.2f} GiB on {}: {:.2f} GiB of its {:.2f} GiB are free", gib(bytes), card,
                 gib(m.free), gib(m.total));
  }
  return data;
}

}  // namespace

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(CudaDevice& device, std::int64_t bytes)
      : device_(device), bytes_(bytes), data_(device_bytes(bytes, device.name())) {
    device_.allocated_ += bytes_;
  }
  ~CudaBuffer() override { device_.allocated_ -= bytes_; }
  std::byte* data() const override { return data_.get(); }
  std::int64_t bytes() const override { return bytes_; }

 private:
  CudaDevice& device_;
  std::int64_t bytes_;
  cuda::DeviceBytes data_;  // cudaMalloc aligns to 256 bytes at least
};

// Events that keep the time at which the card came to them.
class CudaSpans final : public Spans {
 public:
  explicit CudaSpans(cudaStream_t stream) : stream_(stream) {}
  void begin(std::size_t span) override {
    while (spans_.size() <= span) spans_.emplace_back();
    REDLINE_CUDA(cudaEventRecord(spans_[span].begun.get(), stream_));
  }
  void end(std::size_t span) override { REDLINE_CUDA(cudaEventRecord(spans_[span].ended.get(), stream_)); }
  void wait(std::size_t span) override { REDLINE_CUDA(cudaEventSynchronize(spans_[span].ended.get())); }
  double length(std::size_t span) const override { return seconds(spans_[span].begun, spans_[span].ended); }
  double between_ends(std::size_t first, std::size_t second) const override {
    return seconds(spans_[first].ended, spans_[second].ended);
  }

 private:
  struct Span {
    cuda::Event begun = cuda::make_event(), ended = cuda::make_event();
  };
  static double seconds(const cuda::Event& from, const cuda::Event& to) {
    float ms = 0;  // too coarse for the hours of a run: only what lies near each other is held against each other
    REDLINE_CUDA(cudaEventElapsedTime(&ms, from.get(), to.get()));
    return 1e-3 * static_cast<double>(ms);
  }
  cudaStream_t stream_;
  std::vector<Span> spans_;
};

// Pages that all threads touch before one pins them: the driver alone touches a page after another, which took 0.65 s a
// GiB. One registration, since a copy may not cross from one to another.
class RegisteredBuffer final : public Buffer {
 public:
  static constexpr std::int64_t kWorthIt = std::int64_t{64} << 20;

  // Null where the driver does not take them.
  static std::unique_ptr<Buffer> make(std::int64_t bytes) {
    HostPages pages = map_pages(bytes);
    if (!pages) return nullptr;
    {
      ThreadPool pool;
      touch(pages, pool);
    }
    const auto size = static_cast<std::size_t>(pages.get_deleter().bytes);
    if (cudaHostRegister(pages.get(), size, cudaHostRegisterDefault) != cudaSuccess) {
      cudaGetLastError();  // else the next launch would report it
      return nullptr;
    }
    return std::make_unique<RegisteredBuffer>(std::move(pages), bytes);
  }

  RegisteredBuffer(HostPages pages, std::int64_t bytes) : pages_(std::move(pages)), bytes_(bytes) {}
  ~RegisteredBuffer() override { cudaHostUnregister(pages_.get()); }
  std::byte* data() const override { return pages_.get(); }
  std::int64_t bytes() const override { return bytes_; }
  bool is_zero() const override { return true; }

 private:
  HostPages pages_;
  std::int64_t bytes_;
};

class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(cuda::PinnedBytes data, std::int64_t bytes) : data_(std::move(data)), bytes_(bytes) {}
  std::byte* data() const override { return data_.get(); }
  std::int64_t bytes() const override { return bytes_; }

 private:
  cuda::PinnedBytes data_;
  std::int64_t bytes_;
};

// A stream of its own, which follows the work's.
class CudaLane final : public CopyLane {
 public:
  explicit CudaLane(cudaStream_t work) : work_(work) {
    for (cuda::Event& mark : marks_) mark = cuda::make_event(cudaEventDisableTiming);
  }
  ~CudaLane() override { cudaStreamSynchronize(lane_.get()); }
  void follow() override {
    REDLINE_CUDA(cudaEventRecord(work_done_.get(), work_));
    REDLINE_CUDA(cudaStreamWaitEvent(lane_.get(), work_done_.get()));
  }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    if (bytes > 0)
      REDLINE_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, lane_.get()));
  }
  void mark(int number) override { REDLINE_CUDA(cudaEventRecord(marks_[number].get(), lane_.get())); }
  void wait(int number) override { REDLINE_CUDA(cudaEventSynchronize(marks_[number].get())); }

 private:
  cudaStream_t work_;
  cuda::Stream lane_ = cuda::make_stream();
  cuda::Event work_done_ = cuda::make_event(cudaEventDisableTiming);
  cuda::Event marks_[kMarks];  // one that was never recorded has happened
};

CudaDevice::CudaDevice() {
  REDLINE_CUDA(cudaSetDevice(kCard));
  cudaDeviceProp properties;
  REDLINE_CUDA(cudaGetDeviceProperties(&properties, kCard));
  name_ = properties.name;
  memory_ = static_cast<std::int64_t>(card_memory().total);
  stream_ = cuda::make_stream();
  side_ = cuda::make_stream();
  launch_.stream = stream_.get();
  launch_.own = &objects_;
  launch_.multiprocessors = properties.multiProcessorCount;
  launch_.major = properties.major;
  launch_.minor = properties.minor;
  side_launch_ = launch_;
  side_launch_.stream = side_.get();
}

CudaDevice::~CudaDevice() {  // the ring may be in use
  cudaStreamSynchronize(side_.get());
  cudaStreamSynchronize(stream_.get());
}

std::string CudaDevice::bus_id() const {
  char id[32] = {};
  REDLINE_CUDA(cudaDeviceGetPCIBusId(id, sizeof id, kCard));
  return id;
}

std::int64_t CudaDevice::available_bytes() const {
  return std::max<std::int64_t>(static_cast<std::int64_t>(card_memory().free) - kCudaFirstStepBytes, 0);
}

std::unique_ptr<Buffer> CudaDevice::allocate(std::int64_t bytes) {
  REDLINE_CHECK(bytes >= 0, "a buffer of {} bytes", bytes);
  return std::make_unique<CudaBuffer>(*this, bytes);
}

void CudaDevice::copy_in(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) uploads_.copy(to, from, bytes, stream_.get());
}

void CudaDevice::copy_out(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0)
    REDLINE_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream_.get()));
  wait();
}

void CudaDevice::fill(void* to, std::uint8_t byte, std::int64_t bytes) {
  if (bytes > 0) REDLINE_CUDA(cudaMemsetAsync(to, byte, static_cast<std::size_t>(bytes), stream_.get()));
}

void CudaDevice::wait() { REDLINE_CUDA(cudaStreamSynchronize(stream_.get())); }

std::unique_ptr<Spans> CudaDevice::make_spans() { return std::make_unique<CudaSpans>(stream_.get()); }

std::unique_ptr<CopyLane> CudaDevice::make_lane() { return std::make_unique<CudaLane>(stream_.get()); }

std::unique_ptr<Buffer> CudaDevice::try_allocate_host(std::int64_t bytes) {
  if (bytes > available_host_bytes()) return nullptr;
  if (bytes >= RegisteredBuffer::kWorthIt)
    if (std::unique_ptr<Buffer> registered = RegisteredBuffer::make(bytes)) return registered;
  cuda::PinnedBytes data = cuda::try_pinned_bytes(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  return data ? std::make_unique<PinnedBuffer>(std::move(data), bytes) : nullptr;
}

std::unique_ptr<Device> open_cuda() { return std::make_unique<CudaDevice>(); }

// Nothing here throws: a machine without a driver is an answer, not an error.
CudaStatus cuda_status() {
  CudaStatus status;
  status.built = true;
  int version = 0;
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) status.runtime_version = version_text(version);
  version = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) status.driver_version = version_text(version);
  if (status.driver_version.empty()) {
    status.problem = "no NVIDIA driver is loaded on this machine";
    return status;
  }

  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    status.problem = fmt::format("the CUDA driver shows no card: {}", reason(error));
    return status;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, i); error != cudaSuccess) {
      status.problem = fmt::format("card {} does not answer: {}", i, reason(error));
      return status;
    }
    status.cards.push_back({properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                            static_cast<std::int64_t>(properties.totalGlobalMem)});
  }
  if (status.cards.empty()) {
    status.problem = "the CUDA driver shows no card";
  } else if (const CudaCard& first = status.cards.front(); first.major < kOldestMajor) {
    status.problem = fmt::format("{} has compute capability {}.{}, and redline needs {}.0", first.name, first.major,
                                 first.minor, kOldestMajor);
  } else if (!has_code_for(REDLINE_CUDA_ARCHS, first.major, first.minor)) {
    status.problem = fmt::format(
        "{} has compute capability {}.{}, and this redline has code for {}; build it with -DREDLINE_CUDA_ARCHS={}{}",
        first.name, first.major, first.minor, REDLINE_CUDA_ARCHS, 10 * first.major + first.minor,
        first.major == 9 ? "a" : "");
  }
  return status;
}

}  // namespace redline::device
