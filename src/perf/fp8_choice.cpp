// Lowers the model in bf16 and in fp8, asks for the time of the products of both, and reads what casts move off
// programs with every subset of a linear's three products.
#include "perf/fp8_choice.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "model/family.h"
#include "model/lowering.h"
#include "perf/plan.h"
#include "perf/walk.h"
#include "program/executor.h"
#include "program/program.h"

namespace redline::perf {
namespace {

using model::Fp8Products;
using program::Node;

constexpr int kSubsets = 8;  // of three products; a bit each, in this order
constexpr std::array kProducts = {model::kFp8Forward, model::kFp8Input, model::kFp8Weight};
constexpr double kTie = 0.005;  // of a linear's time in bf16: less is not worth the bits

// Two layers, whose casts stand for those of all layers: one of each kind where some have experts and some are dense.
config::Config sample_of(config::Config config) {
  constexpr std::int64_t kLayers = 2;
  config::Model& m = config.model;
  if (m.layers <= kLayers) return config;
  m.layers = kLayers;
  if (!m.dense_layers.empty()) m.dense_layers = {0};
  return config;
}

double layers_with(std::string_view linear, const config::Config& config) {
  const model::ParameterTable table = model::family_of(config.model).table(config.model);
  return static_cast<double>(std::ranges::count(table, linear, &model::ParameterSpec::fp8));
}

config::Config with_products(config::Config config, std::vector<std::string> products) {
  if (products.empty()) products.emplace_back(model::kNoFp8Products);
  config.precision.fp8_products = std::move(products);
  return config;
}

struct Lowered {
  model::LoweringOptions options;
  model::LoweredModel model;
};
Lowered lowered_for_card(const config::Config& config) {
  Lowered l{model::lowering_options(config, device::Kind::cuda), {}};
  l.model = model::lower(config.model, l.options);
  return l;
}

// The micro-step that most of a step is made of.
std::string_view micro_step(const config::Config& c) {
  return c.train.accumulate > 1 ? model::kAccumulate : model::kFirst;
}

bool is_of_experts(const Node& node) {
  return std::visit([](const auto& op) { return op.kName.starts_with("grouped_"); }, node.op);
}

// All nodes of a product together.
struct Summed {
  double seconds = 0;
  int nodes = 0;
  std::string problem;
};
// Times of products of experts are those that the machine is expected to need: they depend on the split, not on a
// library's algorithm. So are all times where nobody can be asked.
std::map<std::string, Summed> time_products(const config::Config& config, const TimeNodes& time,
                                            const Machine* machine = nullptr) {
  const Lowered l = lowered_for_card(config);
  const program::Program& program = l.model.set.find(micro_step(config));
  std::vector<double> expected(program.nodes.size());
  if (machine)
    expected = node_seconds(l.model.set, program, static_cast<double>(config.train.batch_size),
                            static_cast<double>(config.train.seq_len), *machine);
  std::vector<const Node*> nodes;
  std::vector<double> untimed;  // 0: it is timed
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    if (model::fp8_product_of(l.model.table, l.model.set, node).empty()) continue;
    nodes.push_back(&node);
    untimed.push_back(is_of_experts(node) || !time ? expected[i] : 0);
  }
  const std::vector<NodeSeconds> times =
      time ? time(l.model.set, nodes, machine != nullptr) : std::vector<NodeSeconds>(nodes.size());
  std::map<std::string, Summed> sums;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Summed& sum = sums[model::fp8_product_of(l.model.table, l.model.set, *nodes[i])];
    sum.seconds += times[i].seconds + untimed[i];
    sum.nodes += 1;
    if (sum.problem.empty()) sum.problem = times[i].problem;
  }
  return sums;
}

