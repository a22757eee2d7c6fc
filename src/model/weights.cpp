// Tensors of files to an engine's flat arrays: which parameter a tensor is, moments that change their type, and the way
// of the bytes. They go straight where the host may write there; else through two windows of the host's memory, one of
// which is filled by all threads while the other is on its way.
#include "model/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/small_floats.h"
#include "base/thread_pool.h"
#include "io/json.h"
#include "io/tensor_stream.h"
#include "model/engine.h"
#include "model/family.h"
#include "model/fp8_linears.h"
#include "model/optimizer.h"
#include "model/state_files.h"
#include "optim/adamw.h"
#include "optim/cpu/kernels.h"

namespace redline::model {
namespace {

// Whether two tensors hold the same. They are read by the piece: pages of a mapping would stay in memory until the
// weights are loaded, and a fault for every few of them takes longer than the copy.
bool same_bytes(const io::SafetensorsReader& a_file, const io::StoredTensor& a, const io::SafetensorsReader& b_file,
                const io::StoredTensor& b) {
  if (a.dtype != b.dtype || a.bytes.size() != b.bytes.size()) return false;
  constexpr std::int64_t kPiece = std::int64_t{1} << 18;
  const InputFile a_input(a_file.path()), b_input(b_file.path());
  const std::int64_t a_begin = a.bytes.data() - a_file.file().bytes().data();
  const std::int64_t b_begin = b.bytes.data() - b_file.file().bytes().data();
  std::atomic<bool> same = true;
  ThreadPool().for_ranges(static_cast<std::int64_t>(a.bytes.size()), kPiece, [&](std::int64_t begin, std::int64_t end) {
    if (!same) return;
    const auto bytes = static_cast<std::size_t>(end - begin);
    const auto read = std::make_unique_for_overwrite<std::byte[]>(2 * bytes);
    a_input.read(static_cast<std::uint64_t>(a_begin + begin), {read.get(), bytes});
    b_input.read(static_cast<std::uint64_t>(b_begin + begin), {read.get() + bytes, bytes});
    if (std::memcmp(read.get(), read.get() + bytes, bytes) != 0) same = false;
  });
  return same;
}

// A tied model's file may repeat the embedding as the head, and files of old transformers hold the rotary frequencies.
// A head that is another one is not thrown away unseen.
bool is_passed_over(const io::SafetensorsReader& file, const io::StoredTensor& t, const io::WeightFiles& weights,
                    const config::Model& model) {
  if (t.name.ends_with("rotary_emb.inv_freq")) return true;
  if (!model.tied || t.name != "lm_head.weight") return false;
  for (const io::WeightFiles::File& other : weights.files())
    if (const io::StoredTensor* embedding = other.reader->find("model.embed_tokens.weight");
        embedding && !same_bytes(file, t, *other.reader, *embedding))
      fail_user(
          "{}: lm_head.weight is not model.embed_tokens.weight, though config.json says tie_word_embeddings; set "
          "that to false, or take lm_head.weight out",
          weights.listing().string());
  return true;
}

void require_match(const io::StoredTensor& t, const StoredParameter& p, const std::string& file) {
  if (t.shape != p.shape)
    fail_user("{}: {} has shape [{}], but the configuration asks for [{}]", file, p.name, fmt::join(t.shape, ", "),
              fmt::join(p.shape, ", "));
  constexpr DType kWeights[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  if (std::ranges::find(kWeights, t.dtype) == std::end(kWeights))
    fail_user("{}: {} has dtype {}; redline reads weights in f32, bf16, f16 and f64", file, p.name, name_of(t.dtype));
}

}  // namespace

std::vector<MatchedFile> match_weights(const io::WeightFiles& weights, const config::Model& model,
                                       const FlatLayout& layout) {
  std::map<std::string_view, const StoredParameter*> parameters;
  for (const StoredParameter& p : layout.stored) parameters.emplace(p.name, &p);
  std::vector<MatchedFile> matched;
  for (const io::WeightFiles::File& file : weights.files()) {
    MatchedFile& m = matched.emplace_back();
    m.file = &file;
    for (const io::StoredTensor& t : file.reader->tensors()) {
      const auto it = parameters.find(t.name);
      if (it == parameters.end()) {
        if (is_passed_over(*file.reader, t, weights, model)) continue;
        const bool stacked = model.experts > 0 && t.name.find(".experts.") != t.name.npos && t.shape.size() == 3;
        fail_user("{}: holds {}, which the configuration has no place for{}", file.reader->path().string(),
                  io::in_quotes(t.name),
                  stacked ? "; it holds all experts of a layer, and redline reads one tensor an expert, as "
                            "transformers' save_pretrained writes them unless save_original_format=False"
                          : "");
      }
      require_match(t, *it->second, file.reader->path().string());
      m.tensors.push_back(&t);
      m.parameters.push_back(it->second);
    }
  }
  for (const StoredParameter& p : layout.stored) weights.at(p.name);
  return matched;
}

// In doubles: untrusted extents multiply past 64 bits.
void check_size(const io::WeightFiles& weights, const config::Model& model) {
  double held = 0, asked = 0;
  std::string missing;
  for (const io::WeightFiles::File& file : weights.files())
    for (const io::StoredTensor& t : file.reader->tensors()) held += static_cast<double>(t.elements());
  const bool too_deep = model.layers > static_cast<std::int64_t>(weights.tensors());
  if (!too_deep) {
    for (const ParameterSpec& p : family_of(model).table(model)) {
      double elements = 1;
      for (int i = 0; i < p.shape.rank(); ++i) elements *= static_cast<double>(p.shape[i]);
      asked += elements;
      for (const HfSlice& slice : p.slices)
        if (missing.empty() && !weights.find(slice.name)) missing = "; it has no " + slice.name;
    }
  }
  if (too_deep || asked > held)
    fail_user("{}: {} tensors with {} elements, fewer than config.json describes{}", weights.listing().string(),
              weights.tensors(), static_cast<std::int64_t>(held), missing);
}

// Moments are converted in windows of the flat layout, whole blocks each: parameter by parameter from the file to
// floats, then to what the row keeps.

namespace {

using optim::StateKind;

constexpr std::int64_t kWindow = kCutBlock << 12;  // elements

bool is_first(const optim::StateArray& row) { return row.kind == StateKind::first_moments; }
bool is_moments(const optim::StateArray& row) { return is_first(row) || row.kind == StateKind::second_moments; }

// The name in a file of the scales of a row's codes.
std::string scales_of(const optim::StateArray& moments) {
  return optim::adamw_state({}, {}, DType::u8)[is_first(moments) ? 2 : 3].stored_as;
}

[[noreturn]] void refuse(const io::SafetensorsReader& file, const std::string& tensor) {
  fail_user("{}: {} has another shape or type than the run's; resume with the model that the run began with",
            file.path().string(), tensor);
}

// The moments of one kind in a file, as floats, by their places in the flat layout.
class MomentsOfFile {
 public:
  MomentsOfFile(const io::SafetensorsReader& file, const Engine& engine, const optim::StateArray& row)
      : file_(file), layout_(engine.layout()), prefix_(row.stored_as), first_(is_first(row)) {
    const std::vector<Range> small =
        ranges_where(engine.table(), layout_, [](const ParameterSpec& p) { return p.by_matrix; });
    REDLINE_CHECK(small.size() == 1, "{} ranges of matrices", small.size());
    const optim::StateTable as_codes = optim::adamw_state(small.front(), {}, DType::u8);
    scales_row_ = as_codes[first_ ? 2 : 3];
  }

