// Reads a case, refuses what no model could be compared with, and runs it: logits, one micro-step for loss and
// gradients, then the oracle's AdamW steps. In eight bits a card's step is also compared with the CPU's, cast by cast.
#include "infer/verify.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "base/small_floats.h"
#include "data/batch.h"
#include "infer/load.h"
#include "io/safetensors.h"
#include "model/family.h"
#include "model/fp8_linears.h"
#include "ops/experts.h"
#include "ops/fp8.h"
#include "program/passes.h"
#include "program/program.h"

namespace redline::infer {
namespace {

struct OracleCase {
  Checkpoint checkpoint;
  std::shared_ptr<const io::SafetensorsReader> oracle;
  data::Batch batch;  // all documents packed into one row

  std::vector<float> floats(const std::string& key) const { return oracle->at(key).to_f32(); }
  // Of all tensors whose names begin so, as one.
  double norm_of(std::string_view prefix) const {
    double squares = 0;
    for (const io::StoredTensor& t : oracle->tensors())
      if (t.name.starts_with(prefix))
        for (const float e : t.to_f32()) squares += static_cast<double>(e) * static_cast<double>(e);
    return std::sqrt(squares);
  }
  std::int64_t train_steps() const { return oracle->at("train_losses").elements(); }
};

constexpr const char* kOracle = "oracle.safetensors";
// Of a model with experts, for the first document alone: the balance of loads, the loss with it, and its gradients. All
// else of a case is without.
constexpr const char *kAuxLoss = "aux.loss", *kAuxTotal = "aux.total", *kAuxGradients = "aux.grad.";

constexpr const char* kChoices = "experts of tokens";

using Extents = std::vector<std::int64_t>;

void require_shape(const io::StoredTensor& t, const Extents& wanted, const std::string& file) {
  if (t.shape != wanted)
    fail_user("{}: {} has shape [{}]; it must be [{}]", file, t.name, fmt::join(t.shape, ", "),
              fmt::join(wanted, ", "));
}

std::vector<std::int32_t> read_vector(const io::SafetensorsReader& oracle, const char* key, const std::string& file) {
  const io::StoredTensor& t = oracle.at(key);
  if (t.shape.size() != 1) fail_user("{}: {} must have one dimension", file, key);
  return t.to_i32();
}

// Empty documents hold nothing to compute and are left out.
data::Batch pack(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& offsets, std::int64_t vocab,
                 std::int64_t multiple, const std::string& file) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  if (n == 0) fail_user("{}: tokens is empty", file);
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != n || !std::ranges::is_sorted(offsets))
    fail_user("{}: doc_offsets must rise from 0 to the number of tokens, {}", file, n);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocab)
      fail_user("{}: tokens[{}] is {}, outside the vocabulary of {}", file, i, tokens[i], vocab);

  const std::int64_t documents = std::max<std::int64_t>(static_cast<std::int64_t>(offsets.size()) - 1, 1);
  data::Batch batch({1, (n + multiple - 1) / multiple * multiple, documents});
  batch.clear();
  for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
    const auto begin = static_cast<std::size_t>(offsets[d]), end = static_cast<std::size_t>(offsets[d + 1]);
    if (begin < end) batch.append(std::span(tokens).subspan(begin, end - begin));
  }
  if (batch.pairs == 0) fail_user("{}: no document has two tokens, so there is no loss to compare", file);
  return batch;
}

// "grad." or "final.": every parameter of the model and nothing else, or none at all.
void check_names(const io::SafetensorsReader& oracle, const std::string& prefix, const model::FlatLayout& layout,
                 const std::string& file) {
  std::map<std::string, const io::StoredTensor*> given;
  for (const io::StoredTensor& t : oracle.tensors())
    if (t.name.starts_with(prefix)) given[t.name.substr(prefix.size())] = &t;
  if (given.empty()) return;
  for (const model::StoredParameter& p : layout.stored) {
    const auto it = given.find(p.name);
    if (it == given.end()) fail_user("{}: there is no {}{}", file, prefix, p.name);
    require_shape(*it->second, p.shape, file);
    given.erase(it);
  }
  if (!given.empty()) fail_user("{}: the model has no parameter for {}{}", file, prefix, given.begin()->first);
}

