// The list of products, the values that they need from step to step, the nodes of the update, and a look at the values
// while a micro-step runs.
#include "model/fp8_linears.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/small_floats.h"
#include "model/engine.h"
#include "model/family.h"
#include "program/builder.h"
#include "program/passes.h"

namespace redline::model {
namespace {

using program::Role;
using program::ValueId;

constexpr std::int64_t kMultiple = ops::kFp8Multiple;

// Values may grow by these factors from one step to the next. Room costs nothing: there are 2^15 between the largest
// and the smallest normal number of e4m3, 2^30 of e5m2, and gradients differ more from step to step than activations
// do.
constexpr float kInputHeadroom = 4, kGradientHeadroom = 64;

// The row whose weight the head multiplies by: its own, or the embedding's.
std::size_t head_row(const ParameterTable& table) {
  const auto of_kind = [&](ParameterKind kind) { return std::ranges::find(table, kind, &ParameterSpec::kind); };
  const auto head =
      of_kind(ParameterKind::head) != table.end() ? of_kind(ParameterKind::head) : of_kind(ParameterKind::embedding);
  REDLINE_CHECK(head != table.end(), "a table without an embedding");
  return static_cast<std::size_t>(head - table.begin());
}

Range range_of(const LoweredModel& m, std::size_t row) {
  const std::int64_t offset = m.layout.offsets[row];
  return {offset, offset + m.table[row].shape.elements()};
}

// A part of a parameter as a matrix: kernels that cast have tiles of rows and columns. Parts end where parameters,
// matrices or blocks of the flat layout do, at multiples of 16 elements.
Shape as_matrix(const Range& part) {
  constexpr std::int64_t kWidest = 1024;
  std::int64_t width = kMultiple;
  REDLINE_CHECK(part.elements() % width == 0, "{} elements of a weight", part.elements());
  while (width < kWidest && part.elements() % (2 * width) == 0) width *= 2;
  return {part.elements() / width, width};
}

// The matrices of a weight: experts', or one.
std::int64_t matrices_of(const ParameterSpec& p) { return p.shape.rank() == 3 ? p.shape[0] : 1; }
Shape turned_over(const Shape& s) { return s.rank() == 3 ? Shape{s[0], s[2], s[1]} : Shape{s[1], s[0]}; }

// Calls visit(index, this rank's part) for each matrix of a weight of which it has some.
template <class Visit>
void each_own_matrix(const LoweredModel& m, ValueId weight, const Visit& visit) {
  const auto row = static_cast<std::size_t>(m.set.at(weight).parameter);
  const std::int64_t matrices = matrices_of(m.table[row]);
  const Range all = range_of(m, row);
  const std::int64_t size = all.elements() / matrices;
  for (std::int64_t i = 0; i < matrices; ++i) {
    const Range own = intersection({all.begin + i * size, all.begin + (i + 1) * size}, m.updated);
    if (!own.empty()) visit(i, own);
  }
}

template <class Op, class... Of>
constexpr bool kAmong = (std::is_same_v<Op, Of> || ...);

bool contains(const std::vector<std::string>& products, std::string_view linear, std::string_view product) {
  return std::ranges::find(products, fmt::format("{}/{}", linear, product)) != products.end();
}

}  // namespace

Fp8Candidates fp8_candidates(const ParameterTable& table, std::int64_t tokens, bool head) {
  Fp8Candidates found;
  std::vector<std::string_view> seen;
  for (const ParameterSpec& p : table) {
    const std::string_view linear = p.fp8;
    if (linear.empty() || std::ranges::find(seen, linear) != seen.end()) continue;
    seen.push_back(linear);
    const bool experts = p.shape.rank() == 3;
    found.linears.emplace_back(linear);
    const std::int64_t rows = p.shape[experts ? 1 : 0], columns = p.shape[experts ? 2 : 1];
    if (rows % kMultiple || columns % kMultiple) {
      found.refused.push_back(fmt::format("{} is {} x {}: not multiples of {}", linear, rows, columns, kMultiple));
      continue;
    }
    for (const std::string_view product : {kFp8Forward, kFp8Input})
      found.products.push_back(fmt::format("{}/{}", linear, product));
    if (tokens % kMultiple == 0) found.products.push_back(fmt::format("{}/{}", linear, kFp8Weight));
  }
  if (head) {
    const Shape& s = table[head_row(table)].shape;
    found.head = s[0] % kMultiple == 0 && s[1] % kMultiple == 0 && tokens % kMultiple == 0;
    if (!found.head)
      found.refused.push_back(
          fmt::format("gradients of the head: {} x {} by {} tokens of a micro-batch: not multiples of {}", s[0], s[1],
                      tokens, kMultiple));
  }
  if (tokens % kMultiple)
    found.refused.push_back(
        fmt::format("gradients of weights: a micro-batch has {} tokens, not a multiple of {}", tokens, kMultiple));
  return found;
}

Fp8Products fp8_products(const config::Config& c) {
  Fp8Products result;
  if (c.precision.matmul != "fp8") return result;
  Fp8Candidates candidates = fp8_candidates(family_of(c.model).table(c.model), c.train.batch_size * c.train.seq_len,
                                            c.precision.head == "fp8");
  std::vector<std::string> every;
  for (const std::string& linear : candidates.linears)
    for (const std::string_view product : {kFp8Forward, kFp8Input, kFp8Weight})
      every.push_back(fmt::format("{}/{}", linear, product));
  const std::vector<std::string>& named = c.precision.fp8_products;
  const bool none = named.size() == 1 && named[0] == kNoFp8Products;
  for (const std::string& name : named)
    if (!none && std::ranges::find(every, name) == every.end())
      fail_user(
          "{}precision.fp8_products: {} is no product of this model; there are LINEAR/{}, LINEAR/{} and LINEAR/{} of "
          "{}",
          c.origins.prefix({"precision.fp8_products"}), name, kFp8Forward, kFp8Input, kFp8Weight,
          fmt::join(candidates.linears, ", "));
  for (std::string& product : every) {
    const bool wanted = named.empty() || std::ranges::find(named, product) != named.end();
    const bool can = std::ranges::find(candidates.products, product) != candidates.products.end();
    (wanted && can ? result.taken : result.left).push_back(std::move(product));
  }
  result.refused = std::move(candidates.refused);
  result.head = candidates.head;
  return result;
}

std::string in_words(const Fp8Products& p, const Fp8Reasons& reasons) {
  const std::size_t all = p.taken.size() + p.left.size();
  std::string text = fmt::format("{} of {} products", p.taken.empty() ? "none" : std::to_string(p.taken.size()), all);
  if (p.head) text += " and the head's gradients";
  if (!reasons.sum.empty()) text += fmt::format(", {}", reasons.sum);
  if (!p.left.empty() && (!p.taken.empty() || !reasons.why.empty())) text += "; bf16: ";
  const auto why = [&](std::size_t i) {
    const auto it = i < p.left.size() ? reasons.why.find(p.left[i]) : reasons.why.end();
    return it == reasons.why.end() ? std::string() : it->second;
  };
  for (std::size_t i = 0; i < p.left.size() && (!p.taken.empty() || !reasons.why.empty()); ++i) {
    const std::string reason = why(i), last = i + 1 < p.left.size() ? ", " : "";
    const bool said_once = i + 1 < p.left.size() && why(i + 1) == reason;  // after the last that it is true of
    text += p.left[i] + (reason.empty() || said_once ? last : fmt::format(" ({}){}", reason, last));
  }
  if (!p.refused.empty()) text += fmt::format("; {}", fmt::join(p.refused, "; "));
  return text;
}

std::string fp8_product_of(const ParameterTable& table, const program::ProgramSet& set, const program::Node& node) {
  ValueId matrix;  // the weight, a copy of it, or its gradient
  std::string_view product;
  const std::string_view of_rows = node.phase == program::Phase::backward ? kFp8Input : kFp8Forward;
  std::visit(
      [&]<class Op>(const Op& op) {
        if constexpr (kAmong<Op, ops::Linear<ValueId>, ops::GroupedLinear<ValueId>>) {
          matrix = op.weight, product = kFp8Forward;
        } else if constexpr (kAmong<Op, ops::LinearInputGrad<ValueId>, ops::GroupedLinearInputGrad<ValueId>>) {
          matrix = op.weight, product = kFp8Input;
        } else if constexpr (kAmong<Op, ops::LinearWeightGrad<ValueId>, ops::GroupedLinearWeightGrad<ValueId>,
                                    ops::GroupedFp8WeightGrad<ValueId>>) {
          matrix = op.dweight, product = kFp8Weight;
        } else if constexpr (kAmong<Op, ops::GroupedFp8Product<ValueId>>) {
          matrix = op.b, product = of_rows;
        } else if constexpr (kAmong<Op, ops::Fp8Product<ValueId>>) {
          const bool gradient = set.at(op.c).parameter != program::kNoParameter;
          matrix = gradient ? op.c : op.b, product = gradient ? kFp8Weight : of_rows;
        }
      },
      node.op);
  if (!matrix.present()) return {};
  const std::int32_t row = set.at(matrix).parameter;
  if (row == program::kNoParameter) return {};
  const std::string& linear = table[static_cast<std::size_t>(row)].fp8;
  return linear.empty() ? "" : fmt::format("{}/{}", linear, product);
}

void Fp8Values::declare_head(program::Builder& b, const LoweredModel& m, const std::vector<ValueId>& weights) {
  const std::size_t row = head_row(m.table);
  const Shape& shape = m.table[row].shape;
  const ValueId scales = b.declare("fp8 head scales", {2 * ops::kScaleFloats}, DType::f32, Role::scale);
  const auto of_dlogits = [] {  // as Fp8Scale has them
    std::vector<float> scale(ops::kScaleFloats);
    scale[0] = 1 / ops::kDlogitsScale, scale[1] = ops::kDlogitsScale;
    return scale;
  };
  linears_.head_weight = weights[row];
  linears_.head = {
      .x_scale = b.view(scales, "head input scale", {ops::kScaleFloats}, 0),
      .weight = by_parts_ ? program::kAbsent
                          : b.declare("head in fp8 by columns", {shape[1], shape[0]}, DType::e4m3, Role::working),
      .weight_scale = b.view(scales, "head weight scale", {ops::kScaleFloats}, ops::kScaleFloats * 4),
      .dlogits_scale = b.constant("dlogits scale", {ops::kScaleFloats}, of_dlogits)};
}

// One array from the first linear's weights to the last one's: in the flat layout they stand together.
void Fp8Values::declare_shared(program::Builder& b, const LoweredModel& m, const std::vector<std::size_t>& rows,
                               dist::Mode mode) {
  Range& all = shared_.range = range_of(m, rows.front());
  for (const std::size_t row : rows) {
    const Range range = range_of(m, row);
    all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
  }
  const bool shards = mode == dist::Mode::fsdp;
  const Range own = intersection(all, m.updated);
  if (shards && !own.empty()) shared_.shard = b.declare("weights in fp8", {own.elements()}, DType::e4m3, Role::working);
  shared_.all =
      b.declare("all weights in fp8", {all.elements()}, DType::e4m3, shards ? Role::activation : Role::working);
}

void Fp8Values::declare(program::Builder& b, LoweredModel& m, const LoweringOptions& options,
                        const std::vector<ValueId>& weights) {
  const std::vector<std::string>& products = options.fp8;
  linears_.fast_sums = options.fp8_fast_sums;
  by_parts_ = m.updated != m.layout.whole();
  if (options.fp8_head) declare_head(b, m, weights);
  std::vector<std::size_t> rows, copied;  // of the table: linears with a product in eight bits, or a copy of weights
  for (std::size_t i = 0; i < m.table.size(); ++i) {
    const std::string_view linear = m.table[i].fp8;
    for (const std::string_view product : {kFp8Forward, kFp8Input, kFp8Weight})
      if (!linear.empty() && contains(products, linear, product) && (rows.empty() || rows.back() != i))
        rows.push_back(i);
    if (contains(products, linear, kFp8Forward) || contains(products, linear, kFp8Input)) copied.push_back(i);
  }
  const auto count = static_cast<std::int64_t>(rows.size());
  for (const std::size_t row : rows) {
    first_scale_[weights[row]] = weight_entries_;
    weight_entries_ += matrices_of(m.table[row]);
  }
  // Of inputs, gradients, weights, and of the head's weight and norm.
  const std::int64_t heads = options.fp8_head ? 2 : 0;
  const std::int64_t records = 2 * count + (by_parts_ ? weight_entries_ + heads : 0);
  if (records > 0)
    records_ =
        m.declare(b, {.name = std::string(kFp8Records), .independent = records, .kind = optim::StateKind::fp8_records},
                  Role::record);
  const auto record = [&](std::string name, std::int64_t i) { return b.view(records_, std::move(name), {1}, i * 4); };
  if (by_parts_ && options.fp8_head) {
    record_of_[linears_.head.weight_scale] = record("head weight amax", 2 * count + weight_entries_);
    record_of_[linears_.head.x_scale] = record("head norm amax", 2 * count + weight_entries_ + 1);
  }
  if (rows.empty()) return;
  if (by_parts_ && !copied.empty()) declare_shared(b, m, copied, options.sharing.mode);
  // Scales are saved, so that a run goes on with the bits it would have had; what was recorded is 0 between steps.
  const auto scales = [&](std::string_view name, const char* stored_as) {
    return m.declare(b,
                     {.name = std::string(name),
                      .independent = count * ops::kScaleFloats,
                      .file = optim::kFp8File,
                      .stored_as = stored_as,
                      .kind = optim::StateKind::fp8_scales},
                     Role::scale);
  };
  const ValueId inputs = scales(kFp8InputScales, "inputs"), gradients = scales(kFp8GradientScales, "gradients");
  weight_scales_ = b.declare("fp8 weight scales", {weight_entries_ * ops::kScaleFloats}, DType::f32, Role::scale);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t row = rows[static_cast<std::size_t>(i)];
    const ParameterSpec& p = m.table[row];
    const std::string_view linear = p.fp8;
    const auto scale = [&](ValueId of, std::string_view what) {
      return b.view(of, fmt::format("{} {} scale", p.name, what), {ops::kScaleFloats}, i * ops::kScaleFloats * 4);
    };
    const auto amax = [&](std::string_view what, std::int64_t first) {
      return record(fmt::format("{} {} amax", p.name, what), first + i);
    };
    const auto copy = [&](bool wanted, std::string_view what, Shape shape) {
      if (!wanted) return program::kAbsent;
      const std::string name = fmt::format("{} {}", p.name, what);
      const ValueId id = by_parts_ ? b.view(shared_.all, name, shape, m.layout.offsets[row] - shared_.range.begin)
                                   : b.declare(name, shape, DType::e4m3, Role::working);
      b.set_parameter(id, row);
      return id;
    };
    program::Fp8Linear l;
    l.output = contains(products, linear, kFp8Forward);
    l.input_grad = contains(products, linear, kFp8Input);
    l.weight_grad = contains(products, linear, kFp8Weight);
    l.weight_rows = copy(l.output || (by_parts_ && l.input_grad), "in fp8", p.shape);
    l.weight_columns = copy(l.input_grad && !by_parts_, "in fp8 by columns", turned_over(p.shape));
    const std::int64_t matrices = matrices_of(p), first_scale = first_scale_.at(weights[row]);
    l.weight_scale = b.view(weight_scales_, p.name + (matrices > 1 ? " weight scales" : " weight scale"),
                            {matrices * ops::kScaleFloats}, first_scale * ops::kScaleFloats * 4);
    l.x = {scale(inputs, "input"), amax("input", 0)};
    l.dy = {scale(gradients, "gradient"), amax("gradient", count)};
    if (by_parts_) record_of_[l.x.scale] = l.x.amax;  // a norm's output records nothing itself
    const ValueId copied_to = l.weight_rows.present() ? l.weight_rows : l.weight_columns;
    m.fp8.push_back({p.name + " input", l.x.scale, l.x.amax, {}});
    m.fp8.push_back({p.name + " gradient", l.dy.scale, l.dy.amax, {}});
    if (matrices == 1)
      m.fp8.push_back({p.name + " weight", l.weight_scale, {}, by_parts_ ? program::kAbsent : copied_to});
    for (std::int64_t e = 0; matrices > 1 && e < matrices; ++e) {
      const std::string name = fmt::format("{} weight of expert {}", p.name, e);
      const Shape shape = m.set.at(copied_to.present() ? copied_to : weights[row]).shape;
      const bool own_copy = copied_to.present() && !by_parts_;
      m.fp8.push_back(
          {name,
           b.view(l.weight_scale, name + " scale", {ops::kScaleFloats}, e * ops::kScaleFloats * 4),
           {},
           own_copy ? b.view(copied_to, name, {shape[1], shape[2]}, e * shape[1] * shape[2]) : program::kAbsent});
    }
    linears_.by_weight.emplace(weights[row], l);
  }
}

