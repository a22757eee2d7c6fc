// Each doubt is a rule over the configuration; keys without effect are rows of a table. The recipe for going on is a
// few constants and one power law.
#include "train/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>

#include "base/words.h"
#include "config/keys.h"
#include "config/load.h"
#include "model/family.h"
#include "model/parameters.h"
#include "optim/schedule.h"

namespace redline::train {
namespace {

using config::Config;

std::string value_of(std::string_view key, const Config& c) {
  return config::literal(config::read(*config::find_key(key), c));
}

bool uses_muon(const Config& c) { return c.optim.name == "muon"; }
bool uses_wsd(const Config& c) { return c.optim.schedule == "wsd"; }
bool uses_fp8(const Config& c) { return c.precision.matmul == "fp8"; }
bool writes_samples(const Config& c) { return c.train.sample_every > 0; }
bool has_llama3_rope(const Config& c) { return c.model.rope_scaling == "llama3"; }
bool has_yarn(const Config& c) { return c.model.rope_scaling == "yarn"; }
bool has_window(const Config& c) { return c.model.window > 0; }
bool has_experts(const Config& c) { return c.model.experts > 0; }
bool has_weight_decay(const Config& c) { return c.optim.weight_decay > 0; }

// A key that counts under a condition only. The condition is about the key `by`; `where` puts it into words.
struct Conditional {
  std::string_view key, where, by;
  bool (*counts)(const Config&);
};
constexpr std::string_view kWithMuon = "optim.name = \"muon\"", kWithFp8 = "precision.matmul = \"fp8\"",
                           kWithSamples = "train.sample_every above 0",
                           kWithLlama3Rope = "model.rope_scaling = \"llama3\"",
                           kWithYarn = "model.rope_scaling = \"yarn\"", kWithWindow = "model.window above 0",
                           kWithExperts = "a model.family that has experts";
constexpr auto kConditional = std::to_array<Conditional>({
    {"optim.muon_momentum", kWithMuon, "optim.name", uses_muon},
    {"optim.muon_momentum_from", kWithMuon, "optim.name", uses_muon},
    {"optim.muon_momentum_steps", kWithMuon, "optim.name", uses_muon},
    {"optim.muon_rounds", kWithMuon, "optim.name", uses_muon},
    {"optim.muon_coefficients", kWithMuon, "optim.name", uses_muon},
    {"optim.muon_beta2", kWithMuon, "optim.name", uses_muon},
    {"optim.muon_momentum_from", "optim.muon_momentum_steps above 0", "optim.muon_momentum_steps",
     [](const Config& c) { return c.optim.muon_momentum_steps > 0; }},
    {"optim.decay_fraction", "optim.schedule = \"wsd\"", "optim.schedule", uses_wsd},
    {"optim.decay_fraction", "optim.decay_tokens = 0", "optim.decay_tokens",
     [](const Config& c) { return c.optim.decay_tokens == 0; }},
    {"optim.min_lr", "an optim.schedule that falls", "optim.schedule",
     [](const Config& c) { return c.optim.schedule != "constant"; }},
    {"optim.weight_decay_falls", "optim.weight_decay above 0", "optim.weight_decay", has_weight_decay},
    {"optim.cautious_decay", "optim.weight_decay above 0", "optim.weight_decay", has_weight_decay},
    {"model.init", "an empty model.init_from", "model.init_from",
     [](const Config& c) { return c.model.init_from.empty(); }},
    {"model.rope_factor", "a model.rope_scaling other than \"none\"", "model.rope_scaling",
     [](const Config& c) { return c.model.rope_scaling != "none"; }},
    {"model.rope_low_freq_factor", kWithLlama3Rope, "model.rope_scaling", has_llama3_rope},
    {"model.rope_high_freq_factor", kWithLlama3Rope, "model.rope_scaling", has_llama3_rope},
    {"model.rope_original_len", "model.rope_scaling = \"llama3\" or \"yarn\"", "model.rope_scaling",
     [](const Config& c) { return has_llama3_rope(c) || has_yarn(c); }},
    {"model.rope_beta_fast", kWithYarn, "model.rope_scaling", has_yarn},
    {"model.rope_beta_slow", kWithYarn, "model.rope_scaling", has_yarn},
    {"model.rope_attention_factor", kWithYarn, "model.rope_scaling", has_yarn},
    {"model.rope_truncate", kWithYarn, "model.rope_scaling", has_yarn},
    {"model.router_aux", kWithExperts, "model.family", has_experts},
    {"log.router_every", kWithExperts, "model.family", has_experts},
    {"model.router_balance", "model.router_aux above 0", "model.router_aux",
     [](const Config& c) { return !has_experts(c) || c.model.router_aux > 0; }},
    {"model.ffn", "layers without experts, or model.expert_ffn = 0", "model.dense_layers",
     [](const Config& c) {
       return !has_experts(c) || !c.model.dense_layers.empty() || c.model.ffn == c.model.expert_ffn;
     }},
    {"model.layer_types", kWithWindow, "model.window", has_window},
    {"model.rope_local_theta", kWithWindow, "model.window", has_window},
    {"data.buckets", "data.packing = \"bucket\"", "data.packing",
     [](const Config& c) { return c.data.packing == "bucket"; }},
    {"data.shuffle_buffer", "data.shuffle = true", "data.shuffle", [](const Config& c) { return c.data.shuffle; }},
    {"train.average_steps", "train.average = \"ema\" or \"last\"", "train.average",
     [](const Config& c) { return c.train.average != "none"; }},
    {"train.sample_prompts", kWithSamples, "train.sample_every", writes_samples},
    {"train.sample_tokens", kWithSamples, "train.sample_every", writes_samples},
    {"train.sample_temperature", kWithSamples, "train.sample_every", writes_samples},
    {"precision.fp8", kWithFp8, "precision.matmul", uses_fp8},
    {"precision.fp8_products", kWithFp8, "precision.matmul", uses_fp8},
    {"precision.fp8_sums", kWithFp8, "precision.matmul", uses_fp8},
    {"precision.head", kWithFp8, "precision.matmul", uses_fp8},
    {"log.fp8_every", kWithFp8, "precision.matmul", uses_fp8},
});

void doubt_idle_keys(const Config& c, std::vector<Doubt>& doubts) {
  const Config defaults;
  // A run's own file has all keys, but for those that are newer than it; nobody writes most of these by hand, and those
  // of the model came with it.
  const bool has_all =
      2 * std::ranges::count_if(kConditional, [&](const Conditional& row) { return c.origins.written(row.key); }) >
      std::ssize(kConditional);
  for (const Conditional& row : kConditional) {
    if (row.counts(c) || !c.origins.written(row.key)) continue;
    const config::Key& key = *config::find_key(row.key);
    if (has_all && !c.origins.on_command_line(row.key) &&
        (row.key.starts_with("model.") || config::read(key, c) == config::read(key, defaults)))
      continue;
    if (std::ranges::find(doubts, row.key, &Doubt::key) != doubts.end()) continue;
    doubts.push_back(
        {row.key, fmt::format("{}{} = {} has no effect: it counts with {}, and {} is {}; leave it out, or set that",
                              c.origins.prefix({row.key}), row.key, value_of(row.key, c), row.where, row.by,
                              value_of(row.by, c))});
  }
}

void doubt_rate(const Config& c, std::vector<Doubt>& doubts) {
  const config::Optim& o = c.optim;
  const std::string rate = fmt::format("{}optim.lr = {}", c.origins.prefix({"optim.lr"}), short_rate(o.lr));
  const double highest = uses_muon(c) ? kHighestMuonRate : kHighestAdamwRate;
  if (o.lr == 0)
    doubts.push_back({"optim.lr", rate + ": no step changes the weights, and nothing is learned; set a rate above 0"});
  else if (o.lr > highest)
    doubts.push_back({"optim.lr", fmt::format("{} is far above what {} bears: rates above {} make losses that rise; "
                                              "set a lower one",
                                              rate, uses_muon(c) ? "Muon" : "AdamW", short_rate(highest))});
  else if (o.lr < kLowestRate)
    doubts.push_back({"optim.lr", fmt::format("{} is below {}: steps are too small to change weights; set a higher one",
                                              rate, short_rate(kLowestRate))});
}

// Steps of more or fewer rows, under the rate that a preset has for its own.
void hint_at_rate(const Config& c, const Config& preset, std::vector<Doubt>& doubts) {
  const auto rows = [](const Config& of) { return of.train.batch_size * of.train.accumulate; };
  if (rows(c) == rows(preset)) return;
  const std::string_view key = c.train.batch_size != preset.train.batch_size ? "train.batch_size" : "train.accumulate";
  if (!c.origins.written(key)) return;
  const double factor = std::sqrt(static_cast<double>(rows(c)) / static_cast<double>(rows(preset)));
  doubts.push_back({key,
                    fmt::format("{}{} = {}: steps have {}, and preset {} has optim.lr = {} for {}: by the root of "
                                "the ratio, which is a rule of thumb, that would be optim.lr={} optim.min_lr={}",
                                c.origins.prefix({key}), key, value_of(key, c), counted(rows(c), "row"), c.preset,
                                short_rate(preset.optim.lr), rows(preset), short_rate(factor * c.optim.lr),
                                short_rate(factor * c.optim.min_lr)),
                    true});
}

// A preset's rate is made for the preset's optimizer, and for its rows of a step.
void doubt_rate_of_preset(const Config& c, std::vector<Doubt>& doubts) {
  const auto presets = config::embedded_configs();
  if (std::ranges::find(presets, c.preset, &config::EmbeddedFile::name) == presets.end()) return;
  if (c.origins.on_command_line("optim.lr")) return;
  const Config preset = config::load({.file = "", .preset = c.preset, .overrides = {}});
  if (preset.optim.lr != c.optim.lr) return;
  if (preset.optim.name == c.optim.name) return hint_at_rate(c, preset, doubts);
  doubts.push_back(
      {"optim.lr", fmt::format("{}optim.lr = {} is preset {}'s rate for optim.name = \"{}\", and optim.name is \"{}\": "
                               "what suits the one is several times too much or too little for the other; set optim.lr",
                               c.origins.prefix({"optim.name"}), short_rate(c.optim.lr), c.preset, preset.optim.name,
                               c.optim.name)});
}

void doubt_warm_up(const Config& c, std::int64_t steps, std::int64_t ranks, std::vector<Doubt>& doubts) {
  const std::int64_t scheduled = steps - c.optim.schedule_start, warmup = optim::warmup_steps(c, steps, ranks);
  if (steps == 0 || warmup == 0 || warmup < scheduled) return;
  const std::string_view key = c.optim.warmup_tokens > 0     ? "optim.warmup_tokens"
                               : c.optim.warmup_fraction > 0 ? "optim.warmup_fraction"
                                                             : "optim.warmup_steps";
  doubts.push_back(
      {key,
       fmt::format("{}{} = {}: the warm-up of {} is as long as the run ({}) or longer, so that the rate only rises "
                   "and never reaches optim.lr = {}; shorten it, or train longer",
                   c.origins.prefix({key}), key, value_of(key, c), counted(warmup, "step"), counted(scheduled, "step"),
                   short_rate(c.optim.lr))});
}

// The recipe for going on. 2e-5 at 7B, a tenth of warm-up, a cosine and one epoch are values that people commonly tune
// with; the cube root is a rule of thumb. They were not looked up in their sources, and not measured here against other
// values: it is a start.
constexpr double kKnownRate = 2e-5, kKnownParameters = 7e9, kLeastMadeRate = 5e-6, kMostMadeRate = 3e-4;
constexpr double kWarmUpShare = 0.1, kLastShare = 0.1;
constexpr std::int64_t kWarmUpSteps = 20;  // where hours end the run
constexpr std::int64_t kTokensAStep = 16'384, kTokensAMicroBatch = 4096, kLongestRow = 2048, kBetweenEvaluations = 100;

// Two digits are all that it says.
double rounded_rate(double rate) { return std::stod(fmt::format("{:.1e}", rate)); }

double rate_for(double parameters) {
  const double rate = kKnownRate * std::cbrt(kKnownParameters / parameters);
  return std::clamp(rounded_rate(rate), kLeastMadeRate, kMostMadeRate);
}

double parameters_of(config::Model m) {
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.head_dim == 0) m.head_dim = m.hidden / m.heads;
  return static_cast<double>(model::parameter_count(model::family_of(m).table(m)));
}

class RecipeMaker {
 public:
  explicit RecipeMaker(Config& config) : config_(config) {}

