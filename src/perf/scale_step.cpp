// A step on several ranks: what one rank does, read off its lowered programs, and the same on two streams with what it
// sends and waits for.
#include <algorithm>
#include <cmath>
#include <set>

#include "model/lowering.h"
#include "perf/roofline.h"
#include "perf/scale.h"
#include "program/distribute.h"

namespace redline::perf {
namespace {

using program::Phase;
using program::Role;

// Squares by group, loss and pairs: what the update is decided by, one array of doubles.
constexpr double kTotalsBytes = 1024 * 8;

std::size_t block_of(const program::Place& place, std::size_t blocks) {
  if (place.layer != program::kNoLayer) return 1 + static_cast<std::size_t>(place.layer);
  return place.part == program::Part::head ? blocks - 1 : 0;
}

std::vector<Block> empty_blocks(const program::Program& program) {
  std::int32_t last = -1;
  for (const program::Node& node : program.nodes) last = std::max(last, node.place.layer);
  std::vector<Block> blocks(static_cast<std::size_t>(last) + 3);
  blocks.front().name = "embedding";
  for (std::size_t i = 1; i + 1 < blocks.size(); ++i) blocks[i].name = fmt::format("layer {}", i - 1);
  blocks.back().name = "head";
  return blocks;
}

// Counts the parameters that each block reads and writes, from the operands of its nodes.
void count_elements(std::vector<Block>& blocks, const program::ProgramSet& set, const program::Program& program) {
  std::vector<std::set<program::ValueId>> forward(blocks.size()), backward(blocks.size());
  std::set<program::ValueId> read;
  std::vector<std::pair<program::ValueId, std::size_t>> written;  // the last writer of each
  for (const program::Node& node : program.nodes) {
    const std::size_t at = block_of(node.place, blocks.size());
    Block& block = blocks[at];
    program::each_operand(node.op, [&](std::string_view, program::ValueId id, Access) {
      const program::Value& value = set.at(id);
      const std::int64_t elements = value.shape.elements();
      if (value.role == Role::parameter || value.role == Role::working) {
        const bool going = node.phase == Phase::forward;
        if (!(going ? forward : backward)[at].insert(id).second) return;
        (going ? block.reads : block.backward_reads) += elements;
        if (going && read.insert(id).second) block.first_reads += elements;
      }
      if (value.role != Role::gradient) return;
      const auto known = std::ranges::find(written, id, &std::pair<program::ValueId, std::size_t>::first);
      if (known == written.end())
        written.emplace_back(id, at);
      else
        known->second = at;
    });
  }
  for (const auto& [id, at] : written) blocks[at].gradients += set.at(id).shape.elements();
}

// Two streams: the one that computes goes on unless it waits; collectives run one after the other on the other.
class Streams {
 public:
  Streams(const Fabric& fabric, int ranks) : fabric_(fabric), ranks_(ranks) {}

  void compute(double seconds) {
    now_ += seconds;
    times_.compute += seconds;
  }

  struct Started {
    std::size_t use = 0;
    double end = 0;
  };
  // Queues the collective behind those under way.
  Started start(Collective collective, std::string_view of, double bytes) {
    const auto known = std::ranges::find_if(
        times_.collectives, [&](const CollectiveUse& u) { return u.collective == collective && u.of == of; });
    const std::size_t use = static_cast<std::size_t>(known - times_.collectives.begin());
    if (known == times_.collectives.end()) times_.collectives.push_back({.collective = collective, .of = of});
    const double seconds = collective_seconds(fabric_, collective, bytes, ranks_);
    CollectiveUse& u = times_.collectives[use];
    ++u.count;
    u.bytes += bytes;
    u.seconds += seconds;
    wire_ = std::max(wire_, now_) + seconds;
    const Started started{use, wire_};
    if (!fabric_.beside_compute) wait(started);
    return started;
  }

  void wait(const Started& started) {
    const double waited = std::max(0.0, started.end - now_);
    now_ += waited;
    times_.exposed += waited;
    if (waited > 0) times_.collectives[started.use].exposed += waited;
  }

  RankStep take() { return std::move(times_); }

 private:
  const Fabric& fabric_;
  int ranks_;
  double now_ = 0, wire_ = 0;
  RankStep times_;
};

class Step {
 public:
  Step(const StepWork& work, Mode mode, int ranks, const Fabric& fabric)
      : work_(work), mode_(mode), ranks_(ranks), alone_(ranks == 1), streams_(fabric, ranks) {}

  RankStep run() {
    for (std::int64_t i = 0; i < work_.micro_batches; ++i) {
      forward(i == 0);
      backward(i == 0, i + 1 == work_.micro_batches);
    }
    for (const Streams::Started& reduced : reduced_) streams_.wait(reduced);
    const double share = mode_ == Mode::ddp ? 1 : 1.0 / ranks_;
    streams_.compute(share * work_.update);
    if (!alone_) streams_.wait(streams_.start(Collective::all_reduce, "totals", kTotalsBytes));
    return streams_.take();
  }

 private:
  Streams::Started gather(std::string_view of, std::int64_t elements) {
    if (elements == 0) return {};
    return streams_.start(Collective::gather_shards, of, static_cast<double>(elements) * work_.weight_bytes);
  }

