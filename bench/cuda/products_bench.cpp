// Times the matrix products of a training step as the tuner sees them, in short bursts and under load: a card at its
// power cap runs at another clock, so that what is fastest in a burst need not be fastest in training. Three figures
// for every finalist of a product, then whole steps of products, in the order of a step, by cuBLASLt's first choices,
// by the tuner's and by the choices made under load.
//   cuda_products_bench [--list] [--seconds=S] [PRESET:BATCH ...]
// --list: only which products they are. Default: 20 s a model under load, llama-1.36b:24 qwen3-1.8b:8.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "config/load.h"
#include "device/cuda/device.h"
#include "device/cuda/handles.h"
#include "device/gpu_monitor.h"
#include "model/lowering.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/gemm_tuning.h"
#include "program/program.h"

namespace redline {
namespace {

using ops::cuda::GemmPlan;
using ops::cuda::GemmShape;
using ops::cuda::GemmTrial;
using ops::cuda::TimedAlgorithm;

constexpr std::size_t kFinalists = 8;
constexpr double kWithin = 1.05;  // of the fastest in bursts: what is slower will not win under load
constexpr int kRounds = 3, kStepRounds = 3;
constexpr double kPreheat = 1.0, kSettle = 0.03, kStepSeconds = 1.0;

// Every figure in seconds for one run.
struct Finalist {
  TimedAlgorithm timed;
  double burst = 0;
  std::array<double, kRounds> loaded{};
  double clock_mhz = 0, power_w = 0;
  int samples = 0;

  double mean() const {
    double sum = 0;
    for (const double s : loaded) sum += s;
    return sum / kRounds;
  }
  double first_rounds() const {
    return (loaded[0] + loaded[1]) / 2;
  }  // what a choice is made by to be tried in the last
};

struct Product {
  GemmShape shape;
  int count = 0;  // in a step
  std::string name;
  std::unique_ptr<GemmPlan> plan;
  std::unique_ptr<GemmTrial> trial;
  std::vector<Finalist> finalists;  // by burst, fastest first
  std::size_t first = 0;            // cuBLASLt's first choice among them

  template <class Figure>
  std::size_t best(const Figure& figure) const {
    const auto it = std::ranges::min_element(finalists, {}, figure);
    return static_cast<std::size_t>(it - finalists.begin());
  }
};

// The products of a program, in its order: indices of the distinct ones. Addresses are those of an arena that is not
// there.
struct Step {
  std::vector<Product> products;
  std::vector<std::size_t> order;
};
Step products_of_step(const program::ProgramSet& set) {
  constexpr std::uintptr_t kArena = 1 << 20;
  Step step;
  std::map<GemmShape, std::size_t> seen;
  const auto add = [&](const ops::cuda::Gemm& g, std::string_view name) {
    const GemmShape shape(g);
    const auto [it, is_new] = seen.emplace(shape, step.products.size());
    if (is_new) {
      step.products.push_back(Product{shape, 0, std::string(name), nullptr, nullptr, {}, 0});
    }
    ++step.products[it->second].count;
    step.order.push_back(it->second);
  };
  const auto tensor = [&](std::string_view, program::ValueId id, Access) {
    if (!id.present()) return Tensor{};
    const program::Value& v = set.at(id);
    const auto offset = static_cast<std::uintptr_t>(set.memory.offsets[static_cast<std::size_t>(id.index)]);
    return Tensor{reinterpret_cast<void*>(kArena + offset), v.dtype, v.shape};
  };
  for (const program::Node& node : set.find(model::kFirst).nodes) {
    std::visit(
        [&](const auto& op) {
          const auto bound = op.map(tensor);
          if constexpr (requires { ops::cuda::product(bound); }) {
            add(ops::cuda::product(bound), node.full_name());
          } else if constexpr (requires { ops::cuda::head_products(bound, 0); }) {
            const std::int64_t rows = ops::cuda::logits_chunk(bound.logits).rows;
            for (std::int64_t first = 0; first < bound.x.rows(); first += rows) {
              const ops::cuda::HeadProducts head = ops::cuda::head_products(bound, first);
              add(head.logits, "head");
              add(head.dx, "head, dx");
              add(head.dweight, "head, dweight");
            }
          }
        },
        node.op);
  }
  return step;
}

// Queues work for about so long and waits for it; sums up what the card says meanwhile.
class Load {
 public:
  Load(const device::cuda::Launch& launch, const device::GpuMonitor* monitor)
      : launch_(launch), monitor_(monitor), watch_(launch.stream), end_(device::cuda::make_event()) {}

