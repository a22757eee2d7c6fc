// Divides a step into its parts, finds its illnesses, one rule each, and puts what was found in order.
#include "perf/doctor.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "base/words.h"
#include "model/fp8_linears.h"
#include "model/lowering.h"
#include "perf/batch_size.h"
#include "perf/fp8_choice.h"
#include "train/ends.h"

namespace redline::perf {
namespace {

using train::Illness;

// The rate at which a local disk takes a checkpoint (bench/results/h200_saves.json: 1.1 to 1.8 GB/s).
constexpr double kDiskBytesPerSecond = 1e9;

// The reference kernel reaches 1 / 340 of the peak: gqa-180m with 16 rows in tf32 took 587 ms with it and 106 ms
// without on an H200 (docs/experiments.md), 1.39 TFLOP of attention.
constexpr double kReferenceFloors = 340;

constexpr std::int64_t kAligned = 8, kTile = 128;  // elements of a load of 16 bytes, and of a product's tile

std::int64_t whole_tiles(std::int64_t n) { return (n + kTile - 1) / kTile * kTile; }

bool on_card(const Machine& m) { return m.kind == device::Kind::cuda; }

// Extra time of products with rows of n elements, as a share. Loads are as wide as all rows are aligned: cs336-350m
// with 32 rows lost 51 ms with an ffn of 2,732, 107 ms with 2,730 and 150 ms with 2,731 to its MLPs, which the plan
// gives 59 ms, on an H200 (docs/performance.md). A tile that is not full takes as long as a full one.
double odd_extent_share(std::int64_t n) {
  if (n % kAligned != 0) return n % 4 == 0 ? 0.86 : n % 2 == 0 ? 1.81 : 2.53;
  return static_cast<double>(whole_tiles(n)) / static_cast<double>(n) - 1;
}

// The width of the MLP's products, or of those of experts, and the key that sets it.
struct Width {
  std::int64_t of = 0;
  const char* key = "";
};
Width mlp_width(const config::Model& m) {
  return m.experts > 0 && m.expert_ffn > 0 ? Width{m.expert_ffn, "model.expert_ffn"} : Width{m.ffn, "model.ffn"};
}

// Extra time of experts' products, as a share: the last tile of each expert's rows is half full in the mean.
double thin_experts_share(const config::Config& c) {
  const double rows = static_cast<double>(c.train.batch_size * c.train.seq_len * c.model.experts_per_token);
  return c.model.experts > 0 ? 0.5 * static_cast<double>(kTile * c.model.experts) / rows : 0;
}

double mlp_estimate(const config::Config& c, const PlannedStep& planned) {
  return planned.mlp_ms * odd_extent_share(mlp_width(c.model).of);
}

double thin_experts_estimate(const config::Config& c, const PlannedStep& planned) {
  return planned.mlp_ms * thin_experts_share(c);
}

bool has_fast_head_dim(const config::Config& c) { return c.model.head_dim == 64 || c.model.head_dim == 128; }

double attention_estimate(const config::Config& c, const PlannedStep& planned, bool reference_seen) {
  const PartTime& attention = planned.parts[StepPart::attention];
  const std::int64_t d = c.model.head_dim;
  const bool none_can = !has_fast_head_dim(c) && (d % kAligned != 0 || d > 128);
  if (reference_seen || none_can || c.kernels.attention == "reference")
    return std::max(0.0, kReferenceFloors * attention.floor_ms - attention.ms);
  if (has_fast_head_dim(c)) return 0;
  return attention.ms * (static_cast<double>(d <= 64 ? 64 : 128) / static_cast<double>(d) - 1);
}

double launches_estimate(const config::Config& c, const PlannedStep& planned, bool fell_back) {
  return fell_back || c.kernels.graphs == "off" ? planned.node_by_node_ms : 0;
}

// A step under examination: what was seen of it, beside the plan.
struct Examination {
  const config::Config& config;
  const Machine& machine;
  const Observed& seen;
  PlannedStep planned;
  double device_ms = 0;  // without waiting for other ranks
  double whole_ms = 0;   // the step with its share of evaluations and saves
  double data_ms = 0;    // the part of its wait for data in which the device stood still

