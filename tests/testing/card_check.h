// What tests of CUDA kernels need: an op's operands on the card between guards, in fp32 or bf16, and the comparison
// with the CPU backend: agreement by norm, what is written written whole, what is read left alone, the same bits twice.
// Only for tests under a cuda/ folder.
#pragma once

#include <bit>
#include <map>
#include <memory>
#include <set>

#include "base/small_floats.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/kernels.h"
#include "optim/cuda/kernels.h"
#include "testing/on_card.h"
#include "testing/op_check.h"

namespace redline::testing {

using Bytes = std::vector<std::uint8_t>;

inline float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
inline std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return 0xFFFF;
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Operands that are fp32 whatever the activations are, and scratch that only its op reads.
inline bool always_float(const std::string& name) {
  static const std::set<std::string> kNames = {
      "rstd",       "table",   "losses",   "partial",   "dweight",        "dq_norm",   "dk_norm",  "pieces",
      "parameters", "moment1", "moment2",  "gradients", "loss_sum",       "fp8 scale", "fp8 amax", "a_scale",
      "b_scale",    "scales",  "amax",     "momentum",  "row_moments",    "dbias",     "probs",    "lse",
      "weights",    "balance", "dweights", "gradient",  "router dlogits", "b_scales",  "dy_scale", "x_scale"};
  return kNames.contains(name);
}
inline bool is_scratch(const std::string& name) {
  static const std::set<std::string> kNames = {"partial",   "logits", "dlogits", "pieces",        "temporary",
                                               "workspace", "gram",   "square",  "router dlogits"};
  return kNames.contains(name);
}

struct NamedOperand {
  std::string name;
  Tensor host;
  Access access;
};
template <class Op>
std::vector<NamedOperand> operands_of(const Op& op) {
  std::vector<NamedOperand> operands;
  op.map([&](std::string_view name, const Tensor& t, Access access) {
    if (t.present()) operands.push_back({std::string(name), t, access});
    return 0;
  });
  return operands;
}

// From 1 to `most`, small sizes as likely as large ones, and the same in every run for a key.
inline std::int64_t random_size(std::uint64_t key, std::int64_t most) {
  return static_cast<std::int64_t>(std::pow(static_cast<double>(most) + 1, Random(17, 3).uniform(key)));
}
// So many cases of a test, each made by f from numbers that no other case gets: draw(most) is one of random_size.
template <class Case, class F>
std::vector<Case> random_cases(std::uint64_t count, const F& f) {
  constexpr std::uint64_t kNumbers = 16;  // of a case
  std::vector<Case> cases;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t key = i * kNumbers;
    const auto draw = [&](std::int64_t most) { return random_size(key++, most); };
    cases.push_back(f(draw));
  }
  return cases;
}

// An op with its operands on the card. They hold what the host's held when this was made, and again after restore().
template <class Op>
class CardOp {
 public:
  // compute: what fp32 operands become. shift: by how many elements arrays miss their alignment.
  CardOp(device::CudaDevice& card, const Op& host, DType compute, std::int64_t shift)
      : card_(card), operands_(operands_of(host)), op_(host.map([&](auto name, const Tensor& t, Access) {
          return t.present() ? place(std::string(name), t, compute, shift) : Tensor{};
        })) {
    restore();
  }
  const Op& op() const { return op_; }
  const std::vector<NamedOperand>& operands() const { return operands_; }

