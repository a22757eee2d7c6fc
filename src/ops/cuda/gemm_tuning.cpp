// The fastest of several algorithms, by time: the heuristic's first guess often is not, and near its guesses lie others
// that it does not name. All are run once; finalists then take turns for several rounds, since a card's clock changes
// with its power and heat. The last few take turns on a loaded card, for long enough that its power cap counts: large
// products run at three quarters of the clock there, and what is fastest in a burst need not be. Operands are random
// (zeros run up to 20% faster). The tuning cache is
// {"format": 2, "products": {"card, version: product": {"algorithm": "128 digits", "seconds": 0.001}}}.
#include "ops/cuda/gemm_tuning.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "base/small_floats.h"
#include "device/cuda/handles.h"
#include "io/json.h"
#include "io/new_folder.h"

namespace redline::ops::cuda {
namespace {

using device::cuda::Stopwatch;

constexpr double kFirstLook = 3e-4, kRound = 2e-3;  // seconds that an algorithm runs, at least once
constexpr int kMostRuns = 20, kRounds = 3;
constexpr double kPreheat = 0.7;  // seconds until a card runs at the clock that its power cap leaves
constexpr int kLoadedRuns = 6, kLoadedRounds = 2;
// Seconds from which on a run is long: it loads the card by itself, and says in a run or two what others say in many.
// The head of a large vocabulary would else take half of all the time.
constexpr double kLong = 5e-3;
constexpr int kLongRuns = 2;

// A piece of random numbers of the type, copied over the whole array.
void fill_randomly(std::byte* array, DType type, std::int64_t elements, cudaStream_t stream) {
  constexpr std::int64_t kPiece = 1 << 16;
  const auto size = static_cast<std::int64_t>(size_of(type)), bytes = elements * size;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(elements, kPiece) * size));
  const Random random(0, 0);
  for (std::size_t i = 0; i < piece.size() / static_cast<std::size_t>(size); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(random.uniform(i)) - 0.5f);
    if (type == DType::bf16)
      reinterpret_cast<std::uint16_t*>(piece.data())[i] = static_cast<std::uint16_t>(bits >> 16);
    else if (is_fp8(type))
      reinterpret_cast<std::uint8_t*>(piece.data())[i] = fp8_from_f32(std::bit_cast<float>(bits), fp8_format(type));
    else
      reinterpret_cast<std::uint32_t*>(piece.data())[i] = bits;
  }
  auto filled = static_cast<std::int64_t>(piece.size());
  REDLINE_CUDA(cudaMemcpyAsync(array, piece.data(), piece.size(), cudaMemcpyHostToDevice, stream));
  while (filled < bytes) {
    const std::int64_t more = std::min(filled, bytes - filled);
    REDLINE_CUDA(
        cudaMemcpyAsync(array + filled, array, static_cast<std::size_t>(more), cudaMemcpyDeviceToDevice, stream));
    filled += more;
  }
  REDLINE_CUDA(cudaStreamSynchronize(stream));
}

constexpr int kFormat = 2;           // 1 had no seconds
constexpr std::size_t kDigits = 16;  // of a word

std::string to_text(const AlgorithmBytes& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm) text += hex64(word);
  return text;
}

AlgorithmBytes from_text(const std::string& text) {
  AlgorithmBytes algorithm{};
  if (text.size() != kDigits * algorithm.size()) fail_user("an algorithm of {} digits", text.size());
  for (std::size_t i = 0; i < algorithm.size(); ++i) {
    const char* begin = text.data() + i * kDigits;
    const auto [end, error] = std::from_chars(begin, begin + kDigits, algorithm[i], 16);
    if (error != std::errc() || end != begin + kDigits) fail_user("an algorithm that is not hexadecimal");
  }
  return algorithm;
}

}  // namespace