OracleCase read_files(FileSystem& files, const Path& folder, std::int64_t multiple) {
  if (!files.exists(folder)) fail_user("{}: there is no such folder", folder.string());
  const auto require = [&](bool there, const char* name) {
    if (!there) fail_user("{}: there is no {}, which a case must have", folder.string(), name);
  };
  require(files.exists(folder / "config.json"), "config.json");
  require(io::has_weights(files, folder), io::kWeightsFile);
  require(files.exists(folder / kOracle), kOracle);

  const std::string file = (folder / kOracle).string();
  Checkpoint checkpoint = read_checkpoint(files, folder);
  const config::Model& m = checkpoint.model;
  auto oracle = std::make_shared<const io::SafetensorsReader>(folder / kOracle);
  data::Batch batch =
      pack(read_vector(*oracle, "tokens", file), read_vector(*oracle, "doc_offsets", file), m.vocab, multiple, file);

  require_shape(oracle->at("logits"), {batch.real_tokens, m.vocab}, file);
  if (oracle->at("loss").elements() != 1) fail_user("{}: loss must be one number", file);
  const io::StoredTensor& losses = oracle->at("train_losses");
  if (losses.shape.size() != 1) fail_user("{}: train_losses must have one dimension", file);
  require_shape(oracle->at("grad_norms"), losses.shape, file);
  check_size(checkpoint);
  const model::FlatLayout layout = model::lay_out(model::family_of(m).table(m));
  for (const char* prefix : {"grad.", "final.", kAuxGradients}) check_names(*oracle, prefix, layout, file);
  if (const bool aux = oracle->find(kAuxLoss); aux != (m.experts > 0))
    fail_user("{}: there is {} {}, and the model has {} experts", file, aux ? "an" : "no", kAuxLoss, m.experts);
  return {std::move(checkpoint), std::move(oracle), std::move(batch)};
}

// A missing file or key, a misshapen tensor, a token outside the vocabulary or offsets that do not cover the tokens are
// one UserError. The batch has a tail of padding up to a multiple of `tokens`.
OracleCase read_case(FileSystem& files, const Path& folder, std::int64_t tokens) {
  try {
    return read_files(files, folder, tokens);
  } catch (const MachineError& e) {  // a file of the case that cannot be opened is the user's to mend
    throw UserError(e.what());
  }
}

using program::Fp8Written;
using program::ValueId;
using Codes = std::vector<std::uint8_t>;

Codes read(model::Engine& engine, ValueId copy) {
  Codes codes(static_cast<std::size_t>(engine.programs().at(copy).bytes()));
  engine.executor().read(copy, codes);
  return codes;
}
void write(model::Engine& engine, ValueId copy, const Codes& codes) { engine.executor().write(copy, codes); }

// A copy by columns: of all rows, or of so many at a time with zeros behind the last (ops/fp8.h).
class Columns {
 public:
  Columns(model::Engine& engine, ValueId copy) {
    const Shape& shape = engine.programs().at(copy).shape;
    blocks_ = shape.rank() == 3 ? static_cast<std::size_t>(shape[0]) : 1;
    columns_ = static_cast<std::size_t>(shape[-2]);
    rows_ = static_cast<std::size_t>(shape[-1]);
  }
  Codes by_rows(const Codes& codes) const {
    Codes out(codes.size());
    for (std::size_t i = 0; i < blocks_ * rows_; ++i)
      for (std::size_t j = 0; j < columns_; ++j) out[i * columns_ + j] = codes[place(i, j)];
    return out;
  }
  Codes of_rows(const Codes& codes) const {
    Codes out(blocks_ * columns_ * rows_);
    for (std::size_t i = 0; i < codes.size() / columns_; ++i)
      for (std::size_t j = 0; j < columns_; ++j) out[place(i, j)] = codes[i * columns_ + j];
    return out;
  }

