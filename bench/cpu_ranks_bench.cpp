// Ranks on CPUs: what a step takes there against what perf/walk predicts from collectives that were timed on the same
// ranks and from the same step on one rank while the others compute as well. Started by mpirun:
//   mpirun -n 2 cpu_ranks_bench quick train.batch_size=4 --steps 10
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/clock.h"
#include "cli/arguments.h"
#include "cli/config.h"
#include "cli/output.h"
#include "data/from_config.h"
#include "data/loader.h"
#include "dist/control.h"
#include "dist/group.h"
#include "model/engine.h"
#include "model/family.h"
#include "perf/walk.h"

namespace redline {
namespace {

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

// The slowest rank's, since all wait for it.
double slowest(dist::Control& control, double seconds) {
  double most = 0;
  for (const std::string& words : control.all_gather(fmt::format("{}", seconds)))
    most = std::max(most, std::stod(words));
  return most;
}

std::vector<perf::TimedCollective> time_collectives(dist::Group& group, dist::Control& control) {
  std::vector<perf::TimedCollective> timed;
  for (const std::int64_t n : {1 << 12, 1 << 16, 1 << 20, 1 << 22}) {
    std::vector<float> memory(static_cast<std::size_t>(n), 1.0f);
    const Tensor data{memory.data(), DType::f32, {n}};
    const Shards shards{n, group.ranks()};
    for (const auto kind :
         {perf::Collective::all_reduce, perf::Collective::reduce_shards, perf::Collective::gather_shards}) {
      std::vector<double> seconds;
      for (int i = 0; i < 9; ++i) {
        control.barrier();
        const double begin = steady_seconds();
        if (kind == perf::Collective::all_reduce)
          group.run(dist::AllReduce<Tensor>{data}, nullptr);
        else if (kind == perf::Collective::reduce_shards)
          group.run(dist::ReduceShards<Tensor>{.data = data, .shards = shards}, nullptr);
        else
          group.run(dist::GatherShards<Tensor>{.data = data, .shards = shards}, nullptr);
        seconds.push_back(slowest(control, steady_seconds() - begin));
      }
      timed.push_back({kind, 4.0 * static_cast<double>(n), group.ranks(), median(seconds)});
    }
  }
  return timed;
}

// A run that makes one step after the other, by itself or with others.
class Run {
 public:
  Run(const config::Config& c, const dist::Sharing& sharing, dist::Group* group, device::Device& device)
      : accumulate_(c.train.accumulate),
        options_(options(c, sharing, group)),
        engine_(c.model, options_, device),
        loader_(data::open_training_corpus(data::corpus_options(c.data)),
                data::loader_options(c.data, options_.batch, true)),
        batch_(options_.batch) {
    engine_.initialise(1);
  }

  double step_seconds(dist::Control& control) {
    control.barrier();
    const double begin = steady_seconds();
    double pairs = 0;
    for (std::int64_t micro = 0; micro < accumulate_; ++micro) {
      loader_.next(batch_);
      engine_.upload(batch_);
      engine_.set_step(step_, 1e-4, 0, 0);
      engine_.micro_step(micro == 0, micro + 1 == accumulate_);
      pairs += static_cast<double>(batch_.pairs);
    }
    engine_.set_step(step_++, 1e-4, pairs, 0);
    engine_.update();
    engine_.post_result();
    engine_.take_result();
    return slowest(control, steady_seconds() - begin);
  }

 private:
  static model::LoweringOptions options(const config::Config& c, const dist::Sharing& sharing, dist::Group* group) {
    model::LoweringOptions o = model::lowering_options(c, device::Kind::cpu);
    o.sharing = sharing;
    o.execution.group = group;
    return o;
  }

  std::int64_t accumulate_;
  model::LoweringOptions options_;
  model::Engine engine_;
  data::Loader loader_;
  data::Batch batch_;
  std::uint64_t step_ = 0;
};

int bench(const cli::Words& words) {
  cli::Arguments arguments("cpu_ranks_bench", "steps of CPU ranks against their prediction", "[CONFIG] [--steps N]",
                           {});
  cli::ConfigWords config;
  std::int64_t steps = 10;
  config.declare(arguments);
  arguments.integer("--steps", "N", steps, 1, 10000, "of each kind");
  if (!arguments.parse(words)) return 0;
  const config::Config c = config::load(cli::sources_of(config), model::settle_family);
  const auto control = dist::Control::join(dist::place_of_process(), {.version = "bench"});
  const dist::Place& place = control->place();
  ::setenv("REDLINE_THREADS", "1", 0);
  const auto group = dist::open_cpu(*control);
  const std::vector<perf::TimedCollective> timed = time_collectives(*group, *control);
  perf::Fabric fabric = perf::fabric_of(group->engine(), timed);
  fabric.ranks_per_node = place.ranks;
  // Steps take turns, so that whatever else the machine does meets all of them alike. Alone, every rank computes by
  // itself beside the others, on memory that they share.
  device::CpuDevice device;
  std::vector<std::unique_ptr<Run>> runs;
  runs.push_back(std::make_unique<Run>(c, dist::Sharing{}, nullptr, device));
  for (const dist::Mode mode : perf::kModes)
    runs.push_back(std::make_unique<Run>(c, dist::Sharing{place.rank, place.ranks, mode, false}, group.get(), device));
  std::vector<std::vector<double>> seconds(runs.size());
  for (std::int64_t step = -2; step < steps; ++step)
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const double took = runs[i]->step_seconds(*control);
      if (step >= 0) seconds[i].push_back(took);
    }
  const double alone = median(seconds[0]);

  const perf::Machine machine = perf::machine_of(device);
  const double slower = alone / perf::StepWalk(c, machine).times().total();
  // Processors move the bytes and none is to spare: collectives take turns with what is computed.
  fabric.beside_compute = false;
  if (place.rank == 0) {
    cli::print(fmt::format("{} on {} ranks: {:.2f} GB/s, {:.0f} us a collective; a step of each alone {:.1f} ms\n",
                           group->engine(), place.ranks, 1e-9 * fabric.inside.bus_bandwidth, 1e6 * fabric.base,
                           1e3 * alone));
    cli::print(fmt::format("{:<8} {:>10} {:>10} {:>8}\n", "mode", "measured", "predicted", "off by"));
    for (std::size_t i = 0; i < perf::kModes.size(); ++i) {
      const double measured = median(seconds[i + 1]);
      const perf::Spread spread{perf::kModes[i], place.ranks, fabric, 0};  // no stragglers
      const double predicted = perf::StepWalk(c, machine, spread).times(slower).total();
      cli::print(fmt::format("{:<8} {:>7.1f} ms {:>7.1f} ms {:>+7.1f}%\n", name_of(perf::kModes[i]), 1e3 * measured,
                             1e3 * predicted, 100 * (predicted / measured - 1)));
    }
  }
  control->goodbye();
  return 0;
}

}  // namespace
}  // namespace redline

int main(int count, char** words) {
  try {
    return redline::bench({words + 1, words + count});
  } catch (const std::exception& e) {
    redline::cli::print_error(e.what());
    return 1;
  }
}
