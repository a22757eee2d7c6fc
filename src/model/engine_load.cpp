// How tensors of files reach an engine's flat arrays: straight, where the host may write there; else through two
// windows of the host's memory, one of which is filled by all threads while the other is on its way.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "io/tensor_stream.h"
#include "model/convert_moments.h"
#include "model/engine.h"
#include "model/fp8_linears.h"
#include "model/state_files.h"
#include "model/weights.h"
#include "optim/adamw.h"

namespace redline::model {
namespace {

// Bytes of values.
std::int64_t value_bytes(const Engine::FileToLoad& file, std::span<const Tensor> arrays) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < file.tensors.size(); ++i)
    bytes += file.targets[i].elements * static_cast<std::int64_t>(size_of(arrays[file.targets[i].row].dtype));
  return bytes;
}

// Bytes of the file whose values are no more than a window, whatever types it mixes.
std::int64_t file_window(const Engine::FileToLoad& file, std::span<const Tensor> arrays) {
  std::size_t growth = 1;
  for (std::size_t i = 0; i < file.tensors.size(); ++i)
    growth = std::max(growth, size_of(arrays[file.targets[i].row].dtype) / size_of(file.tensors[i]->dtype));
  return device::kTransferWindow / static_cast<std::int64_t>(growth);
}

// Values go where there is room in a window, then to the device, run by run. One that leaves early waits for what is
// under way: its windows do.
class Uploads {
 public:
  Uploads(device::Device& device, std::int64_t window_bytes) : device_(device), bytes_(window_bytes) {}

  std::byte* place(std::int64_t bytes, std::byte* device_to) {
    if (filled_ == 0) open_window();
    const std::span<std::byte> memory = windows_[current_]->memory();
    REDLINE_CHECK(filled_ + bytes <= static_cast<std::int64_t>(memory.size()), "a window of {} bytes", memory.size());
    if (runs_.empty() || runs_.back().to + runs_.back().bytes != device_to)
      runs_.push_back({device_to, bytes});
    else
      runs_.back().bytes += bytes;
    return memory.data() + std::exchange(filled_, filled_ + bytes);
  }

  // All that was placed is there.
  void send() {
    device::TransferWindow& window = *windows_[current_];
    const std::byte* from = window.memory().data();
    for (const Run& run : runs_) {
      window.send(run.to, from, run.bytes);
      from += run.bytes;
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
    std::byte* to;
    std::int64_t bytes;
  };

  void open_window() {
    auto& window = windows_[current_];
    if (window)
      window->wait();
    else
      window = device_.make_transfer_window(bytes_);
  }

  device::Device& device_;
  std::int64_t bytes_;
  std::array<std::unique_ptr<device::TransferWindow>, 2> windows_;
  std::size_t current_ = 0;
  std::int64_t filled_ = 0;  // bytes of the current window
  std::vector<Run> runs_;    // its values, from front to back
};

// On the way, number by number.
bool converts(DType from, DType to) {
  const auto real = [](DType t) { return t == DType::f32 || t == DType::f64 || t == DType::bf16 || t == DType::f16; };
  return from == to || (real(from) && (to == DType::f32 || to == DType::bf16));
}

// Of the ranks that share a row out one has its first element; where they do not, every rank has all of it.
bool has_the_first(const optim::StateArray& a) { return a.range.elements() > 0 && a.range.begin == a.all().begin; }

}  // namespace

