// AdamW over all parameters, or over those that another optimizer leaves to it: a node for each range that has weight
// decay, and one for each that has none, apart where moments are kept another way.
#include "optim/adamw.h"

#include <algorithm>

#include "base/error.h"
#include "base/shards.h"
#include "model/lowering.h"
#include "program/builder.h"

namespace redline::model {
namespace {

// The ranges that AdamW has, by how it keeps their moments.
struct Part {
  Range range;
  DType moments;
};
std::vector<Part> parts_of(const ParameterTable& table, const FlatLayout& layout, const config::Optim& o,
                           const Holds& holds) {
  const auto ranges = [&](const Holds& also) {
    return ranges_where(table, layout, [&](const ParameterSpec& p) { return holds(p) && also(p); });
  };
  std::vector<Part> parts;
  const auto add = [&](DType moments, const Holds& also) {
    for (const Range& range : ranges(also)) parts.push_back({range, moments});
  };
  if (o.moments == "8bit") {
    add(DType::f32, [](const ParameterSpec& p) { return !p.by_matrix; });
    add(DType::u8, [](const ParameterSpec& p) { return p.by_matrix; });
    REDLINE_CHECK(std::ranges::count(parts, DType::u8, &Part::moments) <= 1,
                  "matrices of layers are in several ranges");
  } else {
    add(o.moments == "bf16" ? DType::bf16 : DType::f32, [](const ParameterSpec&) { return true; });
  }
  return parts;
}

bool any(const ParameterSpec&) { return true; }

}  // namespace

optim::StateTable adamw_state_where(const ParameterTable& table, const FlatLayout& layout, const Range& updated,
                                    const config::Optim& settings, const Holds& holds) {
  optim::StateTable all;
  for (const auto& [range, moments] : parts_of(table, layout, settings, holds)) {
    const Range shared = updated == layout.whole() ? Range{} : range;
    for (optim::StateArray& row : optim::adamw_state(intersection(range, updated), shared, moments))
      all.push_back(std::move(row));
  }
  return all;
}

void adamw_where(program::Builder& b, const LoweredModel& m, const config::Optim& o, const Holds& holds) {
  const auto f = [](double x) { return static_cast<float>(x); };
  for (const bool decayed : {true, false})
    for (const auto& [kept, moments] : parts_of(m.table, m.layout, o, holds))
      for (const Range& all :
           ranges_where(m.table, m.layout, [&](const ParameterSpec& p) { return holds(p) && p.decayed == decayed; })) {
        const Range here = intersection(intersection(all, kept), m.updated);
        if (here.elements() <= 0) continue;
        for (const Range& range : m.pieces(here)) {
          const auto part = [&](std::string_view array) { return m.view(b, array, range); };
          const bool scaled = moments == DType::u8;
          const program::ValueId masters = m.masters(b, range);
          b.adamw({masters,
                   m.gradients(b, range),
                   part(optim::kFirstMoments),
                   part(optim::kSecondMoments),
                   part(optim::kWorking),
                   m.step_state,
                   m.update_result,
                   {f(o.beta1), f(o.beta2), f(o.eps), decayed ? f(o.weight_decay) : 0.0f},
                   scaled ? part(optim::kFirstScales) : program::kAbsent,
                   scaled ? part(optim::kSecondScales) : program::kAbsent,
                   range.begin},
                  decayed ? "adamw" : "adamw without decay");
          m.keep_masters(b, masters, range);
        }
      }
}

const Optimizer kAdamW = {
    [](const ParameterTable& table, const FlatLayout& layout, const Range& updated, const config::Optim& o) {
      return adamw_state_where(table, layout, updated, o, any);
    },
    [](program::Builder& b, const LoweredModel& m, const config::Optim& o) { adamw_where(b, m, o, any); }};

}  // namespace redline::model