  Examination(const config::Config& c, const Machine& m, const Observed& o)
      : config(c), machine(m), seen(o), planned(planned_step(c, m, o.filling)) {
    device_ms = std::max(0.0, seen.device_ms - seen.ranks_wait_ms);
    whole_ms = seen.step_ms + seen.evaluation_ms + seen.sampling_ms + seen.saving_ms;
    data_ms = std::min(seen.data_wait_ms, seen.idle_ms);
  }

  double excess_ms() const { return std::max(0.0, device_ms - planned.parts.ms()); }  // of device_ms over the plan

  // Time of slow kernels beyond the plan, at most the step's own time.
  double slow_attention_ms() const { return slow(attention_estimate(config, planned, seen.reference_attention)); }
  double slow_mlp_ms() const { return slow(mlp_estimate(config, planned)); }
  double thin_experts_ms() const { return slow(thin_experts_estimate(config, planned)); }
  double slow_launches_ms() const { return slow(launches_estimate(config, planned, seen.graphs_fell_back)); }
  double slow_kernels_ms() const {
    return slow(slow_attention_ms() + slow_mlp_ms() + thin_experts_ms() + slow_launches_ms());
  }

 private:
  double slow(double estimate) const { return on_card(machine) ? std::min(excess_ms(), estimate) : 0; }
};

StepParts divide(const Examination& p) {
  StepParts parts = p.seen.timed ? *p.seen.timed : p.planned.parts;
  if (!p.seen.timed) {
    parts[StepPart::attention].ms += p.slow_attention_ms();
    parts[StepPart::products].ms += p.slow_mlp_ms() + p.thin_experts_ms();
    parts[StepPart::launches].ms += p.slow_launches_ms();
  }
  parts[StepPart::communication].ms = 0;  // the part of it that computing hides costs nothing
  const double scale = parts.ms() > 0 ? p.device_ms / parts.ms() : 0;
  for (PartTime& part : parts.of) part.ms *= scale;
  for (const StepPart of_tokens : {StepPart::products, StepPart::memory_bound, StepPart::head})
    parts[of_tokens].floor_ms *= 1 - p.seen.padding;
  // Attention has no work in padding; a plan of full rows does not know that.
  if (p.seen.filling.length == 0) parts[StepPart::attention].floor_ms *= 1 - p.seen.padding;
  for (PartTime& part : parts.of) part.floor_ms = std::min(part.floor_ms, part.ms);
  parts[StepPart::communication] = {p.seen.ranks_wait_ms, 0};
  parts[StepPart::launches].ms += std::max(0.0, p.seen.idle_ms - p.data_ms);
  parts[StepPart::data].ms = p.data_ms;
  parts[StepPart::evaluation].ms = p.seen.evaluation_ms;
  parts[StepPart::sampling].ms = p.seen.sampling_ms;
  parts[StepPart::saving].ms = p.seen.saving_ms;
  return parts;
}

constexpr double kLittle = 0.01;                  // of the time: what evaluations and saves may well cost
constexpr double kSlowDisk = 300e6;               // bytes a second: a third of what local disks do
constexpr double kLargeCheckpoint = 64 * 0x1p20;  // of a smaller one the time is the file system's, not the disk's

constexpr const char* kAnotherModel = "another model: a run starts anew with it";

std::string ms(double value) { return value < 10 ? fmt::format("{:.2g} ms", value) : fmt::format("{:.0f} ms", value); }
std::string short_gib(std::int64_t bytes) {
  const double value = gib(bytes);
  return value < 1 ? fmt::format("{:.2g}", value) : fmt::format("{:.1f}", value);
}
std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

// The next of 1, 2, 5, 10, 20, 50 ...
std::int64_t round_up(double n) {
  for (std::int64_t unit = 1;; unit *= 10)
    for (const std::int64_t times : {1, 2, 5})
      if (static_cast<double>(times * unit) >= n || unit > 1'000'000'000'000) return times * unit;
}

class Rules {
 public:
  explicit Rules(const Examination& p)
      : p_(p), c_(p.config), seen_(p.seen), card_(p.machine.kind == device::Kind::cuda) {}