  void restore() {
    for (auto& [host, array] : arrays_) {
      card_.fill(array.buffer->data(), kGuardByte, array.buffer->bytes());
      card_.copy_in(array.tensor.data, array.initial.data(), array.tensor.bytes());
    }
  }
  const Bytes& initial(const NamedOperand& o) const { return arrays_.at(o.host.data).initial; }
  Bytes bytes(const NamedOperand& o) const {
    const Array& array = arrays_.at(o.host.data);
    Bytes all(static_cast<std::size_t>(array.buffer->bytes()));
    card_.copy_out(all.data(), array.buffer->data(), array.buffer->bytes());
    const auto begin = all.begin() + (array.tensor.template as<std::byte>() - array.buffer->data());
    const auto end = begin + array.tensor.bytes();
    const auto whole = [](std::uint8_t byte) { return byte == kGuardByte; };
    EXPECT_TRUE(std::all_of(all.begin(), begin, whole) && std::all_of(end, all.end(), whole))
        << Op::kName << " wrote outside " << o.name << " " << o.host.shape.str();
    return {begin, end};
  }
  Values values(const NamedOperand& o) const {
    Tensor t = arrays_.at(o.host.data).tensor;
    Bytes raw = bytes(o);
    t.data = raw.data();
    if (t.dtype != DType::bf16) return values_of(t);
    Values v;
    for (std::int64_t i = 0; i < t.elements(); ++i)
      v.push_back(static_cast<double>(from_bf16(t.as<std::uint16_t>()[i])));
    return v;
  }

 private:
  static constexpr std::int64_t kGuard = 256;
  static constexpr std::uint8_t kGuardByte = 0xA5;
  struct Array {
    std::unique_ptr<device::Buffer> buffer;
    Tensor tensor;
    Bytes initial;
  };

  // Operands that are one array on the host are one on the card.
  Tensor place(const std::string& name, const Tensor& host, DType compute, std::int64_t shift) {
    if (const auto it = arrays_.find(host.data); it != arrays_.end()) return it->second.tensor;
    Array& array = arrays_[host.data];
    const bool converted = host.dtype == DType::f32 && compute == DType::bf16 && !always_float(name);
    array.tensor = {nullptr, converted ? DType::bf16 : host.dtype, host.shape};
    array.buffer = card_.allocate(array.tensor.bytes() + 2 * kGuard);
    // Structs and integers stay aligned: the program never places them otherwise.
    const bool shifted = array.tensor.dtype == DType::f32 || array.tensor.dtype == DType::bf16;
    array.tensor.data =
        array.buffer->data() + kGuard + (shifted ? shift * static_cast<std::int64_t>(size_of(array.tensor.dtype)) : 0);
    array.initial.resize(static_cast<std::size_t>(array.tensor.bytes()));
    if (!converted) {
      std::memcpy(array.initial.data(), host.data, array.initial.size());
    } else {
      for (std::int64_t i = 0; i < host.elements(); ++i) {
        const std::uint16_t bits = to_bf16(host.f32()[i]);
        std::memcpy(array.initial.data() + 2 * i, &bits, 2);
      }
    }
    return array.tensor;
  }

  device::CudaDevice& card_;
  std::vector<NamedOperand> operands_;
  std::map<const void*, Array> arrays_;
  Op op_;  // after the arrays, which it makes
};

template <class Op>
void run_on_card(const Op& op, device::CudaDevice& card) {
  using ops::cuda::run;
  using optim::cuda::run;
  run(op, card.launch());
}

// Bit for bit, but for which NaN a NaN is.
inline void expect_same_numbers(const std::string& what, const Bytes& got, const Tensor& want) {
  const auto same = [&](std::int64_t i) {
    if (is_fp8(want.dtype)) {
      const std::uint8_t bytes[] = {got[static_cast<std::size_t>(i)], want.as<std::uint8_t>()[i]};
      return bytes[0] == bytes[1] || (std::isnan(f32_from_fp8(bytes[0], fp8_format(want.dtype))) &&
                                      std::isnan(f32_from_fp8(bytes[1], fp8_format(want.dtype))));
    }
    float number;
    std::memcpy(&number, got.data() + 4 * i, 4);
    return std::memcmp(&number, want.f32() + i, 4) == 0 || (std::isnan(number) && std::isnan(want.f32()[i]));
  };
  for (std::int64_t i = 0; i < want.elements(); ++i) ASSERT_TRUE(same(i)) << what << "[" << i << "]";
}