// The largest of this rank's part of weights and norms; and, once the records are those of all ranks, the scales of
// norms. Where a norm is, nothing else is recorded, so that its record is 0 again when scales of inputs move.
void Fp8Values::append_largest(program::Builder& b, const LoweredModel& m) const {
  const auto largest = [&](ValueId weight, ValueId scale, bool one_plus = false) {
    each_own_matrix(m, weight, [&](std::int64_t, const Range& own) {
      const ValueId part = b.view(m.view(b, optim::kWorking, own), "own part", as_matrix(own), 0);
      b.largest({part, record_of_.at(scale), one_plus});
    });
  };
  for (const auto& [weight, l] : linears_.by_weight) {
    if (!l.weight_rows.present()) continue;
    each_own_matrix(m, weight, [&](std::int64_t i, const Range& own) {
      const ValueId part = b.view(m.view(b, optim::kWorking, own), "own part", as_matrix(own), 0);
      b.largest({part, weight_record(b, first_scale_.at(weight) + i, 1)});
    });
  }
  if (linears_.head_weight.present()) largest(linears_.head_weight, linears_.head.weight_scale);
  for (const auto& [scale, norm] : linears_.bounds) largest(norm.weight, scale, norm.one_plus);
  for (const auto& [scale, norm] : linears_.bounds)
    b.set_scales({scale, record_of_.at(scale), kE4m3.largest,
                  std::sqrt(static_cast<float>(m.set.at(norm.weight).shape.elements()))},
                 "scale of a norm");
}

