// The table of metrics: every figure of a step, written down once. metrics.jsonl, TensorBoard, Prometheus, the report
// of a run and docs/monitoring.md walk it, so a new metric is a member of train::StepMetrics and a row here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "train/observer.h"

namespace redline::report {

// monostate: the step has no such figure. nullptr: it should have one, but the value is not known.
using MetricValue = std::variant<std::monostate, std::nullptr_t, std::int64_t, double, std::string_view>;

template <auto Member>
MetricValue read(const train::StepMetrics& m) {
  const auto& value = m.*Member;
  if constexpr (requires { value.has_value(); })
    return value ? MetricValue(*value) : MetricValue();
  else
    return value;
}
// A member of a group that a step has as a whole or not at all.
template <auto Group, auto Member>
MetricValue read_in(const train::StepMetrics& m) {
  if (!(m.*Group)) return {};
  const auto& value = (*(m.*Group)).*Member;
  return value ? MetricValue(*value) : MetricValue(nullptr);
}

// The same, for members that are left out where they are not known.
template <auto Group, auto Member>
MetricValue read_known(const train::StepMetrics& m) {
  const MetricValue value = read_in<Group, Member>(m);
  return std::holds_alternative<std::nullptr_t>(value) ? MetricValue() : value;
}

// A part of the session's time so far.
template <train::Part Part>
MetricValue read_part(const train::StepMetrics& m) {
  return m.account ? MetricValue(m.account->of(Part)) : MetricValue();
}
inline MetricValue read_joules_per_token(const train::StepMetrics& m) {
  const auto value = m.account ? m.account->joules_per_token() : std::nullopt;
  return value ? MetricValue(*value) : MetricValue();
}

// A figure of Prometheus: redline_NAME, the value times the factor.
struct Gauge {
  std::string_view name = {}, help = {};  // no name: not there
  double factor = 1;
};

// How a value is written; the page's script knows them by these names.
enum class Figure { number, share, fine_share, rate, milliseconds, exponent, teraflops, gibibytes };
constexpr std::string_view name_of(Figure figure) {
  constexpr std::array<std::string_view, 8> kNames = {"number",       "share",    "fine_share", "rate",
                                                      "milliseconds", "exponent", "teraflops",  "gibibytes"};
  return kNames[static_cast<std::size_t>(figure)];
}

enum class Section { none, top, speed, data, norms, experts, fp8, gpu };

enum PanelFlags : unsigned {
  kSmooth = 1,          // draw a running mean over the values
  kFromZero = 2,        // begin the y axis at zero
  kWide = 4,            // take the width of the page
  kEvaluations = 8,     // add the held-out loss as dots, and resumes
  kWithStepTimes = 16,  // follow the histogram of step times
};

// A plot of the report.
struct Panel {
  Section section = Section::none;
  int place = 0;  // within the section
  std::string_view title = {};
  Figure figure = Figure::number;
  unsigned flags = 0;
  constexpr bool is(PanelFlags flag) const { return flags & flag; }
};

struct Metric {
  std::string_view key;  // in metrics.jsonl
  MetricValue (*read)(const train::StepMetrics&);
  std::string_view unit, help;  // for the documentation
  std::string_view tag = {};    // in TensorBoard; empty: left out
  Gauge gauge = {};
  Panel panel = {};
  bool required = false;  // every version has written it: a file without it is reported
};

constexpr Metric metric(std::string_view key, MetricValue (*read)(const train::StepMetrics&), std::string_view unit,
                        std::string_view help, std::string_view tag = {}, Gauge gauge = {}, Panel panel = {},
                        bool required = false) {
  return {key, read, unit, help, tag, gauge, panel, required};
}

// The metrics in the order of a row of metrics.jsonl.
inline constexpr auto kMetrics = [] {
  using M = train::StepMetrics;
  using G = device::GpuSample;
  using F = train::Fp8Observation;
  using P = train::Part;
  using R = train::RankPaces;
  using N = train::NormsObservation;
  using E = train::RouterObservation;
  constexpr bool kRequired = true;
  constexpr unsigned kCurve = kSmooth | kFromZero;
  return std::array{
      metric("step", read<&M::step>, "", "updates done, from 1; 0 in the row of an evaluation before the first", "",
             {"step", "Steps done."}),
      metric("time", read<&M::time>, "s", "since 1970, when the step ended", "",
             {"last_step_timestamp_seconds", "When the last step ended."}, {}, kRequired),
      metric("loss", read<&M::loss>, "nats", "mean cross entropy over the real target pairs of the step", "train/loss",
             {"loss", "Loss of the last step."},
             {Section::top, 1, "Loss", Figure::number, kSmooth | kWide | kEvaluations}, kRequired),
      metric("grad_norm", read<&M::grad_norm>, "", "global norm of the mean gradient, before clipping",
             "train/grad_norm", {"grad_norm", "Norm of the gradient before clipping."},
             {Section::top, 3, "Gradient norm", Figure::number, kCurve}, kRequired),
      metric("lr", read<&M::lr>, "", "learning rate of the step", "train/lr", {"learning_rate", "Learning rate."},
             {Section::top, 2, "Learning rate", Figure::exponent, kFromZero}, kRequired),
      metric("step_ms", read<&M::step_ms>, "ms",
             "from the device's end of the step before to its end of this one, by its own clock, waiting for data "
             "included; evaluations, samples and checkpoints not",
             "speed/step_ms", {"step_seconds", "Time of the last step.", 1e-3},
             {Section::speed, 3, "Step time", Figure::milliseconds, kCurve | kWithStepTimes}, kRequired),
      metric("device_ms", read<&M::device_ms>, "ms", "of the step in which the device was at its programs",
             "speed/device_ms", {"step_device_seconds", "Time of the last step in which the device worked.", 1e-3}),
      metric("idle_ms", read<&M::idle_ms>, "ms",
             "of the step in which it was not: it waited for data or for the host, or took the batch", "speed/idle_ms",
             {"step_idle_seconds", "Time of the last step in which the device stood still.", 1e-3},
             {Section::speed, 4, "Device stands still, a step", Figure::milliseconds, kCurve}),
      metric("tokens", read<&M::tokens>, "", "real targets of the step: of conversations, tokens of answers", "", {},
             {}, kRequired),
      metric(
          "epoch", read<&M::epoch>, "",
          "how often the training data were read so far, as 1.37; where they have no end or are compressed, it is not "
          "there",
          "data/epoch", {"epoch", "How often the training data were read so far."}),
      metric("tokens_per_s", read<&M::tokens_per_s>, "1/s", "`tokens` over the step's time", "speed/tokens_per_s",
             {"tokens_per_second", "Real tokens a second."},
             {Section::speed, 2, "Tokens a second", Figure::rate, kCurve}, kRequired),
      metric("padding", read<&M::padding>, "share", "of token slots that hold no document", "data/padding",
             {"padding_ratio", "Share of token slots that hold none."},
             {Section::data, 1, "Padding", Figure::share, kCurve}),
      metric("tflops", read<&M::tflops>, "TFLOP/s",
             "model FLOPs: products of real tokens, attention pairs that the mask keeps", "speed/tflops",
             {"model_flops_per_second", "Model FLOPs a second.", 1e12}),
      metric("mfu", read<&M::mfu>, "share", "`tflops` over the peak", "speed/mfu",
             {"mfu_ratio", "Model FLOPs utilisation."}, {Section::speed, 1, "MFU", Figure::share, kCurve}, kRequired),
      metric("mfu_palm", read<&M::mfu_palm>, "share",
             "the same with T pairs a token and nothing halved, for comparison with published tables", "speed/mfu_palm",
             {"mfu_palm_ratio", "The same, masked pairs counted as work."}),
      metric("data_wait_ms", read<&M::data_wait_ms>, "ms", "of the step spent waiting for a batch", "data/wait_ms",
             {"data_wait_seconds", "Time of the last step that went to waiting for data.", 1e-3},
             {Section::data, 2, "Waiting for data, a step", Figure::milliseconds, kCurve}),
      metric("memory_gib", read<&M::memory_gib>, "GiB", "the arena", "memory/gib",
             {"memory_bytes", "Bytes of the run's arena.", 0x1p30}),
      metric("truncated_tokens", read<&M::truncated_tokens>, "",
             "tokens dropped so far from documents longer than a row, where `data.long_documents = \"truncate\"`"),
      metric("learned", read<&M::learned>, "share",
             "of the documents' tokens that are targets, where only answers are learned (`data.chat`)"),
      metric("eval_loss", read<&M::eval_loss>, "nats",
             "held-out loss, in the rows of steps that were followed by an evaluation, and in that of step 0",
             "eval/loss", {"eval_loss", "Held-out loss at the last evaluation."}),
      metric("eval_loss_average", read<&M::eval_loss_average>, "nats",
             "the same of the average of the weights (`train.average`), once it is another than the weights",
             "eval/loss_average", {"eval_loss_average", "Held-out loss of the average of the weights."}),
      metric("eval_bits_per_byte", read<&M::eval_bits_per_byte>, "bits",
             "the same as bits a byte of the text that was predicted; where the tokens stand for no known text, it is "
             "not there",
             "eval/bits_per_byte", {"eval_bits_per_byte", "Held-out bits a byte at the last evaluation."}),
      metric("eval_tokens", read<&M::eval_tokens>, "",
             "held-out tokens that `eval_loss` covers (`train.eval_tokens`), the first set's where `data.eval` names "
             "several"),
      metric("goodput", read<&M::goodput>, "share", "of the session's time so far that went to steps", "goodput/share",
             {"goodput_ratio", "Share of the session's time that went to steps."},
             {Section::speed, 5, "Goodput of the session so far", Figure::share, kFromZero}),
      metric("steps_s", read_part<P::steps>, "s",
             "of the session so far in steps; these nine add up to its wall time and are in a row every ten seconds",
             "goodput/steps_s", {"goodput_steps_seconds", "Time of the session in steps."}),
      metric("data_s", read_part<P::data>, "s", "waiting for data while the device had nothing to do", "goodput/data_s",
             {"goodput_data_seconds", "Time of the session waiting for data."}),
      metric("ranks_s", read_part<P::ranks>, "s", "waiting for other ranks, where nothing was left to compute",
             "goodput/ranks_s", {"goodput_ranks_seconds", "Time of the session waiting for other ranks."}),
      metric("evaluation_s", read_part<P::evaluation>, "s", "in evaluations", "goodput/evaluation_s",
             {"goodput_evaluation_seconds", "Time of the session in evaluations."}),
      metric("sampling_s", read_part<P::sampling>, "s", "writing samples", "goodput/sampling_s",
             {"goodput_sampling_seconds", "Time of the session writing samples."}),
      metric("saving_s", read_part<P::saving>, "s", "saving, where it held training", "goodput/saving_s",
             {"goodput_saving_seconds", "Time of the session in which saving held training."}),
      metric("start_up_s", read_part<P::start_up>, "s", "from the start of the process to the first step, and tuning",
             "goodput/start_up_s", {"goodput_start_up_seconds", "Time of the session in its start."}),
      metric("done_again_s", read_part<P::done_again>, "s", "in what was lost within the session and done again",
             "goodput/done_again_s", {"goodput_done_again_seconds", "Time of the session that was lost."}),
      metric("standing_still_s", read_part<P::standing_still>, "s", "in which the machine was suspended",
             "goodput/standing_still_s",
             {"goodput_standing_still_seconds", "Time of the session in which the machine was suspended."}),
      metric("joules_per_token", read_joules_per_token, "J",
             "energy of the card over the real targets of the session so far; in the rows of the nine above, where the "
             "card counts it",
             "goodput/joules_per_token", {"joules_per_token", "Energy of the card a token of the session."}),
      metric("skipped", read<&M::skipped>, "", "updates that were not made so far (`guard.*`)", "train/skipped",
             {"skipped_updates", "Updates that were not made so far."}),
      metric("rollbacks", read<&M::rollbacks>, "", "how often the run went back to a checkpoint so far",
             "train/rollbacks", {"rollbacks", "How often the run went back to a checkpoint so far."}),
      metric("ranks_wait_ms", read_in<&M::ranks, &R::wait_ms>, "ms",
             "of the step in which rank 0 waited for other ranks; these four are in runs on several ranks",
             "ranks/wait_ms", {"ranks_wait_seconds", "Time of the last step that rank 0 waited for others.", 1e-3},
             {Section::speed, 6, "Waiting for other ranks, a step", Figure::milliseconds, kCurve}),
      metric("slowest_rank", read_in<&M::ranks, &R::slowest>, "",
             "that needs most for a step, what it waits for others left out", "ranks/slowest",
             {"slowest_rank", "The rank that needs most for a step."}),
      metric("slowest_rank_ms", read_in<&M::ranks, &R::slowest_ms>, "ms", "what that is", "ranks/slowest_ms",
             {"slowest_rank_seconds", "What the slowest rank needs for a step.", 1e-3}),
      metric("median_rank_ms", read_in<&M::ranks, &R::median_ms>, "ms", "the same of the rank in the middle",
             "ranks/median_ms", {"median_rank_seconds", "What the rank in the middle needs for a step.", 1e-3}),
      metric("weight_norm", read_known<&M::norms, &N::weight>, "",
             "norm of all weights; these three are in the rows of steps at which the norms were looked at "
             "(`log.norms_every`)",
             "norms/weight", {"weight_norm", "Norm of all weights."},
             {Section::norms, 1, "Norm of all weights", Figure::number, kFromZero}),
      metric("update_norm", read_known<&M::norms, &N::update>, "",
             "norm of the step's whole change of the weights; not there where a copy of them had no room",
             "norms/update", {"update_norm", "Norm of the last change of all weights."},
             {Section::norms, 2, "Norm of the whole update", Figure::number, kFromZero}),
      metric("noise_scale_tokens", read_known<&M::norms, &N::noise_scale>, "",
             "the batch, in tokens, at which the gradient's noise is as large as itself, over the last twenty looks; "
             "where a step has several micro-batches",
             "train/noise_scale_tokens", {"noise_scale_tokens", "Gradient noise scale in tokens."},
             {Section::norms, 3, "Noise scale of the gradient, tokens", Figure::number, kFromZero}),
      metric("balance", read_in<&M::router, &E::balance>, "",
             "balance loss of the routers over the step's micro-batches, without its coefficient (`model.router_aux`) "
             "and not part of `loss`: `model.experts_per_token` where loads are even, up to `model.experts`; the mean "
             "over layers, or with `model.router_balance = \"model\"` of all layers together, where an even value says "
             "nothing of a layer; these five are there where layers have experts",
             "experts/balance", {"balance", "Balance loss of the routers."},
             {Section::experts, 1, "Balance loss", Figure::number, kSmooth}),
      metric("router_z", read_in<&M::router, &E::z_loss>, "",
             "mean square of the routers' logsumexp, which `model.router_z_loss` keeps small", "experts/router_z",
             {"router_z", "Mean square of the routers' logsumexp."}),
      metric("router_entropy", read_in<&M::router, &E::entropy>, "nats",
             "of a token's probabilities of experts, the mean over tokens and layers; at most the logarithm of "
             "`model.experts`",
             "experts/entropy", {"router_entropy", "Entropy of the routers in the mean."},
             {Section::experts, 2, "Entropy of the routers", Figure::number, kCurve}),
      metric("largest_load", read_in<&M::router, &E::largest_load>, "",
             "tokens of the expert with most of them, over an even share, in any layer", "experts/largest_load",
             {"largest_load", "Largest load of an expert over an even share."},
             {Section::experts, 3, "Largest load of an expert", Figure::number, kCurve}),
      metric("smallest_load", read_in<&M::router, &E::smallest_load>, "", "the same of the expert with fewest",
             "experts/smallest_load", {"smallest_load", "Smallest load of an expert over an even share."},
             {Section::experts, 4, "Smallest load of an expert", Figure::number, kCurve}),
      metric("fp8_saturated", read_in<&M::fp8, &F::saturated>, "share",
             "of the elements of the tensor with most of them that are beyond the largest number of fp8 and become it; "
             "these "
             "four are in the rows of steps at which the tensors were looked at (`log.fp8_every`)",
             "fp8/saturated", {"fp8_saturated_ratio", "Largest share of a tensor that fp8 cuts off."},
             {Section::fp8, 1, "Cut off by the range, the worst tensor", Figure::fine_share, kFromZero}),
      metric("fp8_most_saturated", read_in<&M::fp8, &F::most_saturated>, "", "which tensor that is"),
      metric(
          "fp8_zero", read_in<&M::fp8, &F::zero>, "share",
          "of the elements of the tensor with most of them that are zero in fp8, those that were zero before included",
          "fp8/zero", {"fp8_zero_ratio", "Largest share of a tensor that is zero in fp8."},
          {Section::fp8, 2, "Zero in eight bits, the worst tensor", Figure::share, kFromZero}),
      metric("fp8_most_zero", read_in<&M::fp8, &F::most_zero>, "", "which tensor that is"),
      metric("gpu_utilisation", read_in<&M::gpu, &G::utilisation>, "share",
             "of the last second or so in which a kernel ran; these eight are there where the card can be watched, and "
             "null where it does not tell",
             "gpu/utilisation", {"gpu_utilisation_ratio", "Share of time in which a kernel ran."},
             {Section::gpu, 1, "GPU utilisation", Figure::share, kFromZero}),
      metric("gpu_memory", read_in<&M::gpu, &G::memory>, "share",
             "of the card's memory that is taken, by this run and by whatever else is on the card", "gpu/memory",
             {"gpu_memory_ratio", "Share of the card's memory that is taken."},
             {Section::gpu, 5, "GPU memory", Figure::share, kFromZero}),
      metric("gpu_temperature_c", read_in<&M::gpu, &G::temperature_c>, "°C", "of the card", "gpu/temperature_c",
             {"gpu_temperature_celsius", "Temperature of the card."}, {Section::gpu, 3, "Temperature, °C"}),
      metric("gpu_power_w", read_in<&M::gpu, &G::power_w>, "W", "of the card", "gpu/power_w",
             {"gpu_power_watts", "Power of the card."}, {Section::gpu, 2, "Power, W", Figure::number, kFromZero}),
      metric("gpu_energy_j", read_in<&M::gpu, &G::energy_j>, "J", "that the card has used since the session began",
             "gpu/energy_j", {"gpu_energy_joules", "Energy of the card in the session."}),
      metric("gpu_clock_mhz", read_in<&M::gpu, &G::clock_mhz>, "MHz", "of the multiprocessors", "gpu/clock_mhz",
             {"gpu_clock_hertz", "Clock of the multiprocessors.", 1e6},
             {Section::gpu, 4, "Clock, MHz", Figure::number, kFromZero}),
      metric("gpu_max_clock_mhz", read_in<&M::gpu, &G::max_clock_mhz>, "MHz", "the highest that the card has"),
      metric("gpu_throttle", read_in<&M::gpu, &G::throttle>, "",
             "what holds the clock down: \"\", or some of `power cap`, `heat`, `heat (hardware)`, `power brake`, "
             "`hardware slowdown`, joined by \", \"",
             "", {"gpu_throttled", "1 while the card holds its clocks down; under full load its power cap does."}),
  };
}();

// A figure that has a value for each of several names, which a run gives: KEY/NAME in metrics.jsonl, after the others,
// and TAG/NAME in TensorBoard.
struct NamedMetric {
  struct Value {
    std::string name;
    double value = 0;
  };
  std::string_view key;
  std::vector<Value> (*read)(const train::StepMetrics&);
  std::string_view unit, help, tag;
  Panel panel = {};     // of section `none`: dots beside the held-out loss
  bool on_page = true;  // else the page has it from another file
};

// Of each layer with experts, at steps that were looked at.
template <auto Of>
std::vector<NamedMetric::Value> read_layers(const train::StepMetrics& m) {
  std::vector<NamedMetric::Value> all;
  if (!m.router || !m.router->by_layer) return all;
  const model::RouterFigures& f = *m.router->by_layer;
  for (std::size_t i = 0; i < f.layers.size(); ++i) all.push_back({"layer " + std::to_string(f.layers[i]), Of(f, i)});
  return all;
}

inline constexpr auto kNamedMetrics = [] {
  using M = train::StepMetrics;
  using V = std::vector<NamedMetric::Value>;
  return std::array{
      NamedMetric{"eval_loss",
                  [](const M& m) {
                    V all;
                    for (const train::HeldOutLoss& of : m.eval_sets) all.push_back({of.name, of.loss});
                    return all;
                  },
                  "nats", "held-out loss of the set NAME, where `data.eval` names sets; `eval_loss` is the first one's",
                  "eval/loss"},
      NamedMetric{"eval_bits_per_byte",
                  [](const M& m) {
                    V all;
                    for (const train::HeldOutLoss& of : m.eval_sets)
                      if (of.bits_per_byte) all.push_back({of.name, *of.bits_per_byte});
                    return all;
                  },
                  "bits", "the same as bits a byte of its text", "eval/bits_per_byte"},
      NamedMetric{"source_share",
                  [](const M& m) {
                    V all;
                    for (const data::SourceShare& of : m.sources) all.push_back({of.name, of.share});
                    return all;
                  },
                  "share",
                  "of the training tokens so far that came from the entry NAME of `data.train`, with `data.weights`; "
                  "every ten seconds, and in the rows of evaluations",
                  "data/share",
                  {Section::data, 3, "Share of the training tokens", Figure::share, kFromZero}},
      NamedMetric{"source_epochs",
                  [](const M& m) {
                    V all;
                    for (const data::SourceShare& of : m.sources)
                      if (of.epochs) all.push_back({of.name, *of.epochs});
                    return all;
                  },
                  "",
                  "how often that entry was read so far, as 1.37",
                  "data/epochs",
                  {Section::data, 4, "How often each entry was read", Figure::number, kFromZero}},
      NamedMetric{"router_entropy",
                  read_layers<[](const model::RouterFigures& f, std::size_t i) { return f.entropy[i]; }>,
                  "nats",
                  "of the router of `layer N`; these three are in the rows of steps at which loads were looked at "
                  "(`log.router_every`)",
                  "experts/entropy",
                  {},
                  false},
      NamedMetric{
          "largest_load",
          read_layers<[](const model::RouterFigures& f, std::size_t i) { return std::ranges::max(f.loads[i]); }>,
          "",
          "of an expert of that layer",
          "experts/largest_load",
          {},
          false},
      NamedMetric{
          "smallest_load",
          read_layers<[](const model::RouterFigures& f, std::size_t i) { return std::ranges::min(f.loads[i]); }>,
          "",
          "of an expert of that layer",
          "experts/smallest_load",
          {},
          false},
  };
}();

// The index of a row of a table, by its key. An unknown key does not compile.
template <const auto& Table>
struct KeyOf {
  using Row = std::remove_cvref_t<decltype(Table[0])>;
  std::size_t index = 0;
  consteval KeyOf(const char* key)
      : index(static_cast<std::size_t>(std::ranges::find(Table, std::string_view(key), &Row::key) - Table.begin())) {
    if (index == Table.size()) throw std::logic_error("no such key");
  }
  explicit constexpr KeyOf(const Row& row) : index(static_cast<std::size_t>(&row - Table.data())) {}
  bool operator==(const KeyOf&) const = default;
};
using Column = KeyOf<kMetrics>;

// The metric as a number; a text that is not empty is 1. Empty where the step has no such figure.
std::optional<double> number_of(const Metric& metric, const train::StepMetrics& m);

// A row of metrics.jsonl with its newline. Doubles have the shortest form that reads back the same; a number that is
// not finite is null. Equal numbers give equal text, so two runs can be compared as files.
std::string metrics_row(const train::StepMetrics& m);

// The row of the evaluation before the first step: its time and its results alone.
std::string evaluation_row(const train::Evaluated& evaluated);

// The evaluation as figures of a step.
train::StepMetrics as_step(const train::Evaluated& evaluated);

// The table as docs/monitoring.md has it.
std::string metrics_as_markdown();

}  // namespace redline::report
