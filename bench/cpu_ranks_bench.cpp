// Ranks on CPUs: what a step takes there against what perf/scale predicts from collectives that were timed on the same
// ranks and from the same step on one rank while the others compute as well. Started by mpirun:
//   mpirun -n 2 cpu_ranks_bench quick train.batch_size=4 --steps 10
#include <algorithm>
#include <cstdlib>

#include "base/clock.h"
#include "cli/arguments.h"
#include "cli/config_words.h"
#include "cli/output.h"
#include "data/loader.h"
#include "dist/engines.h"
#include "model/engine.h"
#include "model/family.h"
#include "perf/scale.h"

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

// The median step of this rank's, or of all where they work together.
double step_seconds(const config::Config& c, const dist::Sharing& sharing, dist::Group* group, dist::Control& control,
                    std::int64_t steps) {
  device::CpuDevice device;
  model::LoweringOptions o = model::lowering_options(c, device::Kind::cpu);
  o.sharing = sharing;
  o.execution.group = group;
  model::Engine engine(c.model, o, device);
  engine.initialise(1);
  data::Loader loader(data::open_training_source(c.data), data::loader_options(c.data, o.batch, true));
  data::Batch batch(o.batch);
  std::vector<double> seconds;
  for (std::int64_t step = 0; step < steps + 2; ++step) {
    control.barrier();
    const double begin = steady_seconds();
    double pairs = 0;
    for (std::int64_t micro = 0; micro < c.train.accumulate; ++micro) {
      loader.next(batch);
      engine.upload(batch);
      engine.set_step(static_cast<std::uint64_t>(step), 1e-4, 0, 0);
      engine.micro_step(micro == 0, micro + 1 == c.train.accumulate);
      pairs += static_cast<double>(batch.pairs);
    }
    engine.set_step(static_cast<std::uint64_t>(step), 1e-4, pairs, 0);
    engine.update();
    engine.post_result();
    engine.take_result();
    const double took = slowest(control, steady_seconds() - begin);
    if (step >= 2) seconds.push_back(took);
  }
  return median(seconds);
}

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
  const auto group = dist::open_mpi(*control);
  const std::vector<perf::TimedCollective> timed = time_collectives(*group, *control);
  perf::Fabric fabric = perf::fabric_of(group->engine(), timed);
  fabric.ranks_per_node = place.ranks;
  // Every rank computes by itself: what it takes beside the others, on memory that they share.
  const double alone = step_seconds(c, {}, nullptr, *control, steps);
  device::CpuDevice device;
  perf::StepWork work = perf::step_work(c, perf::machine_of(device));
  const double faster = alone / work.compute();
  work.update *= faster;
  for (perf::Block& b : work.blocks) {
    b.forward *= faster;
    b.backward *= faster;
    b.backward_adding *= faster;
  }
  if (place.rank == 0) {
    cli::print(fmt::format("{} on {} ranks: {:.2f} GB/s, {:.0f} us a collective; a step alone {:.1f} ms\n",
                           group->engine(), place.ranks, 1e-9 * fabric.inside.bus_bandwidth, 1e6 * fabric.base,
                           1e3 * alone));
    cli::print(fmt::format("{:<8} {:>10} {:>10} {:>10} {:>8}\n", "mode", "measured", "beside", "behind", "off by"));
  }
  for (const dist::Mode mode : perf::kModes) {
    const dist::Sharing sharing{place.rank, place.ranks, mode, false};
    const double measured = step_seconds(c, sharing, group.get(), *control, steps);
    // Where processors move the bytes and none is to spare, collectives take turns with what is computed.
    fabric.beside_compute = true;
    const double beside = perf::simulate(work, mode, place.ranks, fabric, 0).total();
    fabric.beside_compute = false;
    const double behind = perf::simulate(work, mode, place.ranks, fabric, 0).total();
    if (place.rank == 0)
      cli::print(fmt::format("{:<8} {:>7.1f} ms {:>7.1f} ms {:>7.1f} ms {:>+7.1f}%\n", name_of(mode), 1e3 * measured,
                             1e3 * beside, 1e3 * behind, 100 * (behind / measured - 1)));
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
