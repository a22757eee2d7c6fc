// Times the kernels that move memory, at the sizes and on the data of whole models, and prints what each reaches of the
// rate of a large copy on the same card, and of a copy that moves as many bytes and is timed in the same way: below 300
// MB the start and the end of a launch count, for a copy as for a kernel. One node of each kind is run again and again
// after a training step has filled the arena: bytes are those that the op must move once (program/planner.cpp). Casts
// to eight bits are timed on arrays of their own, at each model's tokens and width: alone and inside of norms. So is
// AdamW, at each model's parameters, with its moments in fp32, bf16 and eight bits.
//   cuda_kernels_bench [PRESET:BATCH[:fp8] ...]      default: the five models of docs/results.md
//                                                    fp8: with products and the head's gradients in eight bits
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "config/load.h"
#include "device/cuda/device.h"
#include "device/cuda/handles.h"
#include "model/engine.h"
#include "model/family.h"
#include "ops/cuda/kernels.h"
#include "optim/cuda/kernels.h"
#include "perf/peak.h"
#include "program/program.h"

namespace redline {
namespace {

constexpr int kRuns = 20, kRounds = 3;

struct Timed {
  std::string name;
  double bytes = 0, seconds = 0;
  double copy_rate = 0;  // of a copy of as many bytes

  double rate() const { return bytes / seconds; }
};

data::Batch random_batch(const data::BatchShape& shape, std::int64_t vocab) {
  data::Batch batch(shape);
  batch.clear();
  const Random random(3, 1);
  std::vector<std::int32_t> row(static_cast<std::size_t>(shape.seq_len));
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::size_t i = 0; i < row.size(); ++i)
      row[i] = static_cast<std::int32_t>(
          random.below(static_cast<std::uint64_t>(r) << 32 | i, static_cast<std::uint64_t>(vocab)));
    batch.append(row, row[0]);
  }
  return batch;
}

template <class Op>
void launch(const Op& op, const device::cuda::Launch& launch) {
  if constexpr (requires { ops::cuda::run(op, launch); })
    ops::cuda::run(op, launch);
  else if constexpr (requires { optim::cuda::run(op, launch); })
    optim::cuda::run(op, launch);
  else
    fail_machine("{} is for several ranks", Op::kName);
}

// The mean of many runs, the best of a few rounds: what stands between two kernels is not the kernel's.
template <class Run>
double time_runs(const Run& run, const device::cuda::Launch& on) {
  const device::cuda::Stopwatch watch(on.stream);
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    run();
    watch.start();
    for (int i = 0; i < kRuns; ++i) run();
    best = std::min(best, watch.stop() / kRuns);
  }
  return best;
}

double time_node(const program::Op& op, program::Executor& executor, const device::cuda::Launch& on) {
  return std::visit(
      [&](const auto& o) {
        const auto bound = o.map([&](std::string_view, program::ValueId id, Access) {
          return id.present() ? executor.tensor(id) : Tensor{};
        });
        return time_runs([&] { launch(bound, on); }, on);
      },
      op);
}

// Copies on the card of any size up to 1 GiB; larger ones are no faster.
class Copies {
 public:
  explicit Copies(device::CudaDevice& device) : on_(device.launch()) {
    const Random random(5, 1);  // no zeros: they are cheaper to move
    std::vector<std::uint64_t> piece(1 << 20);
    for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = random.bits(i);
    constexpr std::int64_t kPiece = sizeof piece[0] << 20;
    from_ = device.allocate(kMost), to_ = device.allocate(kMost);
    for (std::int64_t at = 0; at < kMost; at += kPiece) device.copy_in(from_->data() + at, piece.data(), kPiece);
  }
  // Bytes a second of one that moves so many, half of them read and half written.
  double rate(double bytes) const {
    const std::int64_t half = std::clamp<std::int64_t>(static_cast<std::int64_t>(bytes / 2) / 16 * 16, 16, kMost);
    const double seconds = time_runs(
        [&] {
          REDLINE_CUDA(cudaMemcpyAsync(to_->data(), from_->data(), static_cast<std::size_t>(half),
                                       cudaMemcpyDeviceToDevice, on_.stream));
        },
        on_);
    return 2 * static_cast<double>(half) / seconds;
  }

 private:
  static constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const device::cuda::Launch& on_;
  std::unique_ptr<device::Buffer> from_, to_;
};

std::vector<Timed> time_model(const config::Config& config, device::CudaDevice& device, const Copies& copies) {
  const model::LoweringOptions options = model::lowering_options(config, device::Kind::cuda);
  model::Engine engine(config.model, options, device);
  engine.initialise(1);
  engine.upload(random_batch(options.batch, config.model.vocab));
  engine.set_step(0, 1e-4, static_cast<double>(options.batch.tokens()), 0);
  engine.micro_step(true);
  engine.update();
  device.wait();
  std::map<std::string, std::vector<const program::Node*>> kinds;
  for (const std::string_view name : {model::kFirst, model::kUpdate})
    for (const program::Node& node : engine.programs().find(name).nodes)
      if (node.cost.flops_per_pair == 0 && (node.cost.flops == 0 || program::name_of(node.op) == "lm_loss"))
        kinds[std::string(program::name_of(node.op))].push_back(&node);
  std::vector<Timed> timed;
  for (const auto& [name, nodes] : kinds) {
    const program::Node& node = *nodes[nodes.size() / 2];  // of a layer in the middle
    const double seconds = time_node(node.op, engine.executor(), device.launch());
    timed.push_back({name, node.cost.bytes, seconds, copies.rate(node.cost.bytes)});
  }
  return timed;
}

