// Copies of the step that is looked at, by the names of their scales; then the truth's step, with those in place of its
// own.
#include "infer/fp8_truth.h"

#include <map>

#include "base/small_floats.h"
#include "ops/fp8.h"
#include "program/passes.h"

namespace redline::infer {
namespace {

using program::Fp8Written;
using program::ValueId;
using Codes = std::vector<std::uint8_t>;

Codes read(model::Engine& engine, ValueId copy) {
  Codes codes(static_cast<std::size_t>(engine.programs().at(copy).bytes()));
  engine.executor().read(copy, codes.data(), static_cast<std::int64_t>(codes.size()));
  return codes;
}
void write(model::Engine& engine, ValueId copy, const Codes& codes) {
  engine.executor().write(copy, codes.data(), static_cast<std::int64_t>(codes.size()));
}

Codes turned(const Codes& codes, std::size_t columns) {
  const std::size_t rows = codes.size() / columns;
  Codes out(codes.size());
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) out[j * rows + i] = codes[i * columns + j];
  return out;
}

std::size_t columns_of(model::Engine& engine, ValueId copy) {
  return static_cast<std::size_t>(engine.programs().at(copy).shape[1]);
}

// By rows, whichever is there.
Codes rows_of(model::Engine& engine, const Fp8Written& w) {
  return w.rows.present() ? read(engine, w.rows) : turned(read(engine, w.columns), columns_of(engine, w.columns));
}

std::vector<float> numbers(const Codes& codes, DType dtype) {
  const auto of = fp8_numbers(fp8_format(dtype));
  std::vector<float> out;
  for (const std::uint8_t code : codes) out.push_back(of[code]);
  return out;
}

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
    });
    truth_.micro_step(true, true, nullptr, [&](const program::Node& node) {
      program::each_fp8_copy(node, [&](const Fp8Written& w) { compare_and_replace(w); });
    });
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
    if (w.columns.present())  // which has as many columns as there are rows
      write(truth_, w.columns, turned(ours->second, ours->second.size() / columns_of(truth_, w.columns)));
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
    engine.executor().read(value, all.data(), static_cast<std::int64_t>(all.size() * sizeof(float)));
    return all;
  }

  model::Engine &engine_, &truth_;
  std::map<std::string, std::string> names_;  // of tensors, by those of their scales
  std::map<std::string, Codes> copies_;       // of the engine, by rows
  std::vector<Comparison> comparisons_;
};

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

}  // namespace redline::infer