  std::vector<Finding> all() {
    padding();
    loader();
    saves();
    every("train.eval_every", c_.train.eval_every, Illness::frequent_evaluation, seen_.evaluation_ms, "evaluations");
    every("train.sample_every", c_.train.sample_every, Illness::frequent_samples, seen_.sampling_ms, "samples");
    recompute();
    small_batch();
    ranks();
    if (card_) on_card();
    return std::move(found_);
  }

 private:
  Finding& add(Illness illness, double loss_ms, std::string found, std::vector<std::string> changes = {},
               std::string basis = "by the plan") {
    return found_.emplace_back(Finding{illness, std::move(found), "", std::move(changes), std::move(basis), loss_ms});
  }
  std::string recorded() const { return seen_.measured ? "as recorded" : "by the plan"; }
  // The lost part of the device's time, less kernels that the plan knows nothing of, where the plan expects the step to
  // become so many times as fast.
  double loss_of(double gain) const { return gain > 1 ? (p_.device_ms - p_.slow_kernels_ms()) * (1 - 1 / gain) : 0; }
  double rate(const config::Config& c) const { return make_plan(c, p_.machine).expected.tokens_per_s; }
  double own_rate() const {
    if (own_rate_ == 0) own_rate_ = rate(c_);
    return own_rate_;
  }

  void padding() {
    if (seen_.padding <= 0) return;
    // The update takes as long whatever the rows hold.
    const double update = std::min(p_.planned.parts[StepPart::update].ms, p_.device_ms);
    Finding& f = add(Illness::padding,
                     seen_.packed_gain > 0 ? loss_of(seen_.packed_gain) : seen_.padding * (p_.device_ms - update),
                     fmt::format("{} of the token slots hold no document", percent(seen_.padding)), {}, recorded());
    const bool pads = c_.data.packing == "pad" || c_.data.packing == "bucket";
    f.changes = {!seen_.packed_by.empty() ? seen_.packed_by : pads ? "data.packing=pack" : "data.packing=stream"};
    if (c_.data.packing == "stream") f.changes.clear();
    if (!pads)
      f.mend = seen_.packed_by.empty() ? "no document fits what is left of the rows; \"stream\" cuts one there"
                                       : "a larger data.max_segments lets a batch hold more short documents";
  }

  void loader() {
    if (p_.data_ms <= 0) return;
    const std::string found = fmt::format("the device waits {} of a step for data", ms(p_.data_ms));
    if (seen_.slowest_stage == "read") {
      add(Illness::slow_disk, p_.data_ms, found + "; reading is the slowest stage", {}, recorded()).mend =
          "data on a faster or local disk, or prepared (redline data prepare), mend that";
      return;
    }
    Finding& f = add(Illness::starving_loader, p_.data_ms, found, {}, recorded());
    if (!seen_.slowest_stage.empty()) f.found += fmt::format("; {} is the slowest stage", seen_.slowest_stage);
    if (c_.data.workers == 0) f.changes = {"data.workers=-1"};
    if (c_.data.workers > 0) f.changes = {fmt::format("data.workers={}", 2 * c_.data.workers)};
  }