std::optional<GemmTrial> GemmTrial::open(const GemmPlan& plan, const Launch& launch, std::span<std::byte> bench) {
  const GemmShape& s = plan.shape();
  GemmTrial trial(plan, launch);
  struct Operand {
    std::byte*& at;
    DType type;
    std::int64_t elements;
    std::int64_t bytes() const { return aligned(elements * static_cast<std::int64_t>(size_of(type))); }
  };
  const Operand random[] = {{trial.a_, s.input, s.span_a()},
                            {trial.b_, s.input_b, s.span_b()},
                            {trial.c_, s.output, s.span_c()},
                            {trial.scale_, DType::f32, 1},
                            {trial.bias_, s.output, s.bias ? s.n : 0}};
  std::int64_t bytes = s.workspace;
  for (const Operand& operand : random) bytes += operand.bytes();
  std::byte* next = bench.data();
  if (std::ssize(bench) < bytes) {
    trial.own_ = device::cuda::try_device_bytes(static_cast<std::size_t>(bytes));
    if (!(next = trial.own_.get())) return std::nullopt;
  }
  for (const Operand& operand : random) {
    if (operand.elements > 0) fill_randomly(operand.at = next, operand.type, operand.elements, launch.stream);
    next += operand.bytes();
  }
  trial.workspace_ = next;
  return trial;
}

bool GemmTrial::enqueue(const cublasLtMatmulAlgo_t& algorithm) const {
  const float* const scale = reinterpret_cast<const float*>(scale_);
  GemmPlan::Operands with{a_, b_, c_, workspace_, scale, scale};
  with.bias = bias_;
  return plan_->try_run(algorithm, with, launch_) == CUBLAS_STATUS_SUCCESS;
}

double GemmTrial::time(const TimedAlgorithm& timed, double for_seconds) const {
  const double wanted = for_seconds / std::max(timed.seconds, 1e-7);
  const int runs = static_cast<int>(std::clamp<double>(wanted, 1, kMostRuns));
  const Stopwatch watch(launch_.stream);
  watch.start();
  bool started = true;
  for (int i = 0; i < runs; ++i) started &= enqueue(timed.algorithm);
  const double seconds = watch.stop() / runs;
  return started ? seconds : INFINITY;
}

std::optional<TimedAlgorithm> GemmTrial::first_look(const cublasLtMatmulAlgo_t& algorithm) const {
  // The first run also loads its kernel.
  if (!enqueue(algorithm)) return std::nullopt;
  TimedAlgorithm timed{algorithm};
  timed.seconds = time(timed, 0);
  if (timed.seconds < kFirstLook) timed.seconds = time(timed, kFirstLook);
  return timed;
}

std::vector<TimedAlgorithm> GemmTrial::finalists(std::span<const cublasLtMatmulAlgo_t> candidates,
                                                 const SearchWidth& width, const IsOver& is_over) const {
  std::vector<TimedAlgorithm> seen;
  const auto look_at = [&](std::span<const cublasLtMatmulAlgo_t> algorithms) {
    for (const cublasLtMatmulAlgo_t& algorithm : algorithms) {
      if (!seen.empty() && is_over()) return;
      if (const auto timed = first_look(algorithm)) seen.push_back(*timed);
    }
  };
  const auto sort_seen = [&] { std::ranges::sort(seen, {}, &TimedAlgorithm::seconds); };
  look_at(candidates);
  if (seen.empty()) return seen;
  const TimedAlgorithm first = seen.front();
  sort_seen();
  const std::ptrdiff_t most_parents = seen.front().seconds > kLong ? width.parents_of_long : width.parents;
  const std::vector<TimedAlgorithm> parents(seen.begin(), seen.begin() + std::min(most_parents, std::ssize(seen)));
  for (const TimedAlgorithm& parent : parents) look_at(plan_->variants(parent.algorithm));
  sort_seen();
  if (seen.size() > width.finalists)
    seen.erase(seen.begin() + static_cast<std::ptrdiff_t>(width.finalists), seen.end());
  seen.push_back(first);
  return seen;
}

void GemmTrial::load_card(const TimedAlgorithm& timed, double seconds) const {
  for (double done = 0; done < seconds;) done += kMostRuns * time(timed, INFINITY);
}

std::vector<double> time_in_bursts(const GemmTrial& trial, std::span<const TimedAlgorithm> finalists) {
  return time_in_turns(trial, finalists, kRounds, [](const TimedAlgorithm&) { return kRound; });
}