ValueId Fp8Values::weight_record(program::Builder& b, std::int64_t first, std::int64_t entries) const {
  const auto before = 2 * std::ssize(linears_.by_weight);  // those of inputs and gradients
  return b.view(records_, "weight records", {entries}, (before + first) * 4);
}

// Scales of weights, and this rank's part of the copies.
void Fp8Values::append_casts(program::Builder& b, const LoweredModel& m) const {
  const program::Fp8Linears& l = linears_;
  if (!l.by_weight.empty())
    b.set_scales({weight_scales_, weight_record(b, 0, weight_entries_), kE4m3.largest}, "scales of weights");
  if (l.head_weight.present())
    b.set_scales({l.head.weight_scale, record_of_.at(l.head.weight_scale), kE4m3.largest}, "scale of the head");
  const ValueId to = shared_.shard.present() ? shared_.shard : shared_.all;
  const Range kept = shared_.shard.present() ? intersection(shared_.range, m.updated) : shared_.range;
  for (const auto& [weight, linear] : l.by_weight) {
    if (!linear.weight_rows.present()) continue;
    each_own_matrix(m, weight, [&](std::int64_t i, const Range& own) {
      const Shape shape = as_matrix(own);
      const ValueId scale = b.view(linear.weight_scale, "own scale", {ops::kScaleFloats}, i * ops::kScaleFloats * 4);
      b.quantize({b.view(m.view(b, optim::kWorking, own), "own part", shape, 0),
                  {b.view(to, "own part in fp8", shape, own.begin - kept.begin), {}, scale, {}}},
                 "weight to fp8");
    });
  }
}