  void saves() {
    if (seen_.saving_ms <= 0 || c_.checkpoint.every == 0) return;
    const auto bytes = static_cast<double>(make_plan(c_, p_.machine).checkpoint);
    const double speed = seen_.save_seconds > 0 ? bytes / seen_.save_seconds : 0;
    const bool slow = seen_.measured && bytes > kLargeCheckpoint && speed > 0 && speed < kSlowDisk;
    if (!slow) {
      every("checkpoint.every", c_.checkpoint.every, Illness::frequent_saves, seen_.saving_ms, "saves");
      return;
    }
    // Saving is beside training as soon as a checkpoint is written before the next is due.
    const double enough = 1e3 * seen_.save_seconds / seen_.step_ms;
    Finding& f =
        add(Illness::slow_disk, seen_.saving_ms,
            fmt::format("saves hold training for {} a step: a checkpoint of {:.1f} GB takes {:.0f} s, {:.0f} MB/s",
                        ms(seen_.saving_ms), bytes * 1e-9, seen_.save_seconds, speed * 1e-6),
            {}, recorded());
    if (within_run(round_up(enough), c_.checkpoint.every) > c_.checkpoint.every)
      f.changes = {fmt::format("checkpoint.every={}", within_run(round_up(enough), c_.checkpoint.every))};
  }

  // A run has a few of them in any case, whatever they cost: what is advised is a share of it.
  std::int64_t within_run(std::int64_t advised, std::int64_t now) const {
    constexpr std::int64_t kLeastTimes = 4;
    const std::int64_t run = seen_.learned.steps_of_run > 0 ? seen_.learned.steps_of_run : train::total_steps(c_.train);
    return run == 0 ? advised : std::min(advised, std::max(run / kLeastTimes, now));
  }

  // Work between steps that comes every `steps` of them.
  void every(std::string_view key, std::int64_t steps, Illness illness, double cost_ms, std::string_view what) {
    if (steps == 0 || cost_ms <= 0) return;
    const double share = cost_ms / p_.whole_ms;
    if (share <= kLittle) return;
    const std::int64_t rarer = within_run(round_up(static_cast<double>(steps) * share / kLittle), steps);
    if (rarer <= steps) return;  // as rare already as a run of its length has them
    const double left = static_cast<double>(steps) / static_cast<double>(rarer);
    add(illness, cost_ms * (1 - left),
        fmt::format("{} take {} for each step, {} of the time ({} = {})", what, ms(cost_ms), percent(share), key,
                    steps),
        {fmt::format("{}={}", key, rarer)}, recorded());
  }

  void recompute() {
    if (c_.train.recompute == "none" || c_.train.recompute == "auto") return;
    for (const char* less : {"none", "mlp"}) {
      if (c_.train.recompute == less) return;
      config::Config other = c_;
      other.train.recompute = less;
      const Plan plan = make_plan(other, p_.machine);
      if (!plan.fits) continue;
      add(Illness::recompute, loss_of(plan.expected.tokens_per_s / own_rate()),
          fmt::format("train.recompute = \"{}\" computes again what there is room for ({} of {} GiB without)",
                      c_.train.recompute, short_gib(plan.memory.total()), short_gib(p_.machine.memory)),
          {fmt::format("train.recompute={}", less)});
      return;
    }
  }

