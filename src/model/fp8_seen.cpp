// Runs a micro-step node by node, with counts behind whoever casts. The scales are read before an update can move them.
#include "model/fp8_seen.h"

#include <map>

#include "base/small_floats.h"
#include "model/engine.h"
#include "program/passes.h"

namespace redline::model {
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
  std::vector<std::pair<ValueId, ValueId>> looked_at;  // copy and scale
  const auto look = [&](ValueId copy, ValueId scale) {
    executor_->count(copy);
    looked_at.emplace_back(copy, scale);
  };
  for (const Fp8Tensor& t : lowered_.fp8)
    if (t.copy.present()) look(t.copy, t.scale);
  micro_step(first, last, nullptr, [&](const program::Node& node) {
    program::each_fp8_copy(node, [&](const program::Fp8Written& w) { look(w.any(), w.scale); });
  });

  std::map<ValueId, Counted> by_scale;
  const std::vector<ops::Fp8Count> counts = executor_->counted();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto [copy, scale] = looked_at[i];
    Counted& of = by_scale[scale];
    of.count.add(counts[i]);
    of.format = lowered_.set.at(copy).dtype;
    of.elements += lowered_.set.at(copy).shape.elements();
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