// Seconds of a micro-step, with its share of the update, in all that is no product of a linear.
double beside_products(const config::Config& c, const Machine& machine) {
  const Lowered l = lowered_for_card(c);
  const auto seconds = [&](std::string_view name) {
    const program::Program& program = l.model.set.find(name);
    std::vector<double> times = node_seconds(l.model.set, program, static_cast<double>(c.train.batch_size),
                                             static_cast<double>(c.train.seq_len), machine);
    for (std::size_t i = 0; i < times.size(); ++i)
      if (!model::fp8_product_of(l.model.table, l.model.set, program.nodes[i]).empty()) times[i] = 0;
    return walk(program, times).end;
  };
  return seconds(micro_step(c)) + seconds(model::kUpdate) / static_cast<double>(c.train.accumulate);
}

std::string in_ms(double seconds) { return fmt::format("{:.3g}", 1e3 * seconds); }

// One linear: the time of each subset of its products in fp8, and the best of them.
class LinearChoice {
 public:
  LinearChoice(const config::Config& config, std::string linear) : config_(config), linear_(std::move(linear)) {}

  std::string name(std::size_t product) const { return fmt::format("{}/{}", linear_, kProducts[product]); }

  void decide(const std::map<std::string, Summed>& bf16, const std::map<std::string, Summed>& fp8,
              const Machine& machine, double beside_bf16) {
    int can = 0;
    for (std::size_t p = 0; p < kProducts.size(); ++p) {
      bf16_[p] = bf16.at(name(p));
      if (const auto it = fp8.find(name(p)); it != fp8.end()) fp8_[p] = it->second;
      if (fp8_[p].nodes > 0 && fp8_[p].problem.empty()) can |= 1 << p;
    }
    const config::Config sample = sample_of(config_);
    const double times = layers_with(linear_, config_) / layers_with(linear_, sample);
    std::array<int, kSubsets> order{0, 1, 2, 4, 3, 5, 6, 7};  // few products first: a tie is theirs
    for (const int subset : order) {
      if ((subset & can) != subset) continue;
      if (subset > 0)
        casts_[index(subset)] = times * (beside_products(with_products(sample, names(subset)), machine) - beside_bf16);
      if (seconds(subset) < seconds(best_) - kTie * seconds(0)) best_ = subset;
    }
  }

  double seconds(int subset) const {
    double sum = casts_[index(subset)];
    for (std::size_t p = 0; p < kProducts.size(); ++p) sum += (subset >> p & 1 ? fp8_[p] : bf16_[p]).seconds;
    return sum;
  }
  int best() const { return best_; }
  std::vector<std::string> names(int subset) const {
    std::vector<std::string> all;
    for (std::size_t p = 0; p < kProducts.size(); ++p)
      if (subset >> p & 1) all.push_back(name(p));
    return all;
  }

  // The reason why a product was left to bf16, for one layer. Empty where its shape was refused, which is said
  // elsewhere.
  std::string why_not(std::size_t p) const {
    if (fp8_[p].nodes == 0) return "";
    if (!fp8_[p].problem.empty()) return fp8_[p].problem;
    const double casts = casts_[index(best_ | 1 << p)] - casts_[index(best_)];
    return fmt::format("{} ms against {}", in_ms(bf16_[p].seconds / bf16_[p].nodes),
                       in_ms((fp8_[p].seconds + casts) / fp8_[p].nodes));
  }

 private:
  static std::size_t index(int subset) { return static_cast<std::size_t>(subset); }

  const config::Config& config_;
  std::string linear_;
  std::array<Summed, 3> bf16_, fp8_;
  std::array<double, kSubsets> casts_{};
  int best_ = 0;
};

}  // namespace

Fp8Choice take_possible(const config::Config& config, const std::vector<std::string>& products, const TimeNodes& time) {
  const std::map<std::string, Summed> sums = time_products(with_products(config, products), time);
  Fp8Choice choice;
  std::vector<std::string> taken;
  for (const std::string& name : products) {
    const auto it = sums.find(name);
    if (it != sums.end() && !it->second.problem.empty())
      choice.reasons.why[name] = it->second.problem;
    else
      taken.push_back(name);
  }
  const bool nothing = taken.empty() && !products.empty();
  choice.config = with_products(config, std::move(taken));
  if (nothing) choice.config.precision.head = "bf16";  // nor is the head's
  return choice;
}

