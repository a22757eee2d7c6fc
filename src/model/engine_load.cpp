// How tensors of files reach an engine's flat arrays: straight, where the host may write there; else through two windows of
// the host's memory, one of which is filled by all threads while the other is on its way.
#include <algorithm>
#include <array>
#include <utility>

#include "io/tensor_stream.h"
#include "model/engine.h"
#include "model/weights.h"

namespace redline::model {
namespace {

constexpr auto kElement = static_cast<std::int64_t>(sizeof(float));

// Bytes of values. Twice that is pinned, which costs up to half a millisecond for each MiB: what fits into less takes less.
constexpr std::int64_t kUploadWindow = std::int64_t{32} << 20;

std::int64_t value_bytes(const Engine::FileToLoad& file) {
  std::int64_t elements = 0;
  for (const io::StoredTensor* t : file.tensors) elements += t->elements();
  return elements * kElement;
}

// Bytes of the file whose values are no more than kUploadWindow, whatever types it mixes.
std::int64_t file_window(const Engine::FileToLoad& file) {
  std::int64_t smallest = kElement;
  for (const io::StoredTensor* t : file.tensors)
    smallest = std::min(smallest, static_cast<std::int64_t>(size_of(t->dtype)));
  return kUploadWindow / kElement * smallest;
}

// Values go where there is room in a window, then to the device, run by run. One that leaves early waits for what is under
// way: its windows do.
class Uploads {
 public:
  Uploads(device::Device& device, std::int64_t window_bytes) : device_(device), bytes_(window_bytes) {}

  float* place(std::int64_t count, float* device_to) {
    if (filled_ == 0) open_window();
    const std::span<std::byte> memory = windows_[current_]->memory();
    REDLINE_CHECK((filled_ + count) * kElement <= static_cast<std::int64_t>(memory.size()), "a window of {} bytes",
                  memory.size());
    if (runs_.empty() || runs_.back().to + runs_.back().count != device_to)
      runs_.push_back({device_to, count});
    else
      runs_.back().count += count;
    return reinterpret_cast<float*>(memory.data()) + std::exchange(filled_, filled_ + count);
  }

  // All that was placed is there.
  void send() {
    device::UploadWindow& window = *windows_[current_];
    const std::byte* from = window.memory().data();
    for (const Run& run : runs_) {
      window.send(run.to, from, run.count * kElement);
      from += run.count * kElement;
    }
    runs_.clear();
    filled_ = 0;
    current_ = 1 - current_;
  }

  void wait() {
    for (const auto& window : windows_)
      if (window) window->wait();
  }

 private:
  struct Run {
    float* to;
    std::int64_t count;
  };

  void open_window() {
    auto& window = windows_[current_];
    if (window)
      window->wait();
    else
      window = device_.make_upload_window(bytes_);
  }

  device::Device& device_;
  std::int64_t bytes_;
  std::array<std::unique_ptr<device::UploadWindow>, 2> windows_;
  std::size_t current_ = 0;
  std::int64_t filled_ = 0;  // values, of the current window
  std::vector<Run> runs_;    // its values, from front to back
};

}  // namespace

void Engine::load(std::span<const FileToLoad> files, const LoadProgress& progress) {
  std::uint64_t before = 0, all = 0;
  std::int64_t largest = 0;
  for (const FileToLoad& f : files) {
    all += f.file->reader->file().bytes().size();
    largest = std::max(largest, value_bytes(f));
  }
  const auto tell = [&](std::uint64_t read) {
    if (progress) progress(before + read, all);
  };
  ThreadPool pool;  // of this call: loading happens once
  Uploads uploads(device_, std::min(largest, kUploadWindow));
  for (const FileToLoad& f : files) {
    const auto place = [&](const io::TensorPiece& piece) {
      const FlatTarget& target = f.targets[piece.index];
      const Tensor flat = executor_->tensor(lowered_.at(target.which));
      const std::int64_t first = target.offset + piece.first;
      REDLINE_CHECK(first >= 0 && first + piece.count <= flat.elements(), "values {} to {} of {}", first,
                    first + piece.count, flat.elements());
      float* const to = flat.f32() + first;
      return reinterpret_cast<std::byte*>(host_memory_ ? to : uploads.place(piece.count, to));
    };
    const auto done = [&](std::span<const io::TensorPiece>) {
      if (!host_memory_) uploads.send();
    };
    tell(0);
    io::stream_tensors({.file = *f.file->reader,
                        .wanted = f.tensors,
                        .to = DType::f32,
                        .hash = f.file->hash,
                        .pool = pool,
                        .window = host_memory_ ? io::kLongStreamWindow : file_window(f),
                        .progress = tell,
                        .new_memory = host_memory_},
                       place, done);
    const std::uint64_t bytes = f.file->reader->file().bytes().size();
    tell(bytes);
    before += bytes;
  }
  uploads.wait();
  const auto has_parameters = [](const FileToLoad& f) {
    return std::ranges::any_of(f.targets, [](const FlatTarget& t) { return t.which == Flat::parameters; });
  };
  if (std::ranges::any_of(files, has_parameters)) refresh();
}

std::vector<Engine::FileToLoad> weights_to_load(const Engine& engine, const io::WeightFiles& weights) {
  std::vector<Engine::FileToLoad> files;
  for (MatchedFile& m : match_weights(weights, engine.model(), engine.layout())) {
    Engine::FileToLoad& f = files.emplace_back();
    f.file = m.file;
    f.tensors = std::move(m.tensors);
    for (const StoredParameter* p : m.parameters) f.targets.push_back({Flat::parameters, p->offset});
  }
  return files;
}

void load_weights(Engine& engine, const io::WeightFiles& weights, const LoadProgress& progress) {
  engine.load(weights_to_load(engine, weights), progress);
}

}  // namespace redline::model