  void forward(bool first) {
    const bool gathers = !alone_ && (mode_ == Mode::fsdp || (mode_ == Mode::zero1 && first));
    const auto ahead = [&](std::size_t i) {
      const Block& b = work_.blocks[i];
      return gathers ? gather("weights", mode_ == Mode::fsdp ? b.reads : b.first_reads) : Streams::Started{};
    };
    Streams::Started next = ahead(0);
    for (std::size_t i = 0; i < work_.blocks.size(); ++i) {
      streams_.wait(next);
      if (i + 1 < work_.blocks.size()) next = ahead(i + 1);
      streams_.compute(work_.blocks[i].forward);
    }
  }

  // The last block has its weights from the forward pass.
  void backward(bool first, bool last) {
    const bool gathers = !alone_ && mode_ == Mode::fsdp, reduces = !alone_ && (last || mode_ == Mode::fsdp);
    Streams::Started next;
    std::int64_t pending = 0;
    for (std::size_t i = work_.blocks.size(); i-- > 0;) {
      const Block& b = work_.blocks[i];
      streams_.wait(next);
      next =
          gathers && i > 0 ? gather("weights, backward pass", work_.blocks[i - 1].backward_reads) : Streams::Started{};
      streams_.compute(first ? b.backward : b.backward_adding);
      pending += b.gradients;
      if (reduces && (pending >= program::bucket_elements(ranks_) || i == 0 || mode_ == Mode::fsdp)) reduce(pending);
    }
  }

  void reduce(std::int64_t& pending) {
    if (pending == 0) return;
    const auto bytes = static_cast<double>(pending) * work_.gradient_bytes;
    reduced_.push_back(
        streams_.start(mode_ == Mode::ddp ? Collective::all_reduce : Collective::reduce_shards, "gradients", bytes));
    pending = 0;
  }

  const StepWork& work_;
  Mode mode_;
  int ranks_;
  bool alone_;
  Streams streams_;
  std::vector<Streams::Started> reduced_;
};

}  // namespace

double StepWork::compute() const {
  double seconds = update;
  for (const Block& b : blocks)
    seconds += b.forward + b.backward + static_cast<double>(micro_batches - 1) * (b.forward + b.backward_adding);
  return seconds;
}

StepWork step_work(const config::Config& asked, const Machine& machine) {
  const config::Config config = as_possible(asked, machine);
  const model::LoweringOptions options = model::lowering_options(config, machine.kind);
  const model::LoweredModel lowered = model::lower(config.model, options);
  const program::ProgramSet& set = lowered.set;
  const auto rows = static_cast<double>(options.batch.rows), seq_len = static_cast<double>(options.batch.seq_len);

  const program::Program& first = set.find(model::kFirst);
  StepWork work;
  work.blocks = empty_blocks(first);
  count_elements(work.blocks, set, first);
  const auto add_times = [&](const program::Program& program, double Block::*forward, double Block::*backward) {
    const std::vector<double> seconds = node_seconds(set, program, rows, seq_len, machine);
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      const program::Node& node = program.nodes[i];
      double Block::*part = node.phase == Phase::forward ? forward : backward;
      if (part) work.blocks[block_of(node.place, work.blocks.size())].*part += seconds[i];
    }
  };
  add_times(first, &Block::forward, &Block::backward);
  work.micro_batches = config.train.accumulate;
  if (work.micro_batches > 1) add_times(set.find(model::kAccumulate), nullptr, &Block::backward_adding);

  work.update = expected_seconds(set, model::kUpdate, rows, seq_len, machine);
  work.parameters = lowered.layout.total;
  const program::ValueId working = lowered.at(optim::kWorking);
  work.weight_bytes = static_cast<int>(size_of(working.present() ? set.at(working).dtype : DType::f32));
  work.gradient_bytes = config.parallel.wire == "bf16" ? 2 : 4;
  work.tokens = rows * seq_len * static_cast<double>(work.micro_batches);
  const double pairs = rows * seq_len * (seq_len + 1) / 2;
  work.flops = model::model_flops(lowered, options.batch, rows * seq_len, pairs) / (rows * seq_len);
  return work;
}

double expected_slowest(int ranks) {
  if (ranks == 1) return 0;
  // The integral of x over the density of the largest, n phi(x) Phi(x)^(n-1); steps of a tenth give it to 14 digits.
  constexpr int kSteps = 90;
  constexpr double kWidth = 0.1, kRoot = 2.5066282746310002;  // of 2 pi
  double sum = 0;
  for (int i = -kSteps; i <= kSteps; ++i) {
    const double x = i * kWidth, below = 0.5 * std::erfc(-x / std::sqrt(2.0));
    sum += x * ranks * std::exp(-x * x / 2) / kRoot * std::pow(below, ranks - 1) * kWidth;
  }
  return sum;
}

double straggler_share(int ranks, double constant) { return constant * expected_slowest(ranks); }

RankStep simulate(const StepWork& work, Mode mode, int ranks, const Fabric& fabric, double straggler) {
  RankStep times = Step(work, mode, ranks, fabric).run();
  times.stragglers = straggler_share(ranks, straggler) * (times.compute + times.exposed);
  return times;
}

}  // namespace redline::perf