Fp8Choice take_faster(const config::Config& config, const Machine& machine, const TimeNodes& time) {
  const model::Fp8Candidates candidates = model::fp8_candidates(model::family_of(config.model).table(config.model),
                                                                config.train.batch_size * config.train.seq_len);
  const config::Config none = with_products(config, {}), all = with_products(config, candidates.products);
  const std::map<std::string, Summed> possible = time_products(all, time);
  const bool any = std::ranges::any_of(possible, [](const auto& sum) { return sum.second.problem.empty(); });
  if (!any) return take_possible(config, candidates.products, time);  // nothing to time
  // Those that a run rather takes come first: where the time for tuning ends, they have it.
  const std::map<std::string, Summed> fp8 = time_products(all, time, &machine),
                                      bf16 = time_products(none, time, &machine);
  const double beside_bf16 = beside_products(sample_of(none), machine);

  Fp8Choice choice;
  std::vector<std::string> taken;
  double before = 0, after = 0;
  for (const std::string& linear : candidates.linears) {
    LinearChoice of(config, linear);
    of.decide(bf16, fp8, machine, beside_bf16);
    before += of.seconds(0);
    after += of.seconds(of.best());
    std::ranges::copy(of.names(of.best()), std::back_inserter(taken));
    for (std::size_t p = 0; p < kProducts.size(); ++p)
      if (const std::string why = of.why_not(p); !(of.best() >> p & 1) && !why.empty())
        choice.reasons.why[of.name(p)] = why;
  }
  choice.reasons.sum = fmt::format("{} ms of a micro-batch instead of {}, casts included", in_ms(after), in_ms(before));
  choice.config = with_products(config, std::move(taken));
  return choice;
}

Fp8Choice settle_fp8(const config::Config& config, device::Device& device, bool measure) {
  if (config.precision.matmul != "fp8") return {config};
  const Fp8Products now = model::fp8_products(config);
  const std::vector<std::string>& named = config.precision.fp8_products;
  if (device.kind() == device::Kind::cpu) return {named.empty() ? with_products(config, now.taken) : config};
  if (!measure) {
    Fp8Choice open{config};
    if (named.empty() && config.precision.fp8 == "auto")
      open.reasons.sum = "of which the faster ones are taken once it runs";
    return open;
  }
  program::tune_products(device, config.kernels.tuning);
  const TimeNodes time = time_on_card(device);
  if (named.empty() && config.precision.fp8 == "auto" && !config.kernels.deterministic)
    return take_faster(config, machine_of(device), time);
  Fp8Choice choice = take_possible(config, now.taken, time);
  if (!named.empty() && choice.reasons.why.empty()) choice.config = config;  // as it was written
  return choice;
}

Fp8Choice expect_fp8(const config::Config& config, const Machine& machine) {
  const config::Config possible = as_possible(config, machine);
  const config::Precision& p = possible.precision;
  const bool chooses = p.matmul == "fp8" && p.fp8 == "auto" && p.fp8_products.empty() && !config.kernels.deterministic;
  return chooses && machine.kind == device::Kind::cuda ? take_faster(possible, machine) : Fp8Choice{possible};
}

config::Config adopt_fp8_products(const config::Config& config, const config::Config& run) {
  config::Config c = config;
  const config::Precision &had = run.precision, &has = config.precision;
  const config::Origins& o = config.origins;
  if (has.matmul != "fp8" || o.on_command_line("precision.fp8_products")) return c;
  if (o.on_command_line("precision.fp8")) c.precision.fp8_products.clear();
  if (c.precision.fp8_products.empty() && had.matmul == "fp8" && had.fp8 == has.fp8)
    c.precision.fp8_products = had.fp8_products;
  return c;
}

}  // namespace redline::perf
