// AdamW over all parameters, or over those that another optimizer leaves to it: a node for each range that has weight decay, and one for each that has none.
#include "optim/adamw.h"

#include <algorithm>

#include "model/lowering.h"

namespace redline::model {
namespace {

optim::StateTable state(const ParameterTable&, const FlatLayout& layout, const optim::Range& updated) {
  return optim::adamw_state(updated, updated == layout.whole() ? optim::Range{} : layout.whole());
}

void update(program::Builder& b, const LoweredModel& m, const config::Optim& o) {
  adamw_where(b, m, o, [](const ParameterSpec&) { return true; });
}

}  // namespace

void adamw_where(program::Builder& b, const LoweredModel& m, const config::Optim& o,
                 const std::function<bool(const ParameterSpec&)>& holds) {
  const auto f = [](double x) { return static_cast<float>(x); };
  for (const bool decayed : {true, false})
    for (const optim::Range& all :
         ranges_where(m.table, m.layout, [&](const ParameterSpec& p) { return p.decayed == decayed && holds(p); })) {
      const optim::Range range{std::max(all.begin, m.updated.begin), std::min(all.end, m.updated.end)};
      if (range.elements() <= 0) continue;
      const auto part = [&](std::string_view array) { return m.view(b, array, range); };
      b.adamw({part(optim::kParameters),
               part(optim::kGradients),
               part(optim::kFirstMoments),
               part(optim::kSecondMoments),
               part(optim::kWorking),
               m.step_state,
               m.update_result,
               {f(o.beta1), f(o.beta2), f(o.eps), decayed ? f(o.weight_decay) : 0.0f}},
              decayed ? "adamw" : "adamw without decay");
    }
}

const Optimizer kAdamW = {state, update};

}  // namespace redline::model
