// Windows of the flat layout, whole blocks each: parameter by parameter from the file to floats, then to what the row
// keeps.
#include "model/convert_moments.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/small_floats.h"
#include "model/optimizer.h"
#include "optim/adamw.h"
#include "optim/cpu/kernels.h"

namespace redline::model {
namespace {

using optim::kFirstMoments;
using optim::kSecondMoments;

constexpr std::int64_t kWindow = kCutBlock << 12;  // elements

bool is_moments(const optim::StateArray& row) { return row.name == kFirstMoments || row.name == kSecondMoments; }
bool is_scales(const optim::StateArray& row) {
  return row.name == optim::kFirstScales || row.name == optim::kSecondScales;
}

// The name in a file of the scales of a row's codes.
std::string scales_of(const optim::StateArray& moments) {
  return optim::adamw_state({}, {}, DType::u8)[moments.name == kFirstMoments ? 2 : 3].stored_as;
}

[[noreturn]] void refuse(const io::SafetensorsReader& file, const std::string& tensor) {
  fail_user("{}: {} has another shape or type than the run's; resume with the model that the run began with",
            file.path().string(), tensor);
}

// The moments of one kind in a file, as floats, by their places in the flat layout.
class MomentsOfFile {
 public:
  MomentsOfFile(const io::SafetensorsReader& file, const Engine& engine, const optim::StateArray& row)
      : file_(file), layout_(engine.layout()), prefix_(row.stored_as), first_(row.name == kFirstMoments) {
    const std::vector<Range> small = ranges_where(engine.table(), layout_, is_layer_matrix);
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
    const bool first = row_.name == kFirstMoments;
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
    put(scales_, scales.data(), scales_row_.first_of(part, row_.range), std::ssize(scales));
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
  if (is_scales(row)) return !t;  // whether its codes are there is for them to say
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

}  // namespace redline::model
