#include "train/trainer.h"

#include <chrono>
#include <cmath>

#include "config/load.h"
#include "data/loader.h"
#include "io/checkpoint_folder.h"
#include "model/engine.h"
#include "model/evaluate.h"
#include "optim/schedule.h"
#include "train/checkpoint.h"
#include "train/resume.h"

namespace redline::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

data::BatchShape batch_shape(const config::Config& c) {
  return {c.train.batch_size, c.train.seq_len, c.data.max_segments};
}

model::LoweringOptions lowering_options(const config::Config& c) {
  return {.batch = batch_shape(c),
          .training = true,
          .accumulate = c.train.accumulate > 1,
          .logits = false,
          .optim = c.optim,
          .seed = static_cast<std::uint64_t>(c.train.seed)};
}

void check_vocabulary(const data::DocumentSource& source, const config::Config& c, const char* key) {
  if (source.vocabulary() > c.model.vocab)
    fail_user("model.vocab is {}, but {} ({}) has a vocabulary of {}; set model.vocab to at least that", c.model.vocab,
              key, source.name(), source.vocabulary());
}

// One run, from its first step here to its last.
class Run {
 public:
  Run(const TrainOptions& options, device::Device& device, FileSystem& files)
      : options_(options),
        config_(options.config),
        files_(files),
        steps_(total_steps(config_.train)),
        checkpoints_(options.folder / "checkpoints"),
        engine_(config_.model, lowering_options(config_), device),
        loader_(data::open_training_source(config_.data), batch_shape(config_), config_.data.packing),
        batch_(batch_shape(config_)),
        device_name_(device.name()) {
    check_vocabulary(loader_.source(), config_, "data.train");
    check_vocabulary(*data::open_held_out_source(config_.data), config_, "data.eval");
  }

  TrainResult run() {
    const std::optional<io::FoundCheckpoint> found = find_checkpoint();
    if (found) {
      state_ = load_checkpoint(files_, found->folder, engine_);
      loader_.restore(state_.loader);
    } else {
      engine_.initialise(static_cast<std::uint64_t>(config_.train.seed));
    }
    tell_start(found);
    if (options_.dry_run) return {Outcome::dry_run, state_.step, {}};
    if (state_.step >= steps_) {
      tell([&](Observer& o) {
        o.finished(fmt::format("all {} steps of {} are done already", steps_, options_.folder.string()));
      });
      return {Outcome::already_finished, state_.step, {}};
    }
    if (!found) write_config();
    if (state_.step == 0 && config_.train.eval_every > 0) held_out_loss();  // where it began
    return loop();
  }

 private:
  template <class Say>
  void tell(const Say& say) {
    for (Observer* o : options_.observers) say(*o);
  }

  std::optional<io::FoundCheckpoint> find_checkpoint() {
    if (!options_.resume) return std::nullopt;
    return io::newest_whole_checkpoint(
        files_, checkpoints_, [&](const io::FoundCheckpoint& c, const std::string& problem) {
          tell([&](Observer& o) {
            o.warning(fmt::format("{} is damaged and is passed over: {}", c.folder.string(), problem));
          });
        });
  }

  void tell_start(const std::optional<io::FoundCheckpoint>& found) {
    RunHeader header;
    header.config = &config_;
    header.folder = options_.folder;
    header.device = device_name_;
    header.data = loader_.source().name();
    header.parameters = model::parameter_count(engine_.table());
    header.steps = steps_;
    header.first_step = state_.step;
    header.tokens_per_step = batch_.shape.tokens() * config_.train.accumulate;
    header.memory = &engine_.programs().memory;
    header.peak_flops = options_.peak_flops;
    header.peak_source = options_.peak_source;
    if (found)
      tell([&](Observer& o) {
        o.note(fmt::format("resuming after step {} from {}", state_.step, found->folder.string()));
      });
    else if (options_.resume)
      tell([&](Observer& o) {
        o.note(fmt::format("nothing to resume in {}: starting from the beginning", options_.folder.string()));
      });
    tell([&](Observer& o) { o.started(header); });
  }

  void write_config() {
    files_.create_folders(options_.folder);
    files_.replace(options_.folder / kRunConfig, config::dump(config_));
  }

  TrainResult loop() {
    std::optional<double> eval_loss;
    while (state_.step < steps_) {
      StepMetrics m = step();
      const bool last = state_.step == steps_;
      const bool stopping = options_.stop && *options_.stop != 0;
      const auto due = [&](std::int64_t every) { return last || (every > 0 && state_.step % every == 0); };
      if (due(config_.train.eval_every)) m.eval_loss = eval_loss = held_out_loss();
      tell([&](Observer& o) { o.stepped(m); });
      if (due(config_.checkpoint.every) || stopping) save();
      if (stopping && !last) {
        tell([&](Observer& o) {
          o.finished(fmt::format("stopped by signal {} after step {}; continue with --resume", options_.stop->load(),
                                 state_.step));
        });
        return {Outcome::stopped, state_.step, eval_loss};
      }
    }
    tell([&](Observer& o) {
      o.finished(fmt::format("{} steps done, held-out loss {:.4f}", state_.step, eval_loss.value_or(NAN)));
    });
    return {Outcome::finished, state_.step, eval_loss};
  }