 private:
  std::size_t place(std::size_t row, std::size_t column) const {
    return (row / rows_ * columns_ + column) * rows_ + row % rows_;
  }

  std::size_t blocks_, columns_, rows_;  // rows of a block
};

// By rows, whichever is there.
Codes rows_of(model::Engine& engine, const Fp8Written& w) {
  return w.rows.present() ? read(engine, w.rows) : Columns(engine, w.columns).by_rows(read(engine, w.columns));
}

std::vector<float> numbers(const Codes& codes, DType dtype) {
  const auto of = fp8_numbers(fp8_format(dtype));
  std::vector<float> out;
  for (const std::uint8_t code : codes) out.push_back(of[code]);
  return out;
}

// The experts that the tokens of each router took in a micro-step. Rounding turns near ties around: a token goes to
// another expert then, whose gradient gets or loses a whole row, and no tolerance of rounding covers that. So the
// choices of one step are given to another before their gradients are compared, and the share of those that differed is
// compared by itself. Of three oracles 3 to 5% differ in eight bits; with their own choices gradients of experts, and
// of two of them the logits, were outside.
class Choices {
 public:
  using Node = program::Node;

  void keep(model::Engine& engine, const Node& node) {
    const auto* const route = forward_route(node);
    if (!route) return;
    std::vector<std::int32_t>& of = routers_.emplace_back(elements(engine, route->choices));
    engine.executor().read(route->choices, of);
  }

  // The choices that were kept take the place of the step's own, with the weights that the step's router gives them.
  void give(model::Engine& engine, const Node& node) {
    const auto* const route = forward_route(node);
    if (!route) return;
    const std::vector<std::int32_t>& kept = routers_.at(given_++);
    std::vector<std::int32_t> own(kept.size());
    std::vector<float> probs(elements(engine, route->probs)), weights(kept.size());
    engine.executor().read(route->choices, own);
    engine.executor().read(route->probs, probs);
    const auto k = static_cast<std::size_t>(engine.model().experts_per_token),
               experts = static_cast<std::size_t>(engine.model().experts);
    for (std::size_t first = 0; first < kept.size(); first += k) {
      float sum = 0;
      for (std::size_t j = first; j < first + k; ++j) {
        if (kept[j] < 0) continue;
        const auto begin = own.begin() + static_cast<std::ptrdiff_t>(first);
        const bool chosen =
            std::find(begin, begin + static_cast<std::ptrdiff_t>(k), kept[j]) != begin + static_cast<std::ptrdiff_t>(k);
        all_ += 1;
        differing_ += chosen ? 0 : 1;
        weights[j] = probs[first / k * experts + static_cast<std::size_t>(kept[j])];
        sum += weights[j];
      }
      for (std::size_t j = first; route->normalise && sum > 0 && j < first + k; ++j) weights[j] /= sum;
    }
    engine.executor().write(route->choices, kept);
    engine.executor().write(route->weights, weights);
  }

  void begin() {  // a run that is given them
    given_ = 0;
    all_ = differing_ = 0;
  }
  double differing() const { return all_ > 0 ? differing_ / all_ : 0; }

 private:
  static const ops::Route<ValueId>* forward_route(const Node& node) {
    return node.phase == program::Phase::forward ? std::get_if<ops::Route<ValueId>>(&node.op) : nullptr;
  }
  static std::size_t elements(model::Engine& engine, ValueId value) {
    return static_cast<std::size_t>(engine.programs().at(value).shape.elements());
  }

  std::vector<std::vector<std::int32_t>> routers_;
  std::size_t given_ = 0;
  double all_ = 0, differing_ = 0;
};

