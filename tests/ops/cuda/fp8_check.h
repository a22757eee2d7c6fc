// Ops that write a result in eight bits by themselves: the bytes must be those that quantize makes of the bf16 result,
// and everything else must stay as it is without. Only for tests under a cuda/ folder.
#pragma once

#include <set>

#include "testing/card_check.h"

namespace redline::ops {

using namespace redline::testing;

// What is asked for.
struct Fp8Ask {
  bool rows, columns;
  DType dtype = DType::e4m3;
  float scale = 32;
  bool records = true;  // amax
  float amax = 0;       // recorded before
  bool blocks = false;  // the columns lie in them
};
inline constexpr Fp8Ask kRowsOrColumns[] = {
    {.rows = true, .columns = false}, {.rows = false, .columns = true}, {.rows = true, .columns = true}};
// Of what experts have.
inline constexpr Fp8Ask kRowsColumnsOrBlocks[] = {{.rows = true, .columns = false},
                                                  {.rows = false, .columns = true},
                                                  {.rows = true, .columns = true},
                                                  {.rows = false, .columns = true, .blocks = true},
                                                  {.rows = true, .columns = true, .blocks = true}};

inline std::string text_of(const Fp8Ask& ask) {
  return fmt::format("in {} by{}{}{}", name_of(ask.dtype), ask.rows ? " rows" : "", ask.columns ? " columns" : "",
                     ask.blocks ? " in blocks" : "");
}

inline Fp8Copies<Tensor> copies_of(Memory& memory, const Fp8Ask& ask, std::int64_t n, std::int64_t d) {
  Fp8Copies<Tensor> to;
  const auto nan = [&](const Shape& shape) {
    const Tensor t = memory.array(ask.dtype, shape);
    std::memset(t.data, 0xFF, static_cast<std::size_t>(t.bytes()));
    return t;
  };
  if (ask.rows) to.rows = nan({n, d});
  if (ask.columns) to.columns = nan(ask.blocks ? columns_in_blocks(n, d) : Shape{d, n});
  to.scale = memory.object(Fp8Scale{.inverse = 1 / ask.scale, .scale = ask.scale, .next = 0, .amax = 0, .history = {}});
  if (ask.records) {
    to.amax = memory.zeros({1});
    *to.amax.f32() = ask.amax;
  }
  return to;
}

// What an op left on the card, by the names of its operands.
template <class Op>
std::map<std::string, Bytes> run_in_bf16(device::CudaDevice& card, const Op& op) {
  std::map<std::string, Bytes> written;
  CardOp<Op> on_card(card, op, DType::bf16, 0);
  cuda::run(on_card.op(), card.launch());
  for (const NamedOperand& o : on_card.operands()) {
    const Bytes bytes = on_card.bytes(o);
    if (o.access == Access::read)
      EXPECT_TRUE(bytes == on_card.initial(o)) << Op::kName << " changed " << o.name;
    else if (!is_scratch(o.name))
      written[o.name] = bytes;
  }
  return written;
}

// `result` is the operand of Op that op.fp8 holds copies of; `keeps`: whether the op that casts writes it too, else it
// is absent there. `near`: sums that may be taken in another order, in fp32.
template <class Op>
void expect_bytes_of_quantize(device::CudaDevice& card, Memory& memory, Op op, Tensor Op::*result, bool keeps,
                              const Fp8Ask& ask, const std::set<std::string>& near = {}) {
  const Tensor whole = op.*result;
  const std::string how =
      fmt::format("{} {} {}{}", Op::kName, whole.shape.str(), text_of(ask), keeps ? " and bf16" : "");
  op.fp8 = {};
  for (const NamedOperand& o : operands_of(op))  // what is only written starts as NaN
    if (o.access == Access::write) std::memset(o.host.data, 0xFF, static_cast<std::size_t>(o.host.bytes()));
  const auto plain = run_in_bf16(card, op);

  const Bytes* made = nullptr;
  for (const NamedOperand& o : operands_of(op))
    if (o.host.data == whole.data && o.access != Access::read) made = &plain.at(o.name);
  ASSERT_TRUE(made) << how << ": no such result";
  const Tensor x = memory.array(DType::bf16, whole.shape);
  std::memcpy(x.data, made->data(), made->size());
  const Fp8Copies<Tensor> to = copies_of(memory, ask, whole.rows(), whole.columns());
  const auto quantized = run_in_bf16(card, Quantize<Tensor>{x, to});

  op.fp8 = copies_of(memory, ask, whole.rows(), whole.columns());
  if (!keeps) op.*result = {};
  const auto fused = run_in_bf16(card, op), again = run_in_bf16(card, op);
  for (const auto& [name, bytes] : fused) {
    EXPECT_TRUE(bytes == again.at(name)) << how << " gave " << name << " other bits when run again";
    const auto it = quantized.find(name);
    if (it != quantized.end()) {
      EXPECT_TRUE(bytes == it->second) << how << ": " << name << " is not what quantize makes";
    } else if (!near.contains(name)) {
      EXPECT_TRUE(bytes == plain.at(name)) << how << ": " << name << " is not what it is without casts";
    } else {
      const auto values = [](const Bytes& b) {
        Values v(b.size() / sizeof(float));
        for (std::size_t i = 0; i < v.size(); ++i) {
          float f;
          std::memcpy(&f, b.data() + i * sizeof f, sizeof f);
          v[i] = static_cast<double>(f);
        }
        return v;
      };
      expect_near_in_norm(name + " of " + how, values(bytes), values(plain.at(name)), 1e-5);
    }
  }
}

}  // namespace redline::ops