  std::vector<std::string> make() {
    const config::Train& t = config_.train;
    if (t.max_steps == 0 && t.max_tokens == 0 && t.epochs == 0 && t.max_hours == 0) set_end();
    if (!any_written({"optim.name", "optim.lr", "optim.min_lr", "optim.warmup_steps", "optim.warmup_tokens",
                      "optim.warmup_fraction", "optim.schedule", "optim.decay_fraction", "optim.decay_tokens",
                      "optim.decay_shape", "optim.schedule_start"}))
      set_rate();
    const bool sets_batch = !any_written({"train.batch_size", "train.accumulate"});
    if (sets_batch || !reasons_.empty()) set_row();
    if (sets_batch) set_batch();
    if (!reasons_.empty() && !any_written({"train.eval_every"})) set("train.eval_every", kBetweenEvaluations);
    return std::move(reasons_);
  }

 private:
  bool any_written(std::initializer_list<std::string_view> keys) const {
    return std::ranges::any_of(keys, [&](std::string_view key) { return config_.origins.written(key); });
  }

  // As a preset would: nobody wrote it.
  void set(std::string_view key, const config::Value& value) {
    const std::string place = "the recipe for model.init_from";
    config::assign(*config::find_key(key), value, place, config_);
    config_.origins.set(key, place, true);
  }

