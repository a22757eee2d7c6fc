// The engine, a loader, and the clock around them.
#include "perf/steps.h"

#include <algorithm>

#include "base/clock.h"
#include "data/from_config.h"
#include "optim/schedule.h"
#include "program/product_tuning.h"
#include "train/ends.h"

namespace redline::perf {
namespace {

// Documents of very different lengths: the mean of so many rows is within a few percent of all.
constexpr std::int64_t kCountedRows = 1024, kCountedTokens = 4 << 20;

// The choices for the device, made before the engine that they are made for.
model::LoweringOptions prepared(const config::Config& c, device::Device& device) {
  program::tune_products(device, c.kernels.tuning);
  return model::lowering_options(c, device.kind());
}

std::unique_ptr<data::Corpus> source(const config::Config& c) {
  auto opened = data::open_training_corpus(data::corpus_options(c.data));
  data::require_vocabulary(*opened, c.model.vocab);
  return opened;
}

}  // namespace

Steps::Steps(const config::Config& c, device::Device& device, const StopFlag* stop)
    : config_(c),
      lowering_(prepared(c, device)),
      stop_(stop),
      loader_(source(c), data::loader_options(c.data, lowering_.batch, device.kind() == device::Kind::cpu)),
      engine_(c.model, lowering_, device),
      batch_(lowering_.batch) {
  engine_.initialise(lowering_.seed);
  engine_.drop_on(stop);
}

StepTimes Steps::step(std::int64_t index, std::int64_t micro_batches, StepTimer* timer) {
  const double begin = steady_seconds();
  StepTimes times = queue(index, micro_batches, timer);
  take();
  times.seconds = steady_seconds() - begin;
  return times;
}

StepTimes Steps::queue(std::int64_t index, std::int64_t micro_batches, StepTimer* timer) {
  const double lr = optim::learning_rate(config_, index, train::total_steps(config_.train), 1);
  const auto step = static_cast<std::uint64_t>(index);
  std::int64_t pairs = 0;
  StepTimes times;
  for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
    const double wait = steady_seconds();
    read_batch();
    times.waited += steady_seconds() - wait;
    count_batch();
    engine_.upload(batch_);
    engine_.set_step(step, lr, 0, static_cast<std::uint64_t>(micro * batch_.shape.tokens()));
    if (timer) timer->micro_batch(index, static_cast<double>(batch_.score_pairs));
    engine_.micro_step(micro == 0, micro + 1 == micro_batches, timer);
    pairs += batch_.pairs;
    times.model_flops += engine_.model_flops(batch_);
  }
  engine_.set_step(step, lr, static_cast<double>(std::max<std::int64_t>(pairs, 1)), 0);
  engine_.update(timer);
  engine_.post_result();
  times.tokens = static_cast<double>(pairs);
  return times;
}

void Steps::read_batch() {
  if (!loader_.next(batch_)) fail_user("data.train has no documents to train on");
}

bool Steps::counted() const {
  return summed_ * batch_.shape.rows >= kCountedRows || summed_ * batch_.shape.tokens() >= kCountedTokens;
}

void Steps::count_batch() {
  if (counted()) return;
  sums_.tokens += static_cast<double>(batch_.pairs);
  sums_.model_flops += engine_.model_flops(batch_);
  ++summed_;
}

Work Steps::work() {
  while (!counted()) {
    end_if_asked(stop_);
    read_batch();
    count_batch();
  }
  const auto n = static_cast<double>(summed_);
  return {sums_.tokens / n, sums_.model_flops / n};
}

}  // namespace redline::perf