// Arrays on the card, of numbers between 1/2 and 1 of either sign, whether read as bf16 or as fp32.
class Arrays {
 public:
  explicit Arrays(device::CudaDevice& device) : device_(device), piece_(std::size_t{1} << 21) {
    const Random random(7, 1);
    for (std::size_t i = 0; i < piece_.size(); ++i)
      piece_[i] = static_cast<std::uint16_t>((random.bits(i) & 0x807Fu) | 0x3F00u);
  }
  Tensor make(DType dtype, const Shape& shape) {
    Tensor t{nullptr, dtype, shape};
    buffers_.push_back(device_.allocate(t.bytes()));
    t.data = buffers_.back()->data();
    const auto piece = static_cast<std::int64_t>(piece_.size() * sizeof piece_[0]);
    for (std::int64_t at = 0; at < t.bytes(); at += piece)
      device_.copy_in(t.as<std::byte>() + at, piece_.data(), std::min(piece, t.bytes() - at));
    return t;
  }
  Tensor scale() {
    const ops::Fp8Scale one{.inverse = 1, .scale = 1, .next = 0, .amax = 0, .history = {}};
    const Tensor t = make(DType::u8, {static_cast<std::int64_t>(sizeof one)});
    device_.copy_in(t.data, &one, sizeof one);
    return t;
  }

 private:
  device::CudaDevice& device_;
  std::vector<std::uint16_t> piece_;
  std::vector<std::unique_ptr<device::Buffer>> buffers_;
};

// As program/planner.cpp counts, for an op over arrays.
template <class Op>
double bytes_of(const Op& op) {
  double bytes = 0;
  op.map([&](std::string_view name, const Tensor& t, Access access) {
    if (t.present() && name != "partial") bytes += static_cast<double>(t.bytes()) * (access == Access::update ? 2 : 1);
    return 0;
  });
  return bytes;
}

std::vector<Timed> time_casts(std::int64_t n, std::int64_t d, device::CudaDevice& device, const Copies& copies) {
  Arrays arrays(device);
  const Tensor absent, residual = arrays.make(DType::bf16, {n, d}), branch = arrays.make(DType::bf16, {n, d});
  const Tensor sum = arrays.make(DType::bf16, {n, d}), y = arrays.make(DType::bf16, {n, d});
  const Tensor weight = arrays.make(DType::bf16, {d}), rstd = arrays.make(DType::f32, {n});
  const Tensor dweight = arrays.make(DType::f32, {d}), partial = arrays.make(DType::f32, {ops::kRowGroups, d});
  const Tensor linear = arrays.make(DType::bf16, {4 * d, d});
  const Tensor linear_rows = arrays.make(DType::e4m3, {4 * d, d});
  const Tensor linear_columns = arrays.make(DType::e4m3, {d, 4 * d});
  const Tensor scale = arrays.scale(), amax = arrays.make(DType::f32, {1});
  const auto copies_in = [&](DType dtype) {
    return ops::Fp8Copies<Tensor>{arrays.make(dtype, {n, d}), arrays.make(dtype, {d, n}), scale, amax};
  };
  const ops::Fp8Copies<Tensor> e4m3 = copies_in(DType::e4m3), e5m2 = copies_in(DType::e5m2);
  const auto with = [](ops::Fp8Copies<Tensor> to, bool rows, bool columns, bool records) {
    if (!rows) to.rows = {};
    if (!columns) to.columns = {};
    if (!records) to.amax = {};
    return to;
  };
  std::vector<Timed> timed;
  const auto time = [&](std::string_view how, const auto& op) {
    const double bytes = bytes_of(op), seconds = time_runs([&] { launch(op, device.launch()); }, device.launch());
    timed.push_back({fmt::format("{} {}", op.kName, how), bytes, seconds, copies.rate(bytes)});
  };
  struct Way {
    const char* name;
    bool rows, columns;
  };
  constexpr Way kWays[] = {{"rows", true, false}, {"columns", false, true}, {"both", true, true}};
  for (const auto& [name, rows, columns] : kWays) {
    const auto of_norm = with(e4m3, rows, columns, false), of_gradient = with(e5m2, rows, columns, true);
    time(name, ops::Quantize<Tensor>{y, of_gradient});
    time(fmt::format("{}, y", name), ops::AddNorm<Tensor>{residual, branch, weight, sum, y, rstd, 1e-5f, of_norm});
    if (rows) time(name, ops::AddNorm<Tensor>{residual, branch, weight, sum, absent, rstd, 1e-5f, of_norm});
    time(name, ops::AddNormGrad<Tensor>{branch, residual, weight, rstd, y, dweight, partial, true, true, of_gradient});
  }
  time("turned over", ops::Quantize<Tensor>{e4m3.rows, {.columns = e4m3.columns}});
  time("both", ops::QuantizeWeight<Tensor>{linear, linear_rows, linear_columns, scale});
  std::ranges::stable_sort(timed, {}, [](const Timed& t) { return t.name.substr(0, t.name.find(' ')); });
  return timed;
}

