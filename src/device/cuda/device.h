// A CUDA card as a device: its memory, the stream on which work is queued in order, and a second one for work that a
// program lets run beside it.
#pragma once

#include <array>
#include <atomic>

#include "device/cuda/handles.h"
#include "device/device.h"

namespace redline::device {
namespace cuda {

// Copies to the card that the host does not wait for. Bytes go through pinned memory, since a copy from ordinary memory
// may wait for everything queued before it. The ring has segments; a segment is used again once it was read.
class UploadRing {
 public:
  UploadRing();

  // In the order of the stream. `from` may change as soon as it returns.
  void copy(void* to, const void* from, std::int64_t bytes, cudaStream_t stream);

 private:
  static constexpr std::size_t kSegments = 4;
  static constexpr std::int64_t kSegmentBytes = std::int64_t{2} << 20;  // a batch of 128 Ki tokens

  void next_segment(cudaStream_t stream);

  PinnedBytes pinned_;
  std::array<Event, kSegments> read_;  // the card has read the segment
  std::size_t segment_ = 0;
  std::int64_t used_ = 0;  // of the segment
};

}  // namespace cuda

class CudaDevice final : public Device {
 public:
  CudaDevice();  // card 0, as CUDA_VISIBLE_DEVICES counts them
  ~CudaDevice() override;

  Kind kind() const override { return Kind::cuda; }
  std::string name() const override { return name_; }
  std::string bus_id() const override;
  std::int64_t memory_bytes() const override { return memory_; }
  std::int64_t available_bytes() const override;
  std::int64_t allocated_bytes() const override { return allocated_; }
  std::unique_ptr<Buffer> allocate(std::int64_t bytes) override;
  void copy_in(void* to, const void* from, std::int64_t bytes) override;
  void copy_out(void* to, const void* from, std::int64_t bytes) override;
  void fill(void* to, std::uint8_t byte, std::int64_t bytes) override;
  void draw(const Normals& from, const Tensor& to) override;  // draw.cu
  void wait() override;
  bool runs_ahead() const override { return true; }
  std::unique_ptr<Spans> make_spans() override;
  std::unique_ptr<CopyLane> make_lane() override;
  std::unique_ptr<Buffer> try_allocate_host(std::int64_t bytes) override;
  bool shares_host_memory() const override { return false; }

  // The launch of a kernel on this card, and of one on its second stream. Nothing orders the two but
  // events.
  const cuda::Launch& launch() const { return launch_; }
  const cuda::Launch& side_launch() const { return side_launch_; }

 private:
  std::string name_;
  std::int64_t memory_ = 0;
  std::atomic<std::int64_t> allocated_ = 0;
  cuda::Stream stream_, side_;
  cuda::UploadRing uploads_;
  cuda::CardObjects objects_;
  cuda::Launch launch_, side_launch_;
  friend class CudaBuffer;
};

}  // namespace redline::device