struct Agreement {
  double f32 = 1e-5, bf16 = 1e-2;  // the norm of the difference over the norm of what the CPU has
  std::vector<DType> types = {DType::f32, DType::bf16};
  std::vector<std::int64_t> shifts = {0, 1};  // 1: nothing is aligned, so kernels take elements one by one
  bool exact = false;                         // to the bit, of what is in fp32 or in eight bits on either side
};

inline void expect_near_in_norm(const std::string& what, const Values& got, const Values& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm) + 1e-12) << what << ", norm " << std::sqrt(norm);
}

// Runs the op on the CPU in fp32 and on the card in each type, from the same inputs, which are rounded to bf16 first;
// what is only written starts as NaN. Returns what the card had written, one map a run: of each type, each shift.
template <class Op>
std::vector<std::map<std::string, Values>> expect_agreement(device::CudaDevice& card, const Op& op,
                                                            const Agreement& within = {}) {
  const std::vector<NamedOperand> operands = operands_of(op);
  std::set<const void*> read, written;
  for (const NamedOperand& o : operands) {
    if (o.access != Access::write) read.insert(o.host.data);
    if (o.access != Access::read) written.insert(o.host.data);
  }
  for (const NamedOperand& o : operands) {
    if (!read.contains(o.host.data)) {
      std::memset(o.host.data, 0xFF, static_cast<std::size_t>(o.host.bytes()));
    } else if (o.host.dtype == DType::f32 && !always_float(o.name)) {
      for (std::int64_t i = 0; i < o.host.elements(); ++i) o.host.f32()[i] = from_bf16(to_bf16(o.host.f32()[i]));
    }
  }
  struct Run {
    DType dtype;
    std::int64_t shift;
    std::unique_ptr<CardOp<Op>> on_card;
  };
  std::vector<Run> runs;
  for (DType dtype : within.types) {
    for (std::int64_t shift : within.shifts)
      runs.push_back({dtype, shift, std::make_unique<CardOp<Op>>(card, op, dtype, shift)});
  }
  run_on_cpu(op, *all_pools().back());

  std::vector<std::map<std::string, Values>> results;
  for (const Run& run : runs) {
    const std::string how = fmt::format("{} in {} shifted by {}", Op::kName, name_of(run.dtype), run.shift);
    std::map<std::string, Bytes> first;
    for (const bool again : {false, true}) {
      run.on_card->restore();
      run_on_card(run.on_card->op(), card);
      for (const NamedOperand& o : operands) {
        const Bytes bytes = run.on_card->bytes(o);
        if (is_scratch(o.name)) continue;
        if (!written.contains(o.host.data)) {
          EXPECT_TRUE(bytes == run.on_card->initial(o)) << how << " changed " << o.name;
        } else if (!again) {
          first[o.name] = bytes;
        } else {
          EXPECT_TRUE(bytes == first[o.name]) << how << " gave " << o.name << " other bits when run again";
        }
      }
    }
    auto& values = results.emplace_back();
    for (const NamedOperand& o : operands) {
      if (o.access == Access::read || is_scratch(o.name) || o.host.dtype == DType::u8) continue;
      if (within.exact && (is_fp8(o.host.dtype) || always_float(o.name))) {
        expect_same_numbers(fmt::format("{} of {} {}", o.name, how, o.host.shape.str()), run.on_card->bytes(o), o.host);
        continue;
      }
      values[o.name] = run.on_card->values(o);
      if (o.host.dtype == DType::bf16) continue;  // the CPU has none of it
      expect_near_in_norm(fmt::format("{} of {} {}", o.name, how, o.host.shape.str()), values[o.name],
                          values_of(o.host), run.dtype == DType::bf16 ? within.bf16 : within.f32);
    }
  }
  return results;
}

}  // namespace redline::testing