  // One update over `accumulate` micro-batches.
  StepMetrics step() {
    const Clock::time_point start = Clock::now();
    const auto step_index = static_cast<std::uint64_t>(state_.step);
    StepMetrics m;
    m.lr = optim::learning_rate(config_.optim, state_.step, steps_);
    std::int64_t pairs = 0, real = 0;
    double flops = 0, flops_palm = 0;
    const std::int64_t first_document = state_.loader.next_document;
    for (std::int64_t micro = 0; micro < config_.train.accumulate; ++micro) {
      const Clock::time_point wait = Clock::now();
      if (!loader_.next(batch_)) fail_user("data.train has no documents to train on");
      m.data_wait_ms += 1e3 * seconds_since(wait);
      engine_.upload(batch_);
      engine_.set_step(step_index, m.lr, 0, static_cast<std::uint64_t>(micro * batch_.shape.tokens()));
      engine_.micro_step(micro == 0);
      pairs += batch_.pairs;
      real += batch_.real_tokens;
      flops += engine_.model_flops(batch_);
      flops_palm += engine_.model_flops_palm(batch_);
    }
    if (pairs == 0)
      fail_user("step {}: the batch holds no token pairs to predict; give documents of at least 2 tokens",
                state_.step + 1);
    engine_.set_step(step_index, m.lr, 1.0 / static_cast<double>(pairs), 0);
    engine_.update();
    const UpdateResult result = engine_.update_result();
    m.loss = engine_.loss_sum() / static_cast<double>(pairs);
    m.grad_norm = result.grad_norm;
    const double seconds = seconds_since(start);

    if (result.finite != 1.0f) {
      throw NotFinite(
          fmt::format("step {}: {} is not finite (loss {}, gradient norm {}) on the batch of documents {} to {}; the "
                      "update was not "
                      "made and the last checkpoint stays: try a lower optim.lr (now {:g}), a longer "
                      "optim.warmup_steps or optim.clip, "
                      "then --resume",
                      state_.step + 1, std::isfinite(m.loss) ? "the gradient norm" : "the loss", m.loss, m.grad_norm,
                      first_document, loader_.state().next_document - 1, m.lr));
    }

    state_.step += 1;
    state_.tokens += pairs;
    state_.loader = loader_.state();
    m.step = state_.step;
    m.time = unix_time();
    m.step_ms = 1e3 * seconds;
    m.tokens = pairs;
    m.tokens_per_s = static_cast<double>(pairs) / seconds;
    m.padding = 1 - static_cast<double>(real) / static_cast<double>(batch_.shape.tokens() * config_.train.accumulate);
    m.tflops = flops / seconds * 1e-12;
    if (options_.peak_flops > 0) {
      m.mfu = flops / seconds / options_.peak_flops;
      m.mfu_palm = flops_palm / seconds / options_.peak_flops;
    }
    m.memory_gib = static_cast<double>(engine_.executor().arena_bytes()) / (1 << 30);
    return m;
  }

  double held_out_loss() {
    data::Loader loader(data::open_held_out_source(config_.data), batch_.shape, config_.data.packing);
    const model::Evaluation e = model::evaluate(
        engine_, loader, config_.train.eval_batches,
        [&](std::int64_t done, std::int64_t of) { tell([&](Observer& o) { o.evaluating(done, of); }); });
    tell([&](Observer& o) { o.evaluated(state_.step, e.loss); });
    return e.loss;
  }

  void save() {
    const Clock::time_point start = Clock::now();
    tell([](Observer& o) { o.before_checkpoint(); });
    save_checkpoint(files_, checkpoints_, engine_, config_, state_);
    io::prune_checkpoints(files_, checkpoints_, config_.checkpoint.keep, config_.checkpoint.keep_every, state_.step);
    tell([&](Observer& o) {
      o.saved(state_.step, checkpoints_ / io::checkpoint_name(state_.step), seconds_since(start));
    });
  }

  const TrainOptions& options_;
  const config::Config& config_;
  FileSystem& files_;
  std::int64_t steps_;
  Path checkpoints_;
  model::Engine engine_;
  data::Loader loader_;
  data::Batch batch_;
  std::string device_name_;
  RunState state_;
};

}  // namespace

std::int64_t total_steps(const config::Train& t) {
  const std::int64_t tokens_per_step = t.batch_size * t.seq_len * t.accumulate;
  const std::int64_t by_tokens = (t.max_tokens + tokens_per_step - 1) / tokens_per_step;
  if (t.max_tokens == 0) return t.max_steps;
  if (t.max_steps == 0) return by_tokens;
  return std::min(t.max_steps, by_tokens);
}

TrainResult train(const TrainOptions& options, device::Device& device, FileSystem& files) {
  check_folder(options, files);
  return Run(options, device, files).run();
}

}  // namespace redline::train