  // Elements [begin, end); gaps between parameters are zero.
  void read(Range part, float* out) const {
    std::fill_n(out, part.elements(), 0.0f);
    for (const StoredParameter& p : layout_.stored) {
      const Range common = intersection(p.range(), part);
      if (!common.empty()) read(p, common, out + (common.begin - part.begin));
    }
  }

 private:
  void read(const StoredParameter& p, Range part, float* out) const {
    const io::StoredTensor& t = file_.at(prefix_ + p.name);
    if (t.shape != p.shape) refuse(file_, t.name);
    const std::size_t element = size_of(t.dtype);
    const auto bytes = t.bytes.subspan(static_cast<std::size_t>(part.begin - p.offset) * element,
                                       static_cast<std::size_t>(part.elements()) * element);
    if (t.dtype != DType::u8) return t.convert(bytes, DType::f32, reinterpret_cast<std::byte*>(out));
    const io::StoredTensor& scales = file_.at(scales_row_.stored_as);
    if (scales.dtype != DType::f32 || scales.elements() != scales_row_.elements()) refuse(file_, scales.name);
    const auto* codes = reinterpret_cast<const std::uint8_t*>(bytes.data());
    for (std::int64_t at = part.begin; at < part.end;) {
      const std::int64_t block = at / kCutBlock, end = std::min(part.end, (block + 1) * kCutBlock);
      float scale = 0;
      const std::int64_t which = block - scales_row_.range.begin / kCutBlock;
      scales.convert(scales.bytes.subspan(static_cast<std::size_t>(which) * sizeof scale, sizeof scale), DType::f32,
                     reinterpret_cast<std::byte*>(&scale));
      optim::cpu::decode_moments(first_ ? optim::kSignedMap : optim::kUnsignedMap, codes + (at - part.begin), end - at,
                                 scale, out + (at - part.begin));
      at = end;
    }
  }

