// What the tests of this room share: configurations of presets, machines, and a bench that answers by a rule.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/load.h"
#include "model/family.h"
#include "perf/roofline.h"
#include "perf/search.h"

namespace redline::perf {

inline config::Config config_of(std::string_view preset, std::vector<std::string> overrides = {}) {
  return config::load({.file = "", .preset = std::string(preset), .overrides = std::move(overrides)},
                      model::settle_family);
}

inline Machine machine_named(std::string_view card) { return machine_of(card_called(card)); }

inline Machine cpu_machine() {
  return {.name = "CPU",
          .source = "given",
          .kind = device::Kind::cpu,
          .peak_flops = 1.2e11,
          .tflops = {.fp32 = 0.12},
          .copy_rate = 3e10,
          .memory = std::int64_t{1} << 40,
          .in_context = 0};
}

// 6 FLOPs for each weight of a product and token, of experts those that it takes and the router; 12 heads * head_dim a
// layer for each pair that the mask and the layer's window keep.
struct ClosedForm {
  explicit ClosedForm(const config::Model& m)
      : model(m),
        projections(6.0 * static_cast<double>(m.layers * m.hidden * m.head_dim * (2 * m.heads + 2 * m.kv_heads))),
        mlp(6.0 * static_cast<double>(
                      m.layers * m.hidden *
                      (m.experts > 0 ? 3 * m.experts_per_token * (m.expert_ffn > 0 ? m.expert_ffn : m.ffn) + m.experts
                                     : 3 * m.ffn))),
        head(6.0 * static_cast<double>(m.vocab * m.hidden)),
        per_pair(12.0 * static_cast<double>(m.heads * m.head_dim)) {}
  // Of a document, whose token i sees i of them, or as many as the window has.
  double scores(std::int64_t length) const {
    double pairs = 0;
    for (std::int64_t l = 0; l < model.layers; ++l)
      for (std::int64_t i = 1; i <= length; ++i) pairs += static_cast<double>(std::min(i, seen_by(l, length)));
    return per_pair * pairs;
  }
  // Of one token, as if it saw all of the row, or all of the window.
  double scores_palm(std::int64_t length) const {
    double pairs = 0;
    for (std::int64_t l = 0; l < model.layers; ++l) pairs += static_cast<double>(seen_by(l, length));
    return per_pair * pairs;
  }
  std::int64_t seen_by(std::int64_t layer, std::int64_t length) const {
    return model::has_window(model, static_cast<std::size_t>(layer)) ? std::min(length, model.window) : length;
  }
  config::Model model;
  double projections, mlp, head, per_pair;
};

// Tokens a second by a rule of the test's; 0: it cannot run.
inline Bench bench_of(device::Kind kind, std::function<double(const config::Config&)> rate,
                      std::vector<Setting> settings = {{32, 8, "none"}}) {
  Bench bench;
  bench.kind = kind;
  bench.measure = [rate = std::move(rate)](const config::Config& config, double) {
    Measured m;
    m.tokens_per_s = rate(config);
    m.step_ms = 1e3 / m.tokens_per_s;
    m.noise = 0.01;
    if (m.tokens_per_s == 0) m.problem = "no memory for it\nand more";
    return m;
  };
  bench.fits = [](const config::Config&) { return true; };
  bench.settings = [settings = std::move(settings)](const config::Config&) { return settings; };
  return bench;
}

}  // namespace redline::perf