class Comparing {
 public:
  Comparing(model::Engine& engine, model::Engine& truth) : engine_(engine), truth_(truth) {
    for (const model::Fp8Tensor& t : truth.lowered().fp8) names_[truth.programs().at(t.scale).name] = t.name;
  }

  std::vector<Comparison> step() {
    for (const model::Fp8Tensor& t : engine_.lowered().fp8)
      if (t.copy.present()) copies_[t.name] = read(engine_, t.copy);
    for (const model::Fp8Tensor& t : truth_.lowered().fp8)  // casts of the same weights
      if (t.copy.present())
        compare(t.name, copies_.at(t.name), read(truth_, t.copy), truth_.programs().at(t.copy).dtype);
    engine_.micro_step(true, true, nullptr, [&](const program::Node& node) {
      program::each_fp8_copy(node, [&](const Fp8Written& w) { keep(w); });
      choices_.keep(engine_, node);
    });
    truth_.micro_step(true, true, nullptr, [&](const program::Node& node) {
      program::each_fp8_copy(node, [&](const Fp8Written& w) { compare_and_replace(w); });
      choices_.give(truth_, node);
    });
    if (engine_.model().experts > 0)
      comparisons_.push_back({kChoices, Measure::difference, choices_.differing(), kRoundedTolerances.choices, "cpu"});
    const std::vector loss = {static_cast<float>(engine_.loss_sum())};
    const std::vector true_loss = {static_cast<float>(truth_.loss_sum())};
    add("loss", loss, true_loss, Measure::difference, kRoundedTolerances.forward);
    const std::vector<float> ours = gradients(engine_), theirs = gradients(truth_);
    for (const model::StoredParameter& p : truth_.layout().stored) {
      const auto of = [&](const std::vector<float>& all) {
        return std::span(all).subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.elements));
      };
      add_directed("grad." + p.name, of(ours), of(theirs));
    }
    return std::move(comparisons_);
  }

 private:
  void keep(const Fp8Written& w) {
    const std::string& scale = engine_.programs().at(w.scale).name;
    const auto name = names_.find(scale);
    if (name == names_.end()) return;
    const Codes codes = rows_of(engine_, w);
    const auto [it, is_new] = copies_.try_emplace(name->second, codes);
    if (!is_new)  // made again for the backward pass
      compare(name->second + ", again", codes, it->second, engine_.programs().at(w.any()).dtype);
  }

  void compare_and_replace(const Fp8Written& w) {
    const auto name = names_.find(truth_.programs().at(w.scale).name);
    const auto ours = name == names_.end() ? copies_.end() : copies_.find(name->second);
    if (ours == copies_.end()) return;
    compare(ours->first, ours->second, rows_of(truth_, w), truth_.programs().at(w.any()).dtype);
    if (w.rows.present()) write(truth_, w.rows, ours->second);
    if (w.columns.present()) write(truth_, w.columns, Columns(truth_, w.columns).of_rows(ours->second));
  }

  void compare(const std::string& name, const Codes& ours, const Codes& theirs, DType dtype) {
    add_directed(name, numbers(ours, dtype), numbers(theirs, dtype));
  }
  void add_directed(const std::string& name, std::span<const float> ours, std::span<const float> theirs) {
    add(name, ours, theirs, Measure::direction, kRoundedTolerances.direction);
    add(name, ours, theirs, Measure::length, kRoundedTolerances.length);
  }
  void add(const std::string& name, std::span<const float> ours, std::span<const float> theirs, Measure how,
           double tolerance) {
    comparisons_.push_back({name, how, measure(how, ours, theirs), tolerance, "cpu"});
  }

  static std::vector<float> gradients(model::Engine& engine) {
    const ValueId value = engine.lowered().at(optim::kGradients);
    std::vector<float> all(static_cast<std::size_t>(engine.programs().at(value).shape.elements()));
    engine.executor().read(value, all);
    return all;
  }

  model::Engine &engine_, &truth_;
  std::map<std::string, std::string> names_;  // of tensors, by those of their scales
  std::map<std::string, Codes> copies_;       // of the engine, by rows
  Choices choices_;                           // of the engine
  std::vector<Comparison> comparisons_;
};