  const io::SafetensorsReader& file_;
  const FlatLayout& layout_;
  std::string prefix_;
  bool first_;
  optim::StateArray scales_row_;  // of a run that keeps codes
};

// Floats of a window to where a row keeps them.
class MomentsOfRow {
 public:
  MomentsOfRow(Engine& engine, std::size_t row) : engine_(engine), row_(engine.lowered().state[row]) {
    values_ = engine.lowered().state_values[row];
    if (row_.dtype != DType::u8) return;
    const bool first = is_first(row_);
    encode_ = first ? optim::cpu::encode_first_moments : optim::cpu::encode_second_moments;
    const std::size_t scales = engine.lowered().row(first ? optim::kFirstScales : optim::kSecondScales);
    REDLINE_CHECK(scales < engine.lowered().state.size(), "{} of eight bits have no scales", row_.name);
    scales_row_ = engine.lowered().state[scales];
    scales_ = engine.lowered().state_values[scales];
  }

  void write(Range part, const float* moments) {
    const std::int64_t first = part.begin - row_.range.begin, n = part.elements();
    if (row_.dtype == DType::f32) return put(values_, moments, first, n);
    if (row_.dtype == DType::bf16) {
      std::vector<std::uint16_t> rounded(static_cast<std::size_t>(n));
      std::transform(moments, moments + n, rounded.begin(), bf16_from_f32);
      return put(values_, rounded.data(), first, n);
    }
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
    std::vector<float> scales;
    for (std::int64_t at = part.begin; at < part.end;) {
      const std::int64_t end = std::min(part.end, (at / kCutBlock + 1) * kCutBlock), i = at - part.begin;
      scales.push_back(encode_(moments + i, end - at, codes.data() + i));
      at = end;
    }
    put(values_, codes.data(), first, n);
    put(scales_, scales.data(), scales_row_.first_of(part, scales_row_.range), std::ssize(scales));
  }

 private:
  template <class T>
  void put(program::ValueId value, const T* from, std::int64_t first, std::int64_t count) {
    constexpr auto kElement = static_cast<std::int64_t>(sizeof(T));
    engine_.executor().write(value, from, count * kElement, first * kElement);
  }

  Engine& engine_;
  optim::StateArray row_, scales_row_;
  program::ValueId values_, scales_;
  float (*encode_)(const float*, std::int64_t, std::uint8_t*) = nullptr;
};

}  // namespace

bool is_converted(const optim::StateArray& row, const io::SafetensorsReader& file, const std::string& tensor) {
  const io::StoredTensor* const t = file.find(tensor);
  if (row.kind == StateKind::moment_scales) return !t;  // whether its codes are there is for them to say
  return t && is_moments(row) && (t->dtype == DType::u8) != (row.dtype == DType::u8);
}

void convert_moments(Engine& engine, const io::SafetensorsReader& file) {
  const optim::StateTable& table = engine.lowered().state;
  std::vector<float> moments;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const optim::StateArray& row = table[i];
    if (!is_moments(row) || row.file != file.path().filename().string()) continue;
    const auto in_range = [&](const StoredParameter& p) {
      return p.offset >= row.all().begin && p.offset < row.all().end && is_converted(row, file, row.stored_as + p.name);
    };
    if (std::ranges::none_of(engine.layout().stored, in_range)) {
      // Codes that were loaded mean nothing without their scales.
      if (row.dtype == DType::u8) file.at(scales_of(row));
      continue;
    }
    const MomentsOfFile from(file, engine, row);
    MomentsOfRow to(engine, i);
    for (std::int64_t at = row.range.begin; at < row.range.end;) {
      const std::int64_t end = std::min(row.range.end, (at / kWindow + 1) * kWindow);
      moments.resize(static_cast<std::size_t>(end - at));
      from.read({at, end}, moments.data());
      to.write({at, end}, moments.data());
      at = end;
    }
  }
}

namespace {

// The bytes that the values of a file take in the arrays.
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
  return HostWindows::kBytes / static_cast<std::int64_t>(growth);
}

// Values go where there is room in a window, then to the device, run by run. One that leaves early waits for what is
// under way: its windows do.
class Uploads {
 public:
  Uploads(device::Device& device, std::int64_t window_bytes) : windows_(device), bytes_(window_bytes) {
    windows_.lane().follow();
  }

  std::byte* place(std::int64_t bytes, std::byte* device_to) {
    if (filled_ == 0) memory_ = windows_.open(current_, bytes_);
    REDLINE_CHECK(filled_ + bytes <= std::ssize(memory_), "a window of {} bytes", memory_.size());
    if (runs_.empty() || runs_.back().to + runs_.back().bytes != device_to)
      runs_.push_back({device_to, bytes});
    else
      runs_.back().bytes += bytes;
    return memory_.data() + std::exchange(filled_, filled_ + bytes);
  }

