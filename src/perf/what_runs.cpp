// Lowers the configuration and writes the step down.
#include "perf/what_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"
#include "data/from_config.h"
#include "data/loader.h"
#include "model/lowering.h"

namespace redline::perf {
namespace {

std::string in_text(const ops::ProductHow& how) {
  return fmt::format(" math {} bits {} fast {}", static_cast<int>(how.math), static_cast<int>(how.bits), how.fast_sums);
}
std::string in_text(const ops::AttentionHow& how) {
  return fmt::format(" by {} math {} bits {} documents {}", name_of(how.by), static_cast<int>(how.math),
                     static_cast<int>(how.bits), static_cast<int>(how.documents));
}

void write(std::string& text, const program::ProgramSet& set, const program::Node& node) {
  text += fmt::format("{} {}", node.full_name(), program::name_of(node.op));
  std::visit(
      [&](const auto& op) {
        if constexpr (requires { in_text(op.how); }) text += in_text(op.how);
      },
      node.op);
  program::each_operand(node.op, [&](std::string_view name, program::ValueId id, Access) {
    const program::Value& value = set.at(id);
    text += fmt::format(" {} {} {} at {}", name, name_of(value.dtype), value.shape.elements(),
                        set.memory.offsets[static_cast<std::size_t>(id.index)]);
  });
  text += '\n';
}

}  // namespace

WhatRuns what_runs(const config::Config& config, device::Kind kind) {
  const model::LoweringOptions options = model::lowering_options(config, kind);
  const model::LoweredModel lowered = model::lower(config.model, options);
  std::string text = fmt::format("arena {}\n", lowered.set.memory.total);
  for (const program::Program& program : lowered.set.programs) {
    text += program.name + '\n';
    for (const program::Node& node : program.nodes) write(text, lowered.set, node);
  }
  WhatRuns what;
  what.program = hex64(hash64(text));
  if (kind == device::Kind::cuda) {
    what.execution = options.execution.graphs ? "graphs" : "node by node";
    what.products = config.kernels.deterministic ? "first proposals" : "tuning " + config.kernels.tuning;
  }
  const data::PackerSettings packer = data::packer_settings(config.data, options.batch);
  what.batches = fmt::format("{} rows of {}, {} of them; packing {} with buckets {}, documents {} a row at most, {}",
                             options.batch.rows, options.batch.seq_len, config.train.accumulate, config.data.packing,
                             fmt::join(packer.buckets, ","), config.data.max_segments, config.data.long_documents);
  return what;
}

}  // namespace redline::perf