// The optimizer of the oracle.
const config::Optim kOptim = {
    .lr = 1e-3, .schedule = "constant", .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1.0};

constexpr std::int64_t kFp8Tokens = 16;  // that products in eight bits want a multiple of

bool in_fp8(const VerifyOptions& options) { return options.precision == "fp8"; }

model::LoweringOptions lowering_options(const OracleCase& c, const std::string& precision, device::Kind kind) {
  config::Config config;
  config.optim = kOptim;
  config.precision.matmul = precision;
  model::LoweringOptions options = model::lowering_options(config, kind);
  options.batch = c.batch.shape;
  options.logits = true;
  const config::Model& m = c.checkpoint.model;
  if (precision == "fp8")
    options.fp8 = model::fp8_candidates(model::family_of(m).table(m), options.batch.tokens()).products;
  return options;
}

bool is_exact(const model::LoweringOptions& o) { return o.compute == DType::f32 && o.products.math == ops::Math::full; }

// A case on a device: gives what it computed by the oracle's keys.
class Run {
 public:
  // `rows` is how many rows a gradient is a sum over, 0 of anything else.
  using Take = std::function<void(const std::string& key, const std::vector<float>& ours, double rows)>;
  Run(const OracleCase& c, device::Device& device, const VerifyOptions& options)
      : case_(c), options_(options), lowering_(lowering_options(c, options.precision, device.kind())) {
    engine_ = load_engine(case_.checkpoint, lowering_, device);
    engine_->upload(case_.batch);
  }
  const model::LoweringOptions& lowering() const { return lowering_; }
  const std::vector<std::string>& absent() const { return absent_; }

  model::Engine& engine() { return *engine_; }
  void set_step(std::int64_t step) {
    engine_->set_step(static_cast<std::uint64_t>(step), kOptim.lr, static_cast<double>(case_.batch.pairs), 0);
  }

  // A case whose loss has the balance of loads in it.
  void run_balanced(const Take& take) {
    tell("gradients of the balance");
    set_step(0);
    gradients();
    const config::Model& m = case_.checkpoint.model;
    const double balance =
        model::router_figures(m, engine_->router_totals(), static_cast<double>(case_.batch.pairs)).balance.value();
    take(kAuxLoss, {static_cast<float>(balance)}, 0);
    take(kAuxTotal, {static_cast<float>(loss() + m.router_aux * balance)}, 0);
    each_stored(kAuxGradients, optim::kGradients, inv_pairs(), take);
  }

  // Where there is a truth, the first step is compared with it.
  void run(const Take& take, Run* truth, std::vector<Comparison>& with_truth) {
    tell("logits");
    take("logits", logits(), 0);
    tell("gradients");
    set_step(0);
    if (in_fp8(options_)) engine_->calibrate();
    if (truth) {  // which has scales before it is given others, or would look for its own
      truth->engine().calibrate();
      take_scales(truth->engine(), *engine_);
    }
    if (options_.before_step) options_.before_step(*engine_);
    if (truth) with_truth = compare_step(*engine_, truth->engine());
    gradients();
    take("loss", {static_cast<float>(loss())}, 0);
    each_stored("grad.", optim::kGradients, inv_pairs(), take);
    train(take);
    each_stored("final.", optim::kParameters, 1, take);
  }

  // The choices of experts that the gradients are taken with, instead of its own: those of the case in fp32 on the CPU.
  void hold_choices(device::Device& cpu) {
    VerifyOptions exact = options_;
    exact.precision = "fp32";
    Run run(case_, cpu, exact);
    run.set_step(0);
    held_.emplace();
    run.engine().micro_step(true, true, nullptr, [&](const program::Node& node) { held_->keep(run.engine(), node); });
  }
  double differing_choices() const { return held_->differing(); }