  void set_end() {
    if (!config_.data.weights.empty()) return;  // entries are read unequally often: the user is asked
    set("train.epochs", 1.0);
    reasons_.emplace_back(
        "model.init_from: train.epochs = 1, since no key says where training ends; text that is read again and again "
        "is learned by heart");
  }

  void set_rate() {
    const config::Train& t = config_.train;
    const bool hours_alone = t.max_steps == 0 && t.max_tokens == 0 && t.epochs == 0;
    const bool constant = hours_alone && !t.fit_hours;
    const double parameters = parameters_of(config_.model), rate = rate_for(parameters);
    set("optim.name", std::string("adamw"));
    set("optim.lr", rate);
    set("optim.schedule", std::string(constant ? "constant" : "cosine"));
    if (!constant) set("optim.min_lr", rounded_rate(kLastShare * rate));
    if (hours_alone)
      set("optim.warmup_steps", kWarmUpSteps);
    else
      set("optim.warmup_fraction", kWarmUpShare);
    reasons_.push_back(fmt::format(
        "model.init_from: AdamW with optim.lr = {}, since no key of [optim] says how to go on: {} suits 7 billion "
        "parameters, and this model of {:.3g} million gets it by the cube root of the ratio{}; a warm-up of {}, as the "
        "moments begin at zero{}",
        short_rate(rate), short_rate(kKnownRate), 1e-6 * parameters, rate == kMostMadeRate ? ", at most that" : "",
        hours_alone ? counted(kWarmUpSteps, "step") : "a tenth of the steps",
        constant ? "" : ", then a cosine to a tenth of the rate"));
  }