  // All that was placed is there.
  void send() {
    if (runs_.empty()) return;
    const std::byte* from = memory_.data();
    for (const Run& run : runs_) {
      windows_.lane().copy(run.to, from, run.bytes);
      from += run.bytes;
    }
    windows_.lane().mark(static_cast<int>(current_));
    runs_.clear();
    filled_ = 0;
    current_ = 1 - current_;
  }

  void wait() {
    for (int window = 0; window < device::CopyLane::kMarks; ++window) windows_.lane().wait(window);
  }

 private:
  struct Run {
    std::byte* to;
    std::int64_t bytes;
  };

  HostWindows windows_;
  std::int64_t bytes_;
  std::size_t current_ = 0;
  std::span<std::byte> memory_;  // of the current window
  std::int64_t filled_ = 0;      // bytes of it
  std::vector<Run> runs_;        // its values, from front to back
};

// Whether values are converted on the way, number by number.
bool converts(DType from, DType to) {
  const auto real = [](DType t) { return t == DType::f32 || t == DType::f64 || t == DType::bf16 || t == DType::f16; };
  return from == to || (real(from) && (to == DType::f32 || to == DType::bf16));
}

// Where ranks share a row out, one of them has its first element; where they do not, every rank has all of it.
bool has_the_first(const optim::StateArray& a) { return a.range.elements() > 0 && a.range.begin == a.all().begin; }

}  // namespace

// Drawn where they lie: by the device, or by all threads in memory of the host.
void Engine::initialise(std::uint64_t seed) {
  finish_update();
  keep_snapshot();
  wait_for_snapshot();  // rows of the host are written below without the device
  const program::ValueId parameters = lowered_.at(optim::kParameters);
  const Range& here = lowered_.state[lowered_.row(optim::kParameters)].range;
  for (const program::ValueId value : lowered_.state_values)
    if (value != parameters) executor_->clear(value);
  device_.wait();  // copies of this memory may be under way
  const Tensor array = executor_->tensor(parameters);
  const auto element = static_cast<std::int64_t>(size_of(array.dtype));
  const bool by_threads = on_host(parameters);
  ThreadPool pool(by_threads ? 0 : 1);
  model::initialise(lowered_.table, lowered_.layout, seed, here, [&](const Range& part, const Normals& from) {
    const Tensor to{array.as<std::byte>() + (part.begin - here.begin) * element, array.dtype, {part.elements()}};
    by_threads ? draw(from, to, pool) : device_.draw(from, to);
  });
  forget_scales();
  refresh();
  start_average();
}

void Engine::load(std::span<const FileToLoad> files, const LoadProgress& progress) {
  keep_snapshot();
  wait_for_snapshot();  // rows of the host are written below without the device
  const std::vector<Tensor> arrays = state();
  device_.wait();  // copies of this memory may be under way
  const auto in_place = [&](const Target& t) { return on_host(lowered_.state_values[t.row]); };
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
  const auto has_parameters = [&](const FileToLoad& f) {
    return std::ranges::find(f.targets, lowered_.row(optim::kParameters), &Target::row) != f.targets.end();
  };
  const bool parameters = std::ranges::any_of(files, has_parameters);
  if (parameters) forget_scales();
  for (std::size_t row = 0; row < lowered_.state.size(); ++row)
    if (parameters && lowered_.state[row].may_be_absent) executor_->clear(lowered_.state_values[row]);
  Uploads uploads(device_, std::min(largest, HostWindows::kBytes));
  for (std::size_t i = 0; i < files.size(); ++i) {
    const FileToLoad& f = files[i];
    const bool straight = std::ranges::all_of(f.targets, in_place);
    const auto place = [&](const io::TensorPiece& piece) {
      const Target& target = f.targets[piece.index];
      const Tensor& array = arrays[target.row];
      const std::int64_t first = target.first + piece.first - target.begin,
                         element = static_cast<std::int64_t>(size_of(array.dtype));
      REDLINE_CHECK(first >= 0 && first + piece.count <= array.elements(), "values {} to {} of {}", first,
                    first + piece.count, array.elements());
      std::byte* const to = array.as<std::byte>() + first * element;
      return io::PiecePlace{in_place(target) ? to : uploads.place(piece.count * element, to), array.dtype};
    };
    const auto done = [&](std::span<const io::TensorPiece>) { uploads.send(); };
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
  const auto is_scales = [&](const Target& t) { return lowered_.state[t.row].kind == optim::StateKind::fp8_scales; };
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