 private:
  program::NodeWatch giving() {
    if (!held_) return {};
    held_->begin();
    return [&](const program::Node& node) { held_->give(*engine_, node); };
  }
  void gradients() { engine_->micro_step(true, true, nullptr, giving()); }
  std::vector<float> logits() {
    if (!held_) return engine_->logits();
    engine_->executor().run_watched(model::kLogits, giving());
    std::vector<float> out(
        static_cast<std::size_t>(engine_->programs().at(engine_->lowered().logits).shape.elements()));
    engine_->executor().read(engine_->lowered().logits, out);
    return out;
  }
  double inv_pairs() const { return 1.0 / static_cast<double>(case_.batch.pairs); }
  double loss() { return engine_->loss_sum() * inv_pairs(); }
  void tell(const std::string& what) {
    if (options_.progress) options_.progress(what);
  }
  void train(const Take& take) {
    std::vector<float> losses, norms;
    const std::int64_t steps = case_.train_steps();
    for (std::int64_t step = 0; step < steps; ++step) {
      tell(fmt::format("training step {}/{}", step + 1, steps));
      set_step(step);
      engine_->micro_step(true);
      losses.push_back(static_cast<float>(loss()));
      engine_->update();
      engine_->post_result();
      norms.push_back(engine_->take_result().update.grad_norm);
    }
    take("train_losses", losses, 0);
    take("grad_norms", norms, static_cast<double>(case_.batch.pairs));
  }

  // Our values times `scale`, for each parameter that the case has under the prefix.
  void each_stored(const std::string& prefix, std::string_view array, double scale, const Take& take) {
    // A case holds all of a kind or none of it.
    if (!case_.oracle->find(prefix + engine_->layout().stored.front().name)) {
      absent_.push_back(prefix);
      return;
    }
    const float* const values = engine_->executor().tensor(engine_->lowered().at(array)).f32();
    for (const model::StoredParameter& p : engine_->layout().stored) {
      std::vector<float> ours(static_cast<std::size_t>(p.elements));
      engine_->device().copy_out(ours.data(), values + p.offset, p.elements * static_cast<std::int64_t>(sizeof(float)));
      for (float& v : ours) v = static_cast<float>(v * scale);
      take(prefix + p.name, ours, rows_behind(p));
    }
  }
  // An expert has its share of the pairs.
  double rows_behind(const model::StoredParameter& p) const {
    const auto& offsets = engine_->layout().offsets;
    double rows = static_cast<double>(case_.batch.pairs);
    for (std::size_t i = 0; i < offsets.size(); ++i)
      if (p.offset >= offsets[i] && p.offset < offsets[i] + engine_->table()[i].shape.elements())
        rows *= engine_->table()[i].active;
    return rows;
  }

  const OracleCase& case_;
  const VerifyOptions& options_;
  model::LoweringOptions lowering_;
  std::unique_ptr<model::Engine> engine_;
  std::vector<std::string> absent_;
  std::optional<Choices> held_;
};

void compare(Verification& v, const std::string& key, std::span<const float> ours, std::span<const float> reference,
             double rows, const Tolerances& tolerances, double all) {
  const auto add = [&](Measure how, double tolerance) {
    v.comparisons.push_back({key, how, measure(how, ours, reference, all), tolerance});
  };
  const bool gradient = key.starts_with("grad.") || key.starts_with(kAuxGradients);
  const auto of_few = [&](double n) { return 1 + tolerances.scatter / std::sqrt(std::max(n, 1.0)); };
  const double scatter = of_few(static_cast<double>(reference.size())) * of_few(rows);
  if (gradient && tolerances.direction > 0) {
    add(Measure::direction, tolerances.direction * scatter);
    add(Measure::length, tolerances.length * scatter);
  } else if (gradient || key.starts_with("final.")) {
    add(Measure::difference, tolerances.parameters);
  } else {
    add(Measure::difference, key == "grad_norms" ? tolerances.norms * scatter : tolerances.forward);
  }
}