void Fp8Values::append_update(program::Builder& b, const LoweredModel& m, ValueId result) const {
  if (by_parts_ && linears_.bounds.size() + linears_.by_weight.size() > 0) append_largest(b, m);
  if (const auto count = std::ssize(linears_.by_weight); count > 0) {
    b.move_scales(
        {m.at(kFp8InputScales), b.view(records_, "input records", {count}, 0), result, kE4m3.largest / kInputHeadroom},
        "scales of inputs");
    b.move_scales({m.at(kFp8GradientScales), b.view(records_, "gradient records", {count}, count * 4), result,
                   kE5m2.largest / kGradientHeadroom},
                  "scales of gradients");
  }
  if (by_parts_) return append_casts(b, m);
  for (const auto& [scale, norm] : linears_.bounds) b.bound_scale({norm.weight, scale, norm.one_plus});
  for (const auto& [weight, l] : linears_.by_weight)
    if (l.weight_rows.present() || l.weight_columns.present())
      b.quantize_weight({weight, l.weight_rows, l.weight_columns, l.weight_scale});
  if (linears_.head_weight.present())
    b.quantize_weight({linears_.head_weight, program::kAbsent, linears_.head.weight, linears_.head.weight_scale});
}

// A micro-step runs node by node, and what a node casts is counted right after it. The scales are read before an update
// can move them.