// AdamW with each way to keep moments, over as many parameters as the model has, at most a giga. The second moment
// forgets all at once, so that it is no root of a negative number whatever the arrays hold.
std::vector<Timed> time_updates(std::int64_t parameters, device::CudaDevice& device, const Copies& copies) {
  const std::int64_t n = std::min(parameters, std::int64_t{1} << 30) / kCutBlock * kCutBlock;
  std::vector<Timed> timed;
  for (const DType moments : {DType::f32, DType::bf16, DType::u8}) {
    Arrays arrays(device);
    const auto object = [&](const auto& value) {
      const Tensor t = arrays.make(DType::u8, {static_cast<std::int64_t>(sizeof value)});
      device.copy_in(t.data, &value, sizeof value);
      return t;
    };
    const auto scales = [&] { return moments == DType::u8 ? arrays.make(DType::f32, {n / kCutBlock}) : Tensor{}; };
    const optim::AdamW<Tensor> op{.parameters = arrays.make(DType::f32, {n}),
                                  .gradients = arrays.make(DType::f32, {n}),
                                  .moment1 = arrays.make(moments, {n}),
                                  .moment2 = arrays.make(moments, {n}),
                                  .working = arrays.make(DType::bf16, {n}),
                                  .state = object(StepState{.lr = 1e-6f}),
                                  .result = object(UpdateResult{.grad_norm = 1, .grad_scale = 1, .finite = 1}),
                                  .settings = {.beta2 = 0},
                                  .scales1 = scales(),
                                  .scales2 = scales()};
    const double bytes = bytes_of(op), seconds = time_runs([&] { launch(op, device.launch()); }, device.launch());
    timed.push_back({fmt::format("adamw, moments {}", name_of(moments)), bytes, seconds, copies.rate(bytes)});
  }
  return timed;
}

void print(const std::vector<Timed>& timed, double copy) {
  for (const Timed& t : timed)
    std::printf("  %-22s %9.1f us %8.1f MB %8.0f GB/s %6.1f%% %6.1f%%\n", t.name.c_str(), 1e6 * t.seconds,
                1e-6 * t.bytes, 1e-9 * t.rate(), 100 * t.rate() / copy, 100 * t.rate() / t.copy_rate);
}

int run(std::vector<std::string> models) {
  if (models.empty()) {
    models = {"ping-95m:128", "gqa-180m:64",      "cs336-350m:32",      "llama-1.36b:24",
              "qwen3-1.8b:8", "ping-95m:128:fp8", "llama-1.36b:24:fp8", "qwen3-1.8b:8:fp8"};
  }
  if (device::cuda_status().cards.empty()) {
    std::puts("no GPU");
    return 0;
  }
  device::CudaDevice device;
  const double copy = perf::measure_copy_rate(device);
  std::printf("%s, a large copy: %.0f GB/s; shares are of its rate, then of that of a copy of as many bytes\n",
              device.name().c_str(), copy * 1e-9);
  const Copies copies(device);
  for (const std::string& word : models) {
    const bool fp8 = word.ends_with(":fp8");
    const std::string shape = fp8 ? word.substr(0, word.rfind(':')) : word;
    const std::size_t colon = shape.find(':');
    std::vector<std::string> overrides = {"model.dropout=0.1", "train.accumulate=1"};
    if (fp8) overrides.insert(overrides.end(), {"precision.matmul=fp8", "precision.fp8=all", "precision.head=fp8"});
    if (colon != std::string::npos) overrides.push_back("train.batch_size=" + shape.substr(colon + 1));
    const config::Config config = config::load({.file = "", .preset = shape.substr(0, colon), .overrides = overrides});
    std::printf("%s, %lld rows of %lld, products in %s\n", config.preset.c_str(),
                static_cast<long long>(config.train.batch_size), static_cast<long long>(config.train.seq_len),
                config.precision.matmul.c_str());
    print(time_model(config, device, copies), copy);
    if (!fp8)
      print(time_updates(model::lay_out(model::family_of(config.model).table(config.model)).total, device, copies),
            copy);
    print(time_casts(config.train.batch_size * config.train.seq_len, config.model.hidden, device, copies), copy);
  }
  return 0;
}

}  // namespace
}  // namespace redline

int main(int argc, char** argv) { return redline::run(std::vector<std::string>(argv + 1, argv + argc)); }