  // Fewer and larger micro-batches of the same step; where there is one already, and it is tiny, a larger step.
  void small_batch() {
    if (seen_.batch_was_chosen) return;
    const Setting own = setting_of(c_);
    Setting s = own, best = own;
    double fastest = own_rate();
    while (true) {
      std::int64_t factor = 2;
      while (s.accumulate % factor != 0 && factor <= s.accumulate) ++factor;
      if (s.accumulate > 1)
        s = {s.batch_size * factor, s.accumulate / factor, s.recompute};
      else if (s.batch_size * c_.train.seq_len < kEnoughTokens)
        s.batch_size *= 2;
      else
        break;
      if (s.batch_size > model::most_rows(c_)) break;
      const Plan plan = make_plan(with_setting(c_, s), p_.machine);
      if (!plan.fits) break;
      if (plan.expected.tokens_per_s < (1 + kLittle) * fastest) continue;
      fastest = plan.expected.tokens_per_s;
      best = s;
    }
    if (best == own) return;
    Finding& f =
        add(Illness::small_batch, loss_of(fastest / own_rate()),
            fmt::format("a micro-batch has {}: products are small, and weights and gradients move for little work",
                        counted(own.batch_size * c_.train.seq_len, "token")),
            {fmt::format("train.batch_size={}", best.batch_size)});
    f.mend = "larger micro-batches have larger products, and move weights and gradients less often";
    if (best.accumulate != own.accumulate) f.changes.push_back(fmt::format("train.accumulate={}", best.accumulate));
    const std::int64_t ranks = std::max<std::int64_t>(c_.parallel.ranks, 1);  // each of which has such micro-batches
    if (best.rows() != own.rows())
      f.caution = fmt::format("a step then has {} instead of {}: optim.lr follows, by the root of the ratio as a rule",
                              counted(best.rows() * ranks, "row"), own.rows() * ranks);
  }

  void ranks() {
    double lag = 0;
    if (seen_.slowest_rank >= 0) {
      lag = std::clamp(seen_.slowest_rank_ms - seen_.median_rank_ms, 0.0, seen_.step_ms);
      add(Illness::slow_rank, lag,
          fmt::format("rank {} needs {} for a step, the one in the middle {}", seen_.slowest_rank,
                      ms(seen_.slowest_rank_ms), ms(seen_.median_rank_ms)),
          {}, "as recorded");
    }
    const double network = seen_.ranks_wait_ms - lag;
    if (network <= 0) return;
    Finding& f = add(
        Illness::communication, network,
        fmt::format("{} of a step pass with nothing to compute before others' gradients or weights come", ms(network)),
        {}, "as recorded");
    if (c_.parallel.wire == "fp32") f.changes = {"parallel.wire=bf16"};
  }

  void on_card() {
    shapes();
    throttled();
    if (const double loss = p_.slow_launches_ms(); loss > 0) {
      Finding& f = add(Illness::no_graphs, loss,
                       seen_.graphs_fell_back ? "a capture failed, and every kernel is launched by itself"
                                              : "kernels.graphs = \"off\": every kernel is launched by itself",
                       {}, "estimated");
      if (c_.kernels.graphs == "off") f.changes = {"kernels.graphs=auto"};
    }
    const auto in = [&](const char* matmul) {
      config::Config other = c_;
      other.precision.matmul = matmul;
      return loss_of(rate(expect_fp8(other, p_.machine).config) / own_rate());
    };
    const std::string& matmul = c_.precision.matmul;
    if (matmul == "tf32" || matmul == "fp32")
      add(Illness::precision, in("bf16"), fmt::format("precision.matmul = \"{}\"", matmul), {"precision.matmul=bf16"})
          .caution = "products round their operands to bf16";
    if (matmul == "bf16" && p_.machine.tflops.fp8 > 0)
      add(Illness::fp8_off, in("fp8"), "the card has fp8, and the plan expects it to pay", {"precision.matmul=fp8"})
          .caution = "products of linears then take operands of eight bits: docs/fp8.md says how the loss keeps up";
  }