// The first document alone.
data::Batch first_document(const data::Batch& batch, std::int64_t multiple) {
  const std::int64_t n = batch.doc_offsets[1];
  data::Batch first({1, (n + multiple - 1) / multiple * multiple, 1});
  first.clear();
  first.append(std::span(batch.tokens).first(static_cast<std::size_t>(n)));
  return first;
}

// The worst against its tolerance first.
void sort_by_error(std::vector<Comparison>& comparisons) {
  std::ranges::stable_sort(comparisons, std::greater(),
                           [](const Comparison& c) { return std::isnan(c.error) ? INFINITY : c.error / c.tolerance; });
}

}  // namespace

void take_scales(model::Engine& truth, model::Engine& from) {
  for (const model::Fp8Tensor& t : truth.lowered().fp8) {
    for (const model::Fp8Tensor& f : from.lowered().fp8) {
      if (f.name != t.name) continue;
      ops::Fp8Scale entry;
      from.executor().read(f.scale, &entry, sizeof entry);
      truth.executor().write(t.scale, &entry, sizeof entry);
    }
  }
}

std::vector<Comparison> compare_step(model::Engine& engine, model::Engine& truth) {
  return Comparing(engine, truth).step();
}

// A cast leaves numbers off by 2.7% (e4m3) or 5.3% (e5m2) in the root of the mean square, whatever the scale. Errors of
// different casts are independent: along a path their squares add, and a product adds those of its two operands. A
// layer has four products one after the other, forward with both operands in e4m3, backward with gradients in e5m2 and
// weights in e4m3; a gradient of weights is one more of the latter:
//   sigma^2 = layers * (4 * 2 e4m3^2 + 4 * (e4m3^2 + e5m2^2)) + e4m3^2 + e5m2^2
// This is too much, since the residual stream carries most past each branch, and too little where two results of one
// product multiply each other (queries and keys, gate and up) and its casts count twice. An error of sigma at right
// angles to a tensor is 1 - cos = sigma^2 / 2, and sigma^2 with the casts twice: that is for the direction. Of the
// length only the part of an error along the tensor counts: two deviations of a mean of 16 parts are sigma / 2. Both
// are means over the elements of a tensor and over the rows that its gradient is a sum over, and of n parts two
// deviations of a mean of squares are sqrt(8 / n) of itself: other roundings move the direction of a norm of 32 by half
// of its mean either way, and an expert of seven rows or a norm of 8 over 22 tokens by all of it (bench/fp8_noise.py).
// A scale that is off by two changes the length of some gradient by a half at least, which is more than that up to some
// 40 layers. Training moves weights by 0.3 of their length at most (six steps of 1e-3 on weights of 0.02), and sigma of
// that elsewhere. Logits are bf16's and losses are means over tokens: both as in bf16.
Tolerances fp8_tolerances(std::int64_t layers) {
  constexpr double kOfE4m3 = 0.027 * 0.027, kOfE5m2 = 0.053 * 0.053;
  const double squares = static_cast<double>(layers) * (8 * kOfE4m3 + 4 * (kOfE4m3 + kOfE5m2)) + kOfE4m3 + kOfE5m2;
  const double sigma = std::sqrt(squares);
  return {.forward = kRoundedTolerances.forward,
          .norms = sigma / 2,
          .parameters = 0.3 * sigma,
          .direction = squares,
          .length = sigma / 2,
          .scatter = std::sqrt(8.0),
          .choices = sigma / 2};
}

bool Verification::within() const {
  return std::ranges::all_of(comparisons, [](const Comparison& c) { return c.within(); });
}

