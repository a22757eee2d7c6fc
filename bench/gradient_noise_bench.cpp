// How much of a gradient's noise is that of eight bits: R = |g8 - g|^2 / |g - g'|^2 by tensor, where g is the gradient
// of a batch in bf16, g8 that in fp8 and g' that of another batch. Beside it the same of a control, which is no less
// exact than bf16: on a card bf16 with another attention kernel, on the CPU fp32. Weights are fresh, or those of
// model.init_from; batches are the first of data.train. Each batch is compared with the next, the last with the first.
//   gradient_noise_bench gqa-180m data.train=shards/ model.init_from=runs/a --batches 4 --json noise.json
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "cli/config.h"
#include "cli/output.h"
#include "data/from_config.h"
#include "data/loader.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "model/engine.h"
#include "model/family.h"
#include "model/weights.h"

namespace redline {
namespace {

using Batches = std::vector<data::Batch>;  // the micro-batches of a step
using Gradient = std::vector<float>;

std::vector<Batches> read_batches(const config::Config& c, std::int64_t count, bool on_cpu) {
  data::Loader loader(data::open_training_corpus(data::corpus_options(c.data)),
                      data::loader_options(c.data, model::batch_shape(c), on_cpu));
  data::require_vocabulary(loader.corpus(), c.model.vocab);
  std::vector<Batches> all(static_cast<std::size_t>(count));
  for (Batches& step : all)
    for (std::int64_t i = 0; i < c.train.accumulate; ++i)
      if (!loader.next(step.emplace_back(model::batch_shape(c))))
        fail_user("data.train has too few documents for {} batches", count);
  return all;
}

// A model that gives gradients, with its weights. One at a time is on the device.
class Gradients {
 public:
  Gradients(const config::Config& c, const model::LoweringOptions& options, device::Device& device)
      : engine_(c.model, options, device), in_fp8_(!options.fp8.empty()) {
    engine_.initialise(options.seed);
    if (c.model.init_from.empty()) return;
    io::find_weights_folder(real_files(), c.model.init_from, [&](const Path& folder) {
      model::load_weights(engine_, io::WeightFiles(real_files(), folder));
    });
  }
  // Of the mean loss. Scales are those of the batch itself: two passes find them.
  Gradient of(const Batches& step) {
    for (int pass = 0; in_fp8_ && pass < 2; ++pass) {
      run(step);
      engine_.executor().run(model::kRefresh);
    }
    const double pairs = run(step);
    const program::ValueId value = engine_.lowered().at(optim::kGradients);
    Gradient g(static_cast<std::size_t>(engine_.programs().at(value).shape.elements()));
    engine_.executor().read(value, g.data(), static_cast<std::int64_t>(g.size() * sizeof(float)));
    for (float& x : g) x = static_cast<float>(static_cast<double>(x) / pairs);
    loss_ = engine_.loss_sum() / pairs;
    return g;
  }
  double loss() const { return loss_; }  // of the last batch
  const model::Engine& engine() const { return engine_; }

 private:
  double run(const Batches& step) {
    std::int64_t pairs = 0, first_token = 0;
    for (const data::Batch& batch : step) {
      engine_.upload(batch);
      engine_.set_step(0, 0, 0, static_cast<std::uint64_t>(first_token));
      engine_.micro_step(first_token == 0);
      pairs += batch.pairs;
      first_token += batch.shape.tokens();
    }
    return static_cast<double>(std::max<std::int64_t>(pairs, 1));
  }

  model::Engine engine_;
  bool in_fp8_;
  double loss_ = 0;
};

// Sums of squares over a tensor, or several.
struct Sums {
  double gradient = 0, noise = 0, fp8 = 0, control = 0, along = 0, of_fp8 = 0;

