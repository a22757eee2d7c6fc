// Shares out the time, measures candidates, and says whether two of them are the same work.
#include "perf/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "data/from_config.h"
#include "data/loader.h"
#include "model/lowering.h"
#include "perf/batch_size.h"
#include "program/program.h"
#include "train/memory_advice.h"
#include "train/trainer.h"

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

Workload workload_of(const config::Config& config, device::Kind kind, int ranks) {
  const model::LoweringOptions options = model::lowering_options(config, kind);
  const model::LoweredModel lowered = model::lower(config.model, options);
  std::string text = fmt::format("arena {}\n", lowered.set.memory.device.total);
  for (const program::Program& program : lowered.set.programs) {
    text += program.name + '\n';
    for (const program::Node& node : program.nodes) write(text, lowered.set, node);
  }
  Workload work;
  work.program = hex64(hash64(text));
  if (kind == device::Kind::cuda) {
    work.execution = options.execution.graphs ? "graphs" : "node by node";
    work.products = config.kernels.deterministic ? "first proposals" : "tuning " + config.kernels.tuning;
  }
  const data::PackerSettings packer = data::packer_settings(config.data, options.batch);
  work.batches = fmt::format("{} rows of {}, {} of them; packing {} with buckets {}, documents {} a row at most, {}",
                             options.batch.rows, options.batch.seq_len, config.train.accumulate, config.data.packing,
                             fmt::join(packer.buckets, ","), config.data.max_segments, config.data.long_documents);
  if (ranks > 1)
    work.ranks = fmt::format("{} of {} with wires of {}, rows of {}", config.parallel.mode, config.parallel.shards,
                             config.parallel.wire, config.parallel.sequence);
  work.loader =
      fmt::format("{} workers", data::loader_options(config.data, options.batch, kind == device::Kind::cpu).workers);
  return work;
}

std::string key_of(const std::string& pair) { return pair.substr(0, pair.find('=')); }

KeyValues over(KeyValues keys, const KeyValues& others) {
  for (const std::string& pair : others) {
    std::erase_if(keys, [&](const std::string& known) { return key_of(known) == key_of(pair); });
    keys.push_back(pair);
  }
  return keys;
}

KeyValues keys_of(const Setting& s) {
  return {fmt::format("train.batch_size={}", s.batch_size), fmt::format("train.accumulate={}", s.accumulate)};
}

Bench bench_on(device::Device& device, const MeasureOptions& options) {
  Bench bench;
  bench.kind = device.kind();
  if (options.team) bench.ranks = options.team->sharing.ranks;
  bench.measure = [&device, options](const config::Config& config, double seconds) {
    MeasureOptions own = options;
    own.seconds = seconds;
    return measure(config, device, own);
  };
  // Some is left for what libraries and tuning take.
  bench.fits = [&device](const config::Config& config) {
    constexpr double kMost = 0.9;
    return static_cast<double>(train::memory_needed(config, device.kind())) <=
           kMost * static_cast<double>(train::memory_allowed(config, device));
  };
  bench.settings = [&device](const config::Config& config) {
    std::vector<Setting> settings;
    for (const Plan& p : choose(config, machine_now(device)).best) settings.push_back(p.setting);
    return settings;
  };
  return bench;
}

std::string_view name_of(TrialState state) {
  switch (state) {
    case TrialState::measured: return "measured";
    case TrialState::failed: return "cannot be run";
    case TrialState::planned: return "planned";
    case TrialState::no_effect: return "changes nothing";
    case TrialState::not_separable: return "not separable";
    case TrialState::absent: return "not there";
  }
  return "";
}

Search::Search(const SearchOptions& options, Bench bench, LoadConfig load)
    : options_(options), bench_(std::move(bench)), load_(std::move(load)), start_(steady_seconds()) {}

void Search::expect(std::size_t candidates, double share_of_time, std::size_t later) {
  next_ = candidates;
  share_ = share_of_time;
  later_ = later;
}

double Search::begin(const std::string& name) {
  end_if_asked(options_.stop);
  const std::size_t left = std::max<std::size_t>(next_, 1);
  if (options_.progress) options_.progress(name, begun_ + 1, begun_ + left + later_);
  ++begun_;
  leave_out();
  if (options_.each > 0) return options_.each;
  const double rest = share_ * options_.seconds - (steady_seconds() - start_);
  return std::max(options_.least, rest / static_cast<double>(left) / 2);
}

void Search::measure(Trial& row, const KeyValues& keys) {
  const double seconds = begin(row.name);
  config::Config config;
  try {
    config = load_(keys);
  } catch (const UserError& e) {  // keys that do not go together
    Measured none;
    none.problem = e.what();
    return finish(row, std::move(none));
  }
  finish(row, bench_.measure(config, seconds));
}

void Search::measure(Trial& row, const config::Config& config) {
  const double seconds = begin(row.name);
  finish(row, bench_.measure(config, seconds));
}

void Search::finish(Trial& row, Measured measured) const {
  row.measured = std::move(measured);
  row.state = row.measured.done() ? TrialState::measured : TrialState::failed;
  row.reason = row.measured.done() ? row.measured.note : row.measured.problem;
  row.reason.resize(std::min(row.reason.find('\n'), row.reason.size()));  // a row has one line
}

bool Search::has_effect(const KeyValues& keys, const KeyValues& change) const {
  try {
    const auto work = [&](const KeyValues& of) { return workload_of(load_(of), bench_.kind, bench_.ranks); };
    return work(keys) != work(over(keys, change));
  } catch (const UserError&) {
    return true;
  }
}

}  // namespace redline::perf
