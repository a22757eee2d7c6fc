// Finds the plan of a product, or makes it, and launches. A product with odd extents is cut into several before that.
#include "ops/cuda/gemm.h"

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "base/clock.h"
#include "base/log.h"
#include "base/words.h"
#include "device/cuda/handles.h"
#include "ops/cuda/gemm_tuning.h"
#include "ops/cuda/start_budgets.h"

namespace redline::ops::cuda {
namespace {

constexpr double kWorthTuning = 1e9;  // FLOPs: a few microseconds
constexpr double kLeastSearch = 0.3;  // seconds for a product, once there are any
constexpr double kHeats = 2e10;       // FLOPs of a product whose repetition brings a card to its power cap

bool tuning_is_off() {
  const char* value = std::getenv("REDLINE_TUNING");
  return value && std::string_view(value) == "off";
}

// One card and one version of cuBLASLt: what is fastest on another says nothing here.
std::string machine() {
  int card = 0;
  cudaDeviceProp properties;
  REDLINE_CUDA(cudaGetDevice(&card));
  REDLINE_CUDA(cudaGetDeviceProperties(&properties, card));
  return fmt::format("{}, cuBLASLt {}", properties.name, lt::cublasLtGetVersion());
}

// All plans of a card.
class Plans {
 public:
  const GemmPlan& find(const GemmShape& shape, Bits bits, const Launch& launch) {
    const std::lock_guard lock(mutex_);
    std::string problem;
    const Planned* const found = find_or_make(shape, bits, launch, {}, problem);
    if (!found) fail_machine("{}", problem);
    return found->plan;
  }

  void prepare(const GemmShape& shape, Bits bits, const Launch& launch, std::span<std::byte> bench) {
    const std::lock_guard lock(mutex_);
    std::string problem;
    find_or_make(shape, bits, launch, bench, problem);  // whoever launches it says what is wrong
  }

  ProductTime time(const GemmShape& shape, Bits bits, const Launch& launch, bool timed) {
    const std::lock_guard lock(mutex_);
    ProductTime time;
    if (!timed) {
      const GemmPlan plan(handle_.get(), shape);
      if (plan.candidates().empty()) time.problem = plan.why_none();
      return time;
    }
    Planned* const found = find_or_make(shape, bits, launch, {}, time.problem);
    if (!found) return time;
    if (found->seconds == 0) found->seconds = seconds_of(found->plan, launch, time.problem);
    time.seconds = found->seconds;
    return time;
  }

  void set_tuning(Tuning tuning) {
    const std::lock_guard lock(mutex_);
    tuning_ = off_ ? Tuning::off : tuning;
  }

  void try_again() {  // what was left for want of time
    const std::lock_guard lock(mutex_);
    std::erase_if(plans_, [](const auto& plan) { return plan.second.left; });
  }

  void keep_tuning() {
    const std::lock_guard lock(mutex_);
    file_.save();
    if (tuned_.products > 0)
      log::note("tuned {} in {:.1f} s: {:.3f} ms for one of each, {:.3f} ms by cuBLASLt's first choices ({:+.1f}%)",
                counted(tuned_.products, "product"), tuned_.took, 1e3 * tuned_.best, 1e3 * tuned_.first,
                100 * (tuned_.best / tuned_.first - 1));
    if (tuned_.left > 0)
      log::note(
          "{} not tuned, since {:g} s were over: cuBLASLt's first choice is taken, and the next start goes on with "
          "them (kernels.tuning = \"max\" has no limit)",
          counted(tuned_.left, "product"), kTuningBudget);
    tuned_ = {};
  }

 private:
  struct Planned {
    GemmPlan plan;
    double seconds = 0;  // of its algorithm; 0: it was not timed
    bool left = false;   // there was no time to tune it
  };

  // Null where the library has no algorithm.
  Planned* find_or_make(const GemmShape& shape, Bits bits, const Launch& launch, std::span<std::byte> bench,
                        std::string& problem) {
    const std::tuple key(shape, bits, tuning_);
    auto it = plans_.find(key);
    if (it == plans_.end()) {
      Planned planned{GemmPlan(handle_.get(), shape)};
      if (!choose(planned, bits, launch, bench)) {
        problem = planned.plan.why_none();
        return nullptr;
      }
      it = plans_.emplace(key, std::move(planned)).first;
    }
    return &it->second;
  }