namespace {

using program::ValueId;

// Copies of one tensor: two where something is computed again.
struct Counted {
  ops::Fp8Count count;
  DType format = DType::e4m3;
  std::int64_t elements = 0;
};

}  // namespace

std::vector<Fp8Seen> Engine::watched_micro_step(bool first, bool last) {
  struct Looked {
    ValueId copy, scale;
    std::int64_t padding;  // zeros behind the last row of columns in blocks
  };
  std::vector<Looked> looked_at;
  const auto look = [&](ValueId copy, ValueId scale, std::int64_t padding = 0) {
    executor_->count(copy, lowered_.fp8_counts, std::ssize(looked_at));
    looked_at.push_back({copy, scale, padding});
  };
  const std::int64_t of_experts = options_.batch.tokens() * model_.experts_per_token;  // rows
  finish_update();                                                                     // whose casts are looked at
  if (lowered_.fp8_counts.present()) executor_->clear(lowered_.fp8_counts);
  for (const Fp8Tensor& t : lowered_.fp8)
    if (t.copy.present()) look(t.copy, t.scale);
  micro_step(first, last, nullptr, [&](const program::Node& node) {
    program::each_fp8_copy(node, [&](const program::Fp8Written& w) {
      const Shape& shape = lowered_.set.at(w.any()).shape;
      look(w.any(), w.scale, shape.rank() == 3 ? shape.elements() - of_experts * shape[1] : 0);
    });
  });

  std::map<ValueId, Counted> by_scale;
  std::vector<ops::Fp8Count> counts;
  if (lowered_.fp8_counts.present()) {
    counts.resize(static_cast<std::size_t>(lowered_.set.at(lowered_.fp8_counts).bytes()) / sizeof(ops::Fp8Count));
    executor_->read(lowered_.fp8_counts, counts);
  }
  for (std::size_t i = 0; i < looked_at.size(); ++i) {
    const auto [copy, scale, padding] = looked_at[i];
    Counted& of = by_scale[scale];
    counts[i].zeros -= static_cast<std::uint64_t>(padding);
    of.count.add(counts[i]);
    of.format = lowered_.set.at(copy).dtype;
    of.elements += lowered_.set.at(copy).shape.elements() - padding;
  }
  std::vector<Fp8Seen> all;
  for (const Fp8Tensor& t : lowered_.fp8) {
    const auto it = by_scale.find(t.scale);
    if (it == by_scale.end()) continue;
    const Counted& of = it->second;
    ops::Fp8Scale entry;
    executor_->read(t.scale, &entry, sizeof entry);
    float amax = entry.amax;
    if (t.amax.present()) executor_->read(t.amax, &amax, sizeof amax);
    const Fp8Format& format = fp8_format(of.format);
    const bool known = !t.amax.present() || amax != 0;  // else a norm's: nothing is recorded
    if (!known) amax = f32_from_fp8(static_cast<std::uint8_t>(of.count.largest), format) * entry.inverse;
    const bool fits = known && amax * entry.scale <= format.largest;  // what is the largest number then is so by right
    const auto share = [&](std::uint64_t n) { return static_cast<double>(n) / static_cast<double>(of.elements); };
    all.push_back({t.name, of.format, static_cast<double>(entry.scale), static_cast<double>(amax),
                   fits ? 0 : share(of.count.saturated), share(of.count.zeros)});
  }
  return all;
}

}  // namespace redline::model