std::optional<Fastest> fastest_algorithm(const GemmPlan& plan, std::span<const cublasLtMatmulAlgo_t> candidates,
                                         const Launch& launch, std::span<std::byte> bench, bool card_is_cold,
                                         const SearchWidth& width, const IsOver& is_over) {
  const std::optional<GemmTrial> trial = GemmTrial::open(plan, launch, bench);
  if (!trial) return std::nullopt;
  std::vector<TimedAlgorithm> finalists = trial->finalists(candidates, width, is_over);
  if (finalists.empty()) return std::nullopt;
  const TimedAlgorithm first = finalists.back();
  const bool is_long = finalists.front().seconds > kLong;
  if (!is_long) {
    const std::vector<double> bursts = time_in_bursts(*trial, finalists);
    for (std::size_t i = 0; i < finalists.size(); ++i) finalists[i].seconds = bursts[i];
  }
  std::ranges::sort(finalists, {}, &TimedAlgorithm::seconds);
  if (finalists.size() > width.last_finalists)
    finalists.erase(finalists.begin() + static_cast<std::ptrdiff_t>(width.last_finalists), finalists.end());
  finalists.push_back(first);
  if (card_is_cold) trial->load_card(finalists.front(), kPreheat);
  const int runs = is_long ? kLongRuns : kLoadedRuns;
  const std::vector<double> seconds =
      time_in_turns(*trial, finalists, kLoadedRounds, [&](const TimedAlgorithm& t) { return runs * t.seconds; });
  const auto best = std::ranges::min_element(seconds);
  return Fastest{finalists[static_cast<std::size_t>(best - seconds.begin())].algorithm, *best, seconds.back()};
}

TuningFile::TuningFile(FileSystem& files, Path path) : files_(files), path_(std::move(path)), entries_(load(true)) {}

std::optional<TunedProduct> TuningFile::find(const std::string& key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? std::nullopt : std::optional(it->second);
}

void TuningFile::put(const std::string& key, const TunedProduct& product) { entries_[key] = unsaved_[key] = product; }

void TuningFile::save() {
  if (unsaved_.empty() || path_.empty()) return;
  const Entries added = std::exchange(unsaved_, {});  // kept or not: one warning
  try {
    files_.create_folders(path_.parent_path());
    const io::FileLock lock(path_.string() + ".lock",
                            io::FileLock::IfBusy::wait);  // runs that start together tune together
    Entries all = load(false);  // another may have added its own; the first load warned of damage
    for (const auto& [key, product] : added) all[key] = product;
    io::Json products = io::Json::object();
    for (const auto& [key, p] : all) products[key] = {{"algorithm", to_text(p.algorithm)}, {"seconds", p.seconds}};
    files_.replace(path_, io::Json{{"format", kFormat}, {"products", std::move(products)}}.dump(1) + "\n");
  } catch (const std::exception& e) {
    log::warn("tuned products are not kept for the next run: {}", e.what());
  }
}

TuningFile::Entries TuningFile::load(bool warn) const {
  Entries entries;
  try {
    if (path_.empty() || !files_.exists(path_)) return entries;
    const std::string name = path_.string();
    const io::Json json = io::read_json(files_, path_);
    if (io::integer_at(json, "format", name) != kFormat) return entries;  // of another redline
    for (const auto& [key, value] : json.at("products").items())
      entries[key] = {from_text(value.at("algorithm").get<std::string>()), value.at("seconds").get<double>()};
  } catch (const std::exception& e) {
    if (warn) log::warn("the tuning cache {} is ignored: {}", path_.string(), e.what());
    entries.clear();
  }
  return entries;
}

Path default_tuning_path() {
  const auto folder = [](const char* variable) -> Path {
    const char* value = std::getenv(variable);
    return value && *value ? Path(value) : Path();
  };
  Path cache = folder("XDG_CACHE_HOME");
  if (cache.empty() && !folder("HOME").empty()) cache = folder("HOME") / ".cache";
  return cache.empty() ? Path() : cache / "redline" / "tuning.json";
}

}  // namespace redline::ops::cuda