  void shapes() {
    vocabulary();
    const config::Model& m = c_.model;
    const auto [width, key] = mlp_width(m);
    if (const double loss = p_.slow_mlp_ms(); loss > 0)
      add(Illness::ffn, loss,
          fmt::format("{} = {} is no multiple of {}", key, width,
                      width % kAligned != 0 ? "8: rows begin anywhere, and products load them piece by piece"
                                            : "128: the last tile of a product is not full"),
          {fmt::format("{}={}", key, whole_tiles(width))}, "estimated")
          .caution = kAnotherModel;
    if (const double loss = p_.thin_experts_ms(); loss > 0) thin_experts(loss);
    const double attention = p_.slow_attention_ms();
    if (attention <= 0) return;
    if (m.head_dim == 64 || m.head_dim == 128) {
      Finding& f = add(Illness::reference_attention, attention,
                       c_.kernels.attention == "reference" ? "kernels.attention = \"reference\""
                                                           : "the reference computes attention: no other could",
                       {}, "estimated");
      if (c_.kernels.attention == "reference") f.changes = {"kernels.attention=auto"};
      return;
    }
    const std::int64_t wide = m.head_dim < 64 ? 64 : 128;
    add(Illness::head_dim, attention,
        fmt::format("model.head_dim = {}: the fast kernels of attention take 64 and 128", m.head_dim),
        {fmt::format("model.head_dim={}", wide)}, "estimated")
        .caution = kAnotherModel;
  }

  // The same tokens a step in fewer micro-batches, where there are several.
  void thin_experts(double loss) {
    const config::Train& t = c_.train;
    const bool fewer = t.accumulate % 2 == 0;
    Finding& f = add(Illness::thin_experts, loss,
                     fmt::format("a micro-batch has {:.0f} rows for each of {} experts in the mean, and products take "
                                 "them in tiles of {}, the last of which is half full",
                                 static_cast<double>(t.batch_size * t.seq_len * c_.model.experts_per_token) /
                                     static_cast<double>(c_.model.experts),
                                 c_.model.experts, kTile),
                     {fmt::format("train.batch_size={}", 2 * t.batch_size)}, "estimated");
    if (fewer) f.changes.push_back(fmt::format("train.accumulate={}", t.accumulate / 2));
    if (!fewer) f.caution = "twice the tokens a step: another run, whose optim.lr may be higher";
  }

  // In bf16 any vocabulary is fast: the head cuts its products (ops/cuda/gemm.cpp). Those of eight bits cannot be cut.
  void vocabulary() {
    config::Config other = c_;
    other.model.vocab = whole_tiles(c_.model.vocab);
    if (model::fp8_products(c_).head || !model::fp8_products(other).head) return;
    add(Illness::vocabulary, loss_of(rate(other) / own_rate()),
        fmt::format("model.vocab = {} is no multiple of {}, so the head's gradients are not in fp8", c_.model.vocab,
                    ops::kFp8Multiple),
        {fmt::format("model.vocab={}", other.model.vocab)})
        .caution = kAnotherModel;
  }

  void throttled() {
    const auto &now = seen_.clock_mhz, &most = seen_.max_clock_mhz;
    if (!now || !most || !train::clocks_are_held_down(seen_.throttle, now, most)) return;
    const double usual = train::kBusyClock * *most;
    if (*now >= usual) return;
    const StepParts& parts = p_.planned.parts;  // memory has a clock of its own
    const double of_clock = parts[StepPart::products].ms + parts[StepPart::attention].ms + parts[StepPart::head].ms;
    const double share = parts.ms() > 0 ? of_clock / parts.ms() : 0;
    add(Illness::throttled, std::min(p_.excess_ms(), p_.device_ms * share * (1 - *now / usual)),
        fmt::format("{:.0f} MHz of {:.0f} in the mean ({}); a busy card keeps about {:.0f}", *now, *most,
                    seen_.throttle, usual),
        {}, "as recorded");
  }