  // The time of a plan that was not tuned: it is not worth it, or bits must repeat.
  static double seconds_of(const GemmPlan& plan, const Launch& launch, std::string& problem) {
    const std::optional<GemmTrial> trial = GemmTrial::open(plan, launch);
    TimedAlgorithm algorithm{plan.algorithm()};
    if (!trial || !trial->enqueue(algorithm.algorithm)) {
      problem = fmt::format("{} was not timed: {}", plan.shape().str(),
                            trial ? "it cannot be started" : "no memory for its operands");
      return 0;
    }
    algorithm.seconds = trial->time(algorithm, 0);
    return time_in_bursts(*trial, {&algorithm, 1}).front();
  }

  bool choose(Planned& planned, Bits bits, const Launch& launch, std::span<std::byte> bench) {
    GemmPlan& plan = planned.plan;
    const GemmShape& shape = plan.shape();
    const bool tune = tuning_ != Tuning::off && bits == Bits::free && shape.flops() >= kWorthTuning &&
                      !device::cuda::capturing(launch.stream);
    const bool max = tuning_ == Tuning::max;
    const std::string key = fmt::format("{}: {}{}", machine_, shape.str(), max ? " max" : "");
    if (tune) {
      if (const auto known = file_.find(key)) {
        const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(known->algorithm);
        if (plan.accepts(algorithm)) {
          plan.choose(algorithm);
          planned.seconds = known->seconds;
          return true;
        }
      }
    }
    const std::vector<cublasLtMatmulAlgo_t> candidates = tune && max ? plan.all_candidates() : plan.candidates();
    if (candidates.empty()) return false;
    plan.choose(candidates.front());
    if (!tune || candidates.size() == 1) return true;
    Budget& budget = launch.own->of<StartBudgets>().products;
    if (!max && budget.over()) {
      ++tuned_.left;
      return planned.left = true;
    }
    const double begin = steady_seconds();
    const bool preheat = !loaded_ && shape.flops() >= kHeats;
    // No product takes it all: at most a quarter of what is left.
    const double until = max ? INFINITY : begin + std::max(budget.left() / 4, kLeastSearch);
    const auto fastest = budget.spend([&] {
      return fastest_algorithm(plan, candidates, launch, bench, preheat, max ? kAllOfThem : kBestOfThem,
                               [&] { return steady_seconds() >= until; });
    });
    if (fastest) {
      loaded_ = loaded_ || preheat;
      file_.put(key, {std::bit_cast<AlgorithmBytes>(fastest->algorithm), fastest->seconds});
      ++tuned_.products;
      tuned_.best += fastest->seconds;
      tuned_.first += fastest->first_seconds;
      tuned_.took += steady_seconds() - begin;
      plan.choose(fastest->algorithm);
      planned.seconds = fastest->seconds;
      return true;
    }
    log::warn(
        "the product {} was not tuned: no memory for its operands, or no candidate runs; cuBLASLt's first choice is "
        "taken",
        shape.str());
    return true;
  }