  void operator+=(const Sums& o) {
    gradient += o.gradient, noise += o.noise, fp8 += o.fp8, control += o.control, along += o.along, of_fp8 += o.of_fp8;
  }
  double ratio() const { return fp8 / noise; }
  double control_ratio() const { return control / noise; }
  double error() const { return std::sqrt(fp8 / gradient); }
  double cosine() const { return along / std::sqrt(gradient * of_fp8); }
};

struct Measured {
  std::vector<Sums> tensors;                               // one for each parameter
  std::vector<double> loss, loss_in_fp8, loss_of_control;  // one for each batch
};

Measured measure(const config::Config& c, const std::vector<Batches>& batches, device::Device& device) {
  config::Config fp8 = c;
  fp8.precision.matmul = "fp8";
  fp8.precision.fp8 = "all";
  const model::LoweringOptions in_fp8 = model::lowering_options(fp8, device.kind());
  model::LoweringOptions in_bf16 = in_fp8, control;
  in_bf16.fp8.clear();
  control = in_bf16;
  if (device.kind() == device::Kind::cpu)
    control.compute = DType::f32;
  else
    control.attention.by =
        in_bf16.attention.by == ops::AttentionBy::flash ? ops::AttentionBy::cudnn : ops::AttentionBy::flash;

  Measured m;
  std::vector<Gradient> exact;
  model::FlatLayout layout;
  std::vector<std::int64_t> sizes;
  {
    Gradients gradients(c, in_bf16, device);
    for (const Batches& step : batches) {
      exact.push_back(gradients.of(step));
      m.loss.push_back(gradients.loss());
    }
    layout = gradients.engine().layout();
    for (const model::ParameterSpec& p : gradients.engine().table()) sizes.push_back(p.shape.elements());
  }
  m.tensors.resize(sizes.size());
  const auto each = [&](const auto& f) {
    for (std::size_t t = 0; t < sizes.size(); ++t)
      for (auto i = static_cast<std::size_t>(layout.offsets[t]);
           i < static_cast<std::size_t>(layout.offsets[t] + sizes[t]); ++i)
        f(m.tensors[t], i);
  };
  const auto square = [](float a, float b) { return (static_cast<double>(a) - b) * (static_cast<double>(a) - b); };
  {
    Gradients gradients(c, in_fp8, device);
    for (std::size_t b = 0; b < batches.size(); ++b) {
      const Gradient got = gradients.of(batches[b]), &want = exact[b], &other = exact[(b + 1) % batches.size()];
      m.loss_in_fp8.push_back(gradients.loss());
      each([&](Sums& s, std::size_t i) {
        s.gradient += square(want[i], 0);
        s.noise += square(want[i], other[i]);
        s.fp8 += square(got[i], want[i]);
        s.of_fp8 += square(got[i], 0);
        s.along += static_cast<double>(got[i]) * static_cast<double>(want[i]);
      });
    }
  }
  Gradients gradients(c, control, device);
  for (std::size_t b = 0; b < batches.size(); ++b) {
    const Gradient got = gradients.of(batches[b]);
    m.loss_of_control.push_back(gradients.loss());
    each([&](Sums& s, std::size_t i) { s.control += square(got[i], exact[b][i]); });
  }
  return m;
}

io::Json to_json(const std::string& name, const Sums& s) {
  return {{"tensor", name},
          {"gradient", std::sqrt(s.gradient)},
          {"noise", std::sqrt(s.noise)},
          {"error", s.error()},
          {"cosine", s.cosine()},
          {"r", s.ratio()},
          {"r_control", s.control_ratio()}};
}

int run(const std::vector<std::string>& words) {
  cli::Arguments arguments("gradient_noise_bench", "how much of a gradient's noise is that of fp8",
                           "[CONFIG] [key=value ...] [--batches N] [--device NAME] [--json FILE]", {});
  cli::ConfigWords given;
  std::string device_name = "auto", file;
  std::int64_t count = 2;
  given.declare(arguments);
  arguments.integer("--batches", "N", count, 2, 1000, "steps' worth of batches (default: 2)");
  arguments.text("--device", "NAME", device_name, "where to run: cpu, cuda or auto (default: auto)");
  arguments.text("--json", "FILE", file, "where all figures go");
  if (!arguments.parse(words)) return 0;
  config::Config c = cli::load_config(cli::sources_of(given));
  c.train.sample_every = 0;
  const auto device = device::open_device(device_name);
  const Measured m = measure(c, read_batches(c, count, device->kind() == device::Kind::cpu), *device);

  // Of all layers together, then each tensor by itself.
  const model::ParameterTable table = model::family_of(c.model).table(c.model);
  std::map<std::string, Sums> kinds;
  Sums all;
  io::Json tensors = io::Json::array();
  std::pair<double, std::string> worst;
  for (std::size_t t = 0; t < table.size(); ++t) {
    const std::string& name = table[t].name;
    const std::size_t slash = name.find('/');
    kinds[slash == std::string::npos ? name : name.substr(slash + 1)] += m.tensors[t];
    all += m.tensors[t];
    worst = std::max(worst, {m.tensors[t].ratio(), name});
    tensors.push_back(to_json(name, m.tensors[t]));
  }
  const auto mean = [](const std::vector<double>& v) {
    double sum = 0;
    for (const double x : v) sum += x / static_cast<double>(v.size());
    return sum;
  };
  cli::print(fmt::format("| tensor | error | cosine | R | R of the control |\n|---|---|---|---|---|\n"));
  kinds["all"] = all;
  io::Json groups = io::Json::array();
  for (const auto& [name, s] : kinds) {
    cli::print(fmt::format("| {} | {:.2f}% | {:.5f} | {:.5f} | {:.5f} |\n", name, 100 * s.error(), s.cosine(),
                           s.ratio(), s.control_ratio()));
    groups.push_back(to_json(name, s));
  }
  cli::print(fmt::format("\nlargest R: {:.5f}, of {}\nloss: {:.5f} in bf16, {:.5f} in fp8, {:.5f} of the control\n",
                         worst.first, worst.second, mean(m.loss), mean(m.loss_in_fp8), mean(m.loss_of_control)));
  if (file.empty()) return 0;
  const io::Json document{
      {"device", device->name()},
      {"model", {{"family", c.model.family}, {"layers", c.model.layers}, {"hidden", c.model.hidden}}},
      {"init_from", c.model.init_from},
      {"batches", count},
      {"tokens_per_batch", model::batch_shape(c).tokens() * c.train.accumulate},
      {"loss", m.loss},
      {"loss_in_fp8", m.loss_in_fp8},
      {"loss_of_control", m.loss_of_control},
      {"kinds", groups},
      {"tensors", tensors}};
  real_files().replace(file, document.dump(1) + "\n");
  return 0;
}

}  // namespace
}  // namespace redline

int main(int count, char** words) {
  try {
    return redline::run({words + 1, words + count});
  } catch (const std::exception& e) {
    redline::cli::print_error(e.what());
    return 1;
  }
}