  void set_row() {
    if (any_written({"train.seq_len"})) return;
    const std::int64_t longest = config_.model.max_positions;
    set("train.seq_len", longest > 0 ? std::min(longest, kLongestRow) : kLongestRow);
  }

  void set_batch() {
    const std::int64_t row = config_.train.seq_len;
    const std::int64_t rows = std::max<std::int64_t>(1, kTokensAMicroBatch / row);
    set("train.batch_size", rows);
    set("train.accumulate", std::max<std::int64_t>(1, (kTokensAStep + rows * row / 2) / (rows * row)));
    reasons_.push_back(fmt::format(
        "model.init_from: steps of {} a rank ({} of {} x {}), since no key says how large they are: few enough that "
        "little text still makes many steps",
        counted(rows * row * config_.train.accumulate, "token"), counted(rows, "row"), row,
        counted(config_.train.accumulate, "micro-batch")));
  }

  Config& config_;
  std::vector<std::string> reasons_;
};

// Positions that the weights have never seen.
void doubt_length(const Config& c, std::vector<Doubt>& doubts) {
  const std::int64_t known = c.model.max_positions;
  if (c.model.init_from.empty() || known == 0 || c.train.seq_len <= known) return;
  doubts.push_back(
      {"train.seq_len",
       fmt::format("{}train.seq_len = {}, and the weights of model.init_from know {}: later ones are "
                   "strange to them; stretch them (docs/hugging_face.md#longer-rows-yarn), or set "
                   "model.max_positions={} where they are to be learned as they are",
                   c.origins.prefix({"train.seq_len"}), c.train.seq_len, counted(known, "position"), c.train.seq_len)});
}

// A weight that is divided by itself is 1: routers are left with the balance, and choose for no reason.
void doubt_router(const Config& c, std::vector<Doubt>& doubts) {
  const config::Model& m = c.model;
  if (m.experts < 2 || m.experts_per_token != 1) return;
  const std::optional<model::ExpertNames>& names = model::family_of(m).decoder.experts;
  if (!names || !m.norm_topk.value_or(names->norm_topk)) return;
  doubts.push_back(
      {"model.experts_per_token",
       fmt::format("{}model.experts_per_token = 1 with model.norm_topk gives every token's one expert the weight 1, "
                   "whatever its router says, so that routers learn nothing from the loss; take more than one{}",
                   c.origins.prefix({"model.experts_per_token", "model.norm_topk"}),
                   names->always_norm_topk ? "" : ", or set model.norm_topk=false")});
}

// Models that redline trains and transformers refuses to load.
void doubt_export(const Config& c, std::vector<Doubt>& doubts) {
  const config::Model& m = c.model;
  const model::Family& family = model::family_of(m);
  std::string why;
  if (family.hf_defaults.whole_heads && m.hidden % m.heads != 0)
    why = fmt::format("is not a multiple of model.heads ({})", m.heads);
  if (family.hf_defaults.filled_heads && m.hidden != m.heads * m.head_dim)
    why = fmt::format("is not model.heads ({}) times model.head_dim ({})", m.heads, m.head_dim);
  if (why.empty()) return;
  doubts.push_back(
      {"model.heads", fmt::format("{}model.hidden ({}) {}: the run trains, and transformers refuses to load such a {}, "
                                  "so that what is exported stays here",
                                  c.origins.prefix({"model.heads", "model.hidden", "model.head_dim"}), m.hidden, why,
                                  family.hf_architecture)});
}

}  // namespace

