// An optimizer that is no use in training, but has every kind of row: moments for a range of the parameters, one
// byte for each of them with a scale for each 256, and a history that belongs to none. The matrices of the layers are
// all it moves.
#pragma once

#include <algorithm>

#include "model/lowering.h"
#include "program/builder.h"

namespace redline::testing {

inline constexpr std::int64_t kBlock = 256, kHistory = 13;

inline Range hidden_matrices(const model::ParameterTable& table, const model::FlatLayout& layout) {
  const auto ranges = model::ranges_where(
      table, layout, [](const model::ParameterSpec& p) { return p.kind == model::ParameterKind::linear; });
  REDLINE_CHECK(ranges.size() == 1, "{} ranges", ranges.size());
  return ranges.front();
}

inline const model::Optimizer kHandMade = {
    .state = [](const model::ParameterTable& table, const model::FlatLayout& layout, const Range&,
                const config::Optim&) -> optim::StateTable {
      const Range hidden = hidden_matrices(table, layout);
      return {{.name = "momentum", .range = hidden, .file = optim::kOptimizerFile, .stored_as = "momentum."},
              {.name = "variance", .range = hidden, .file = optim::kOptimizerFile, .stored_as = "variance."},
              {.name = "bytes",
               .dtype = DType::u8,
               .range = layout.whole(),
               .file = "bytes.safetensors",
               .stored_as = "bytes."},
              {.name = "scales",
               .range = layout.whole(),
               .block = kBlock,
               .file = "bytes.safetensors",
               .stored_as = "scales"},
              {.name = "history", .independent = kHistory, .file = optim::kOptimizerFile, .stored_as = "history"}};
    },
    .update =
        [](program::Builder& b, const model::LoweredModel& m, const config::Optim&) {
          const Range hidden = hidden_matrices(m.table, m.layout);
          const auto part = [&](std::string_view array) { return m.view(b, array, hidden); };
          b.adamw({part(optim::kParameters), part(optim::kGradients), part("momentum"), part("variance"),
                   part(optim::kWorking), m.step_state, m.update_result, optim::AdamWSettings{}});
        }};

}  // namespace redline::testing