  // Seconds of one call of `enqueue`, which takes about `once`.
  template <class Enqueue>
  double operator()(double once, double seconds, const Enqueue& enqueue, Finalist* told = nullptr) const {
    const int runs = std::max(1, static_cast<int>(seconds / std::max(once, 1e-6)));
    watch_.start();
    for (int i = 0; i < runs; ++i) enqueue();
    REDLINE_CUDA(cudaEventRecord(end_.get(), launch_.stream));
    while (cudaEventQuery(end_.get()) == cudaErrorNotReady) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const auto sample = told && monitor_ ? monitor_->latest() : std::nullopt;
      if (!sample || !sample->clock_mhz || !sample->power_w) continue;
      told->clock_mhz += *sample->clock_mhz;
      told->power_w += *sample->power_w;
      ++told->samples;
    }
    return watch_.stop() / runs;
  }

 private:
  const device::cuda::Launch& launch_;
  const device::GpuMonitor* monitor_;
  device::cuda::Stopwatch watch_;
  device::cuda::Event end_;
};

void find_finalists(Product& p, cublasLtHandle_t handle, const device::cuda::Launch& launch) {
  p.plan = std::make_unique<GemmPlan>(handle, p.shape);
  auto trial = GemmTrial::open(*p.plan, launch);
  if (!trial) fail_machine("no memory for the operands of {}", p.shape.str());
  p.trial = std::make_unique<GemmTrial>(std::move(*trial));
  std::vector<TimedAlgorithm> timed =
      p.trial->finalists(p.plan->candidates(), {2, 1, kFinalists, kFinalists}, [] { return false; });
  if (timed.empty()) fail_machine("nothing computes {}", p.shape.str());
  const auto same = [&](const TimedAlgorithm& t) {
    return std::ranges::equal(t.algorithm.data, timed.back().algorithm.data);
  };
  const std::size_t first = static_cast<std::size_t>(std::ranges::find_if(timed, same) - timed.begin());
  if (first + 1 < timed.size()) timed.pop_back();  // it is among the others already
  const std::vector<double> bursts = time_in_bursts(*p.trial, timed);
  const double best = *std::ranges::min_element(bursts);
  for (std::size_t i = 0; i < timed.size(); ++i) {
    if (i != first && bursts[i] > kWithin * best) continue;
    if (i == first) p.first = p.finalists.size();
    p.finalists.push_back({.timed = timed[i], .burst = bursts[i]});
  }
}

// All finalists take turns under load.
void time_under_load(Product& p, const Load& load, double window) {
  for (int round = 0; round < kRounds; ++round) {
    for (Finalist& f : p.finalists) {
      const auto enqueue = [&] { p.trial->enqueue(f.timed.algorithm); };
      load(f.burst, kSettle, enqueue);
      f.loaded[static_cast<std::size_t>(round)] = load(f.burst, window, enqueue, &f);
    }
  }
}

void print(const Product& p) {
  const double tera = 1e-12 * p.shape.flops();
  const std::size_t burst = p.best(&Finalist::burst), loaded = p.best(&Finalist::mean);
  std::printf("%3d x %-24s %s\n", p.count, p.name.c_str(), p.shape.str().c_str());
  for (std::size_t i = 0; i < p.finalists.size(); ++i) {
    const Finalist& f = p.finalists[i];
    const int n = std::max(1, f.samples);
    std::printf("      burst %6.1f  load %6.1f TFLOP/s (%.1f %.1f %.1f)  %5.0f MHz %4.0f W%s%s%s\n", tera / f.burst,
                tera / f.mean(), tera / f.loaded[0], tera / f.loaded[1], tera / f.loaded[2], f.clock_mhz / n,
                f.power_w / n, i == p.first ? "  first" : "", i == burst ? "  burst's" : "",
                i == loaded ? "  load's" : "");
  }
}

struct Choice {
  std::string name;
  std::vector<std::size_t> finalist;  // by product
  double sum = 0, fresh = 0;          // seconds of a step's products: by all rounds, and by the last one alone
  double step = 0;                    // really run one after another
};

template <class Which>
Choice choice(std::string name, const Step& step, const Which& which) {
  Choice c{std::move(name), {}, 0, 0, 0};
  for (const Product& p : step.products) {
    const std::size_t i = which(p);
    c.finalist.push_back(i);
    c.sum += p.count * p.finalists[i].mean();
    c.fresh += p.count * p.finalists[i].loaded[kRounds - 1];
  }
  return c;
}

void run_steps(std::vector<Choice>& choices, const Step& step, const Load& load) {
  for (int round = 0; round < kStepRounds; ++round) {
    for (Choice& c : choices) {
      const auto enqueue = [&] {
        for (const std::size_t i : step.order) {
          const Product& p = step.products[i];
          p.trial->enqueue(p.finalists[c.finalist[i]].timed.algorithm);
        }
      };
      c.step += load(c.sum, kStepSeconds, enqueue) / kStepRounds;
    }
  }
}

Step load_step(const std::string& word) {
  const std::size_t colon = word.find(':');
  std::vector<std::string> overrides = {"train.accumulate=1"};
  if (colon != std::string::npos) overrides.push_back("train.batch_size=" + word.substr(colon + 1));
  const config::Config config = config::load({.file = "", .preset = word.substr(0, colon), .overrides = overrides});
  const model::LoweringOptions options = model::lowering_options(config, device::Kind::cuda);
  Step step = products_of_step(model::lower(config.model, options).set);
  std::printf("%s, %lld rows of %lld: %zu products, %zu in a step\n", config.preset.c_str(),
              static_cast<long long>(config.train.batch_size), static_cast<long long>(config.train.seq_len),
              step.products.size(), step.order.size());
  return step;
}

void bench_model(Step step, double seconds, device::CudaDevice& device, const device::GpuMonitor* monitor) {
  const ops::cuda::LtHandle handle = ops::cuda::make_handle();
  const Load load(device.launch(), monitor);

  const double begin = steady_seconds();
  std::size_t windows = 0;
  for (Product& p : step.products) {
    find_finalists(p, handle.get(), device.launch());
    windows += p.finalists.size() * kRounds;
  }
  const double tuned = steady_seconds();
  const double window = std::clamp(seconds / static_cast<double>(windows) - kSettle, 0.02, 0.25);
  std::printf("finalists after %.1f s; each under load for %d x %.0f ms\n", tuned - begin, kRounds, 1e3 * window);
  const Product& hot = *std::ranges::max_element(step.products, {}, [](const Product& p) { return p.shape.flops(); });
  load(hot.finalists[0].burst, kPreheat, [&] { hot.trial->enqueue(hot.finalists[0].timed.algorithm); });
  for (Product& p : step.products) {
    time_under_load(p, load, window);
    print(p);
  }

  std::vector<Choice> choices;
  choices.push_back(choice("cuBLASLt's first", step, [](const Product& p) { return p.first; }));
  choices.push_back(choice("by bursts", step, [](const Product& p) { return p.best(&Finalist::burst); }));
  choices.push_back(choice("under load", step, [](const Product& p) { return p.best(&Finalist::mean); }));
  choices.push_back(
      choice("under load, 2 rounds", step, [](const Product& p) { return p.best(&Finalist::first_rounds); }));
  run_steps(choices, step, load);
  const Choice& bursts = choices[1];
  std::printf("products of a step, ms (and against the choice by bursts):\n");
  std::printf("  %-22s %-22s %-22s %s\n", "choice", "sum of loaded times", "of the last round", "run as a step");
  for (const Choice& c : choices)
    std::printf("  %-22s %8.2f (%+5.2f%%)     %8.2f (%+5.2f%%)     %8.2f (%+5.2f%%)\n", c.name.c_str(), 1e3 * c.sum,
                100 * (c.sum / bursts.sum - 1), 1e3 * c.fresh, 100 * (c.fresh / bursts.fresh - 1), 1e3 * c.step,
                100 * (c.step / bursts.step - 1));
  std::printf("  took %.1f s\n", steady_seconds() - begin);
}

int run(const std::vector<std::string>& words) {
  double seconds = 20;
  bool list = false;
  std::vector<std::string> models;
  constexpr std::string_view kSeconds = "--seconds=";
  for (const std::string& word : words) {
    if (word.starts_with(kSeconds))
      seconds = std::atof(word.c_str() + kSeconds.size());  // checked below
    else if (word == "--list")
      list = true;
    else
      models.push_back(word);
  }
  if (seconds <= 0) fail_user("--seconds takes a number above 0");
  if (models.empty()) models = {"llama-1.36b:24", "qwen3-1.8b:8"};
  if (list) {
    for (const std::string& model : models)
      for (const Product& p : load_step(model).products)
        std::printf("%3d x %-24s %s\n", p.count, p.name.c_str(), p.shape.str().c_str());
    return 0;
  }
  if (device::cuda_status().cards.empty()) {
    std::puts("no GPU");
    return 0;
  }
  device::CudaDevice device;
  const auto monitor = device::GpuMonitor::open(device.bus_id(), "libnvidia-ml.so.1", std::chrono::milliseconds(10));
  std::printf("%s%s\n", device.name().c_str(), monitor ? "" : ", no NVML: no clocks and no power");
  for (const std::string& model : models) bench_model(load_step(model), seconds, device, monitor.get());
  return 0;
}

}  // namespace
}  // namespace redline

int main(int argc, char** argv) {
  try {
    return redline::run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cuda_products_bench: %s\n", e.what());
    return 2;
  }
}