  std::mutex mutex_;
  LtHandle handle_ = make_handle();
  std::string machine_ = machine();
  bool off_ = tuning_is_off();
  Tuning tuning_ = off_ ? Tuning::off : Tuning::on;
  TuningFile file_{real_files(), off_ ? Path() : default_tuning_path()};
  std::map<std::tuple<GemmShape, Bits, Tuning>, Planned> plans_;
  bool loaded_ = false;  // the card, by tuning since it was opened
  struct {
    int products = 0, left = 0;            // the latter without the time for it
    double best = 0, first = 0, took = 0;  // seconds
  } tuned_;                                // since tuning was last kept
};

// Elements that 16 bytes hold, where everything begins at 16 bytes, and so do all rows; 0 elsewhere.
std::int64_t vector_of(const Gemm& g) {
  const auto whole = [](const void* p, std::int64_t ld, DType type) {
    return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && ld * static_cast<std::int64_t>(size_of(type)) % 16 == 0;
  };
  const bool aligned = whole(g.a, g.lda, g.input) && whole(g.b, g.ldb, g.input_b) && whole(g.c, g.ldc, g.output) &&
                       whole(g.added, 0, g.output) && whole(g.bias, 0, g.output);
  return aligned ? 16 / static_cast<std::int64_t>(size_of(g.input)) : 0;
}

// The product over `count` of an extent, from `first` on.
Gemm part(Gemm g, std::int64_t Gemm::*extent, std::int64_t first, std::int64_t count) {
  const auto move = [](auto*& p, DType type, std::int64_t elements) {
    const auto address = reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(elements) * size_of(type);
    if (p) p = reinterpret_cast<std::remove_reference_t<decltype(p)>>(address);
  };
  g.*extent = count;
  if (extent != &Gemm::n) move(g.a, g.input, first * ((extent == &Gemm::m) != g.transpose_a ? g.lda : 1));
  if (extent != &Gemm::m) move(g.b, g.input_b, first * ((extent == &Gemm::n) == g.transpose_b ? g.ldb : 1));
  if (extent != &Gemm::k) {
    const std::int64_t elements = first * (extent == &Gemm::m ? g.ldc : 1);
    move(g.c, g.output, elements);
    move(g.added, g.output, elements);
    if (extent == &Gemm::n) move(g.bias, g.output, first);
  }
  return g;
}

// The fast kernels of cuBLASLt take extents of whole vectors alone, even where all rows begin at one: the products of a
// head of 50,257 tokens took 5 to 7 times as long as those of 50,256 (docs/experiments.md). Such an extent is cut, and
// what is left over is a small product of its own. Of a sum it comes first, as the part that bf16 loses least of; the
// library may round the other before it adds them.
template <class Run>
void in_whole_vectors(const Gemm& g, const Run& run) {
  const bool on_tensor_cores = g.input == DType::bf16 || (g.input == DType::f32 && g.how.math == Math::tf32);
  const bool worth_it = on_tensor_cores && g.batch == 1 && GemmShape(g).flops() >= kWorthTuning;
  const std::int64_t vector = worth_it ? vector_of(g) : 0;
  for (const auto extent : {&Gemm::m, &Gemm::n, &Gemm::k}) {
    const std::int64_t left = vector > 0 ? g.*extent % vector : 0, whole = g.*extent - left;
    if (left == 0 || whole == 0) continue;
    Gemm vectors = part(g, extent, 0, whole);
    if (extent == &Gemm::k) {
      vectors.beta = 1;
      vectors.added = vectors.bias = nullptr;  // the part before has them
    }
    in_whole_vectors(part(g, extent, whole, left), run);
    return in_whole_vectors(vectors, run);
  }
  run(g);
}

}  // namespace

void gemm(const Gemm& g, const device::cuda::Launch& launch) {
  if (g.m == 0 || g.n == 0) return;
  in_whole_vectors(
      g, [&](const Gemm& p) { launch.own->of<Plans>().find(GemmShape(p), p.how.bits, launch).run(p, launch); });
}

void prepare(const Gemm& g, const device::cuda::Launch& launch, std::span<std::byte> bench) {
  if (g.m == 0 || g.n == 0) return;
  in_whole_vectors(g, [&](const Gemm& p) { launch.own->of<Plans>().prepare(GemmShape(p), p.how.bits, launch, bench); });
}

ProductTime time_of(const Gemm& g, const device::cuda::Launch& launch, bool timed) {
  ProductTime all;
  in_whole_vectors(g, [&](const Gemm& p) {
    const ProductTime time = launch.own->of<Plans>().time(GemmShape(p), p.how.bits, launch, timed);
    all.seconds += time.seconds;
    if (all.problem.empty()) all.problem = time.problem;
  });
  return all;
}

void set_tuning(Tuning tuning, const device::cuda::Launch& launch) { launch.own->of<Plans>().set_tuning(tuning); }

void begin_budgets(const device::cuda::Launch& launch) {
  launch.own->of<Plans>().try_again();
  launch.own->of<StartBudgets>() = {};
}

void keep_tuning(const device::cuda::Launch& launch) { launch.own->of<Plans>().keep_tuning(); }

}  // namespace redline::ops::cuda