double measure(Measure how, std::span<const float> ours, std::span<const float> oracle, double all) {
  double difference = 0, dot = 0, length = 0, oracle_length = 0;  // squared
  for (std::size_t i = 0; i < oracle.size(); ++i) {
    const double a = ours[i], b = oracle[i];
    difference += (a - b) * (a - b);
    dot += a * b;
    length += a * a;
    oracle_length += b * b;
  }
  if (oracle_length == 0) return std::sqrt(difference);
  constexpr double kSilent = 1e-4, kRounding = 1e-7;  // of all gradients
  const double least = kSilent * all, nothing = kRounding * all;
  if (oracle_length < least * least && how == Measure::difference) return std::sqrt(difference) / least;
  if (length < nothing * nothing && oracle_length < nothing * nothing) return 0;
  switch (how) {
    case Measure::difference: return std::sqrt(difference / oracle_length);
    case Measure::direction: return length == 0 ? 1 : 1 - dot / std::sqrt(length * oracle_length);
    case Measure::length: return std::abs(std::sqrt(length / oracle_length) - 1);
  }
  return NAN;
}

Verification verify(FileSystem& files, const Path& folder, device::Device& device, const VerifyOptions& options) {
  const std::int64_t multiple = in_fp8(options) ? kFp8Tokens : 1;
  OracleCase given = read_case(files, folder, multiple);
  given.checkpoint.model.router_balance = "model";  // as transformers has it
  OracleCase c = given;
  c.checkpoint.model.router_aux = c.checkpoint.model.router_z_loss = 0;
  Verification v{.tokens = c.batch.real_tokens,
                 .documents = c.batch.documents,
                 .pairs = c.batch.pairs,
                 .train_steps = c.train_steps(),
                 .comparisons = {},
                 .absent = {}};
  Run run(c, device, options);
  std::unique_ptr<device::CpuDevice> cpu;
  std::unique_ptr<Run> truth;
  if (in_fp8(options) && device.kind() != device::Kind::cpu) {
    cpu = std::make_unique<device::CpuDevice>();
    truth = std::make_unique<Run>(c, *cpu, options);
    truth->set_step(0);
  }
  Tolerances tolerances = in_fp8(options)            ? fp8_tolerances(c.checkpoint.model.layers)
                          : is_exact(run.lowering()) ? kExactTolerances
                                                     : kRoundedTolerances;
  std::vector<Comparison> with_truth;
  const bool holds = given.checkpoint.model.experts > 0 && tolerances.choices > 0;
  if (holds && !cpu) cpu = std::make_unique<device::CpuDevice>();
  const auto compare_choices = [&](const Run& of, const char* key) {
    if (holds) v.comparisons.push_back({key, Measure::difference, of.differing_choices(), tolerances.choices});
  };
  const double gradients = c.norm_of("grad."), with_balance = c.norm_of(kAuxGradients);
  const Run::Take take = [&](const std::string& key, const auto& ours, double rows) {
    const double all = key.starts_with("grad.") ? gradients : key.starts_with(kAuxGradients) ? with_balance : 0;
    compare(v, key, ours, c.floats(key), rows, tolerances, all);
  };
  if (holds) run.hold_choices(*cpu);
  run.run(take, truth.get(), with_truth);
  compare_choices(run, kChoices);
  v.comparisons.insert(v.comparisons.end(), with_truth.begin(), with_truth.end());
  v.absent = run.absent();
  if (given.checkpoint.model.experts > 0) {
    OracleCase first = given;
    first.batch = first_document(given.batch, multiple);
    Run balanced(first, device, options);
    if (holds) balanced.hold_choices(*cpu);
    balanced.run_balanced(take);
    compare_choices(balanced, "aux: experts of tokens");
    v.absent.insert(v.absent.end(), balanced.absent().begin(), balanced.absent().end());
  }
  sort_by_error(v.comparisons);
  return v;
}
}  // namespace redline::infer