std::vector<Doubt> doubtful_settings(const Config& config, std::int64_t steps, std::int64_t ranks) {
  std::vector<Doubt> doubts;
  doubt_rate(config, doubts);
  doubt_rate_of_preset(config, doubts);
  doubt_warm_up(config, steps, ranks, doubts);
  doubt_idle_keys(config, doubts);
  doubt_length(config, doubts);
  doubt_router(config, doubts);
  doubt_export(config, doubts);
  return doubts;
}

std::string short_rate(double rate) {
  if (rate == 0) return "0";
  const std::string text = fmt::format("{:.2e}", rate);  // 2.00e-03
  const std::size_t e = text.find('e');
  if (e == text.npos) return text;  // not finite
  std::string digits = text.substr(0, e);
  while (digits.ends_with('0')) digits.pop_back();
  if (digits.ends_with('.')) digits.pop_back();
  const std::size_t first = std::min(text.find_first_not_of('0', e + 2), text.size() - 1);
  return fmt::format("{}e{}{}", digits, text[e + 1] == '-' ? "-" : "", text.substr(first));
}

std::vector<std::string> complete_recipe(Config& config) {
  if (config.model.init_from.empty() || !config.preset.empty()) return {};
  return RecipeMaker(config).make();
}

}  // namespace redline::train