  const Examination& p_;
  const config::Config& c_;
  const Observed& seen_;
  const bool card_;
  mutable double own_rate_ = 0;
  std::vector<Finding> found_;
};

// Those that train.eval_tokens fill, where it counts.
double batches_of_evaluation(const config::Train& t) {
  if (t.eval_tokens == 0) return static_cast<double>(t.eval_batches);
  return std::ceil(static_cast<double>(t.eval_tokens) / static_cast<double>(t.batch_size * t.seq_len));
}

}  // namespace

Observed expected_step(const config::Config& config, const Machine& machine, const std::optional<Filled>& filled) {
  const Filling filling = filling_of(filled);
  const Plan plan = make_plan(config, machine, {}, filling);
  const PlannedStep planned = planned_step(config, machine, filling);
  const double planned_ms = planned.parts.ms();
  Observed seen;
  seen.device_ms = planned_ms;
  if (on_card(machine))
    seen.device_ms += attention_estimate(config, planned, false) + launches_estimate(config, planned, false) +
                      mlp_estimate(config, planned) + thin_experts_estimate(config, planned);
  seen.step_ms = seen.device_ms;
  seen.tokens = filling.utilisation * static_cast<double>(plan.tokens_per_step);
  seen.padding = 1 - filling.utilisation;
  seen.filling = filling;
  if (filled && filled->known()) {
    const Plan packed = make_plan(filled->mended(config), machine, {}, filled->packed);
    seen.packed_gain = packed.expected.tokens_per_s / plan.expected.tokens_per_s;
    seen.packed_by = filled->set();
  }
  seen.mfu = plan.expected.mfu * planned_ms / seen.step_ms;
  if (config.train.eval_every > 0)
    seen.evaluation_ms =
        planned.evaluation_ms * batches_of_evaluation(config.train) / static_cast<double>(config.train.eval_every);
  seen.save_seconds = static_cast<double>(plan.checkpoint) / kDiskBytesPerSecond;
  if (config.checkpoint.every > 0) {  // beside the steps, as long as there are enough of them
    const auto every = static_cast<double>(config.checkpoint.every);
    seen.saving_ms = std::max(0.0, 1e3 * seen.save_seconds / every - seen.step_ms);
  }
  return seen;
}

void Diagnosis::separate_refuted() {
  for (std::vector<Finding>* from : {&findings, &options}) {
    const auto help = [](const Finding& f) { return !f.refuted(); };
    const auto rest = std::ranges::stable_partition(*from, help);
    refuted.insert(refuted.end(), rest.begin(), rest.end());
    from->erase(rest.begin(), rest.end());
  }
}

Diagnosis diagnose(const config::Config& config, const Machine& machine, const Observed& seen) {
  const Examination p(config, machine, seen);
  Diagnosis d;
  d.parts = divide(p);
  d.step_ms = p.whole_ms;
  d.tokens_per_s = 1e3 * seen.tokens / d.step_ms;
  d.mfu = seen.mfu * seen.step_ms / d.step_ms;
  double explained = p.slow_kernels_ms();
  for (Finding& f : Rules(p).all()) {
    if (f.illness == train::Illness::throttled) explained += f.loss_ms;
    f.loss_ms = std::min(f.loss_ms, 0.99 * d.step_ms);
    if (f.loss_ms < kWorthMending * d.step_ms) continue;
    f.gain = d.step_ms / (d.step_ms - f.loss_ms);
    f.mfu_points = d.mfu_points(f.loss_ms);
    if (f.mend.empty()) f.mend = f.row().mend;
    (f.row().optional ? d.options : d.findings).push_back(std::move(f));
  }
  for (LearningIllness& l : illnesses_of_learning(config, seen.learned, make_plan(config, machine).active_parameters)) {
    Finding& f = d.findings.emplace_back();
    f.illness = l.illness;
    f.found = std::move(l.found);
    f.mend = l.mend.empty() ? std::string(f.row().mend) : std::move(l.mend);
    f.changes = std::move(l.changes);
    f.costs = std::move(l.costs);
    f.basis = seen.learned.steps.empty() ? "by the settings" : "as recorded";
    f.loss_ms = l.share * d.step_ms;
  }
  if (seen.measured) d.of_plan = std::max(0.0, p.device_ms - explained) / p.planned.parts.ms();
  const auto dearer = [](const Finding& a, const Finding& b) { return a.loss_ms > b.loss_ms; };
  std::ranges::stable_sort(d.findings, dearer);
  std::ranges::stable_sort(d.options, dearer);
  return d;
}

}  // namespace redline::perf