void Engine::load(std::span<const FileToLoad> files, const LoadProgress& progress) {
  const std::vector<Tensor> arrays = state();
  const bool straight = device_.shares_host_memory();
  std::uint64_t before = 0, all = 0;
  std::int64_t largest = 0;
  ThreadPool pool;  // of this call: loading happens once
  std::vector<std::vector<io::ElementRange>> parts;
  std::vector<std::uint64_t> bytes;  // that are read of each file
  for (const FileToLoad& f : files) {
    for (std::vector<io::ElementRange>& of_file = parts.emplace_back(); const Target& t : f.targets)
      of_file.push_back({t.begin, t.elements});
    bytes.push_back(io::stream_bytes({.file = *f.file->reader,
                                      .wanted = f.tensors,
                                      .hashes = f.file->hashes,
                                      .pool = pool,
                                      .parts = parts.back(),
                                      .rest = f.rest}));
    all += bytes.back();
    largest = std::max(largest, value_bytes(f, arrays));
  }
  const auto tell = [&](std::uint64_t read) {
    if (progress) progress(before + read, all);
  };
  Uploads uploads(device_, std::min(largest, device::kTransferWindow));
  const auto has_parameters = [&](const FileToLoad& f) {
    return std::ranges::find(f.targets, lowered_.row(optim::kParameters), &Target::row) != f.targets.end();
  };
  const bool parameters = std::ranges::any_of(files, has_parameters);
  if (parameters) forget_scales();
  for (std::size_t row = 0; row < lowered_.state.size(); ++row)
    if (parameters && lowered_.state[row].may_be_absent) executor_->clear(lowered_.state_values[row]);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const FileToLoad& f = files[i];
    const auto place = [&](const io::TensorPiece& piece) {
      const Target& target = f.targets[piece.index];
      const Tensor& array = arrays[target.row];
      const std::int64_t first = target.first + piece.first - target.begin,
                         element = static_cast<std::int64_t>(size_of(array.dtype));
      REDLINE_CHECK(first >= 0 && first + piece.count <= array.elements(), "values {} to {} of {}", first,
                    first + piece.count, array.elements());
      std::byte* const to = array.as<std::byte>() + first * element;
      return io::PiecePlace{straight ? to : uploads.place(piece.count * element, to), array.dtype};
    };
    const auto done = [&](std::span<const io::TensorPiece>) {
      if (!straight) uploads.send();
    };
    tell(0);
    io::stream_tensors({.file = *f.file->reader,
                        .wanted = f.tensors,
                        .hashes = f.file->hashes,
                        .pool = pool,
                        .window = straight ? io::kLongStreamWindow : file_window(f, arrays),
                        .progress = tell,
                        .finite = has_parameters(f),  // a moment may be infinite: its parameter stands still
                        .new_memory = straight,
                        .parts = parts[i],
                        .rest = f.rest},
                       place, done);
    tell(bytes[i]);
    before += bytes[i];
  }
  uploads.wait();
  if (!parameters) return;
  refresh();
  const auto has_average = [&](const FileToLoad& f) {
    return std::ranges::find(f.targets, lowered_.row(optim::kAverage), &Target::row) != f.targets.end();
  };
  if (!std::ranges::any_of(files, has_average)) start_average();
  const auto is_scales = [&](const Target& t) { return is_fp8_scales(lowered_.state[t.row]); };
  for (const FileToLoad& f : files) calibrated_ = calibrated_ || std::ranges::any_of(f.targets, is_scales);
}

std::vector<Engine::FileToLoad> weights_to_load(const Engine& engine, const io::WeightFiles& weights) {
  const std::size_t row = engine.lowered().row(optim::kParameters);
  const optim::StateArray& array = engine.lowered().state[row];
  std::vector<Engine::FileToLoad> files;
  for (MatchedFile& m : match_weights(weights, engine.model(), engine.layout())) {
    Engine::FileToLoad& f = files.emplace_back();
    f.file = m.file;
    f.tensors = std::move(m.tensors);
    f.rest = has_the_first(array);
    for (const StoredParameter* p : m.parameters) {
      const Range part = intersection(p->range(), array.range);
      f.targets.push_back(
          part.empty() ? Engine::Target{row}
                       : Engine::Target{row, part.begin - array.range.begin, part.begin - p->offset, part.elements()});
    }
  }
  return files;
}

Engine::FileToLoad state_to_load(const Engine& engine, const io::WeightFiles::File& file, std::string_view name) {
  const optim::StateTable& table = engine.lowered().state;
  std::map<std::string, Engine::Target> places;
  for (const StateTensor& s : state_tensors(table, engine.layout(), name)) {
    if (table[s.row].may_be_absent && !file.reader->find(s.name)) continue;
    if (is_converted(table[s.row], *file.reader, s.name)) continue;
    const io::StoredTensor& t = file.reader->at(s.name);
    if (t.shape != s.shape || !converts(t.dtype, table[s.row].dtype))
      fail_user("{}: {} has another shape or type than the run's; resume with the model that the run began with",
                file.reader->path().string(), t.name);
    places[t.name] = {s.row, s.first, s.begin, s.elements};
  }
  Engine::FileToLoad load{&file};
  const auto first =
      std::ranges::find_if(table, [&](const optim::StateArray& a) { return a.file == name && a.all().elements() > 0; });
  load.rest = first == table.end() || has_the_first(*first);
  for (const io::StoredTensor& t : file.reader->tensors())
    if (const auto it = places.find(t.name); it != places.end()) {
      load.tensors.push_back(&t);
      load.targets.push_back(it->second);
    }
  return load;
}

void load_weights(Engine& engine, const io::WeightFiles& weights, const LoadProgress& progress) {
  engine.load(weights_to_load(engine, weights), progress);
}

}  // namespace redline::model
