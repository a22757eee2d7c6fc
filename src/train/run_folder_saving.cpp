// Writes checkpoints from a snapshot on a thread, one at a time, and tells what became of them.
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "io/best_checkpoint.h"
#include "io/checkpoint_folder.h"
#include "train/run_folder.h"

namespace redline::train {
namespace {

constexpr double kWorthTelling = 0.5;  // seconds

}  // namespace

RunFolder::~RunFolder() {
  if (!saving_.valid()) return;
  try {
    collect(true);
  } catch (const std::exception& e) {  // the run has ended by another error, which says more
    log::warn("{}", e.what());
  }
}

void RunFolder::make_snapshot(model::Engine& engine) {
  if (snapshot_) return;
  snapshot_.emplace(engine);
  if (snapshot_->where() == model::Snapshot::Where::nowhere)
    tell(
        Warning{fmt::format("there is no room for a copy of the state ({}) on the device, nor in the host's memory: "
                            "training stands still while checkpoints are written",
                            in_bytes(snapshot_->bytes()))});
}

// The first copy into new memory of the host takes ten times as long as the next ones, since the system clears pages
// when they are touched. A card's spare memory is known after its first evaluation, and needs no touch. Where a run has
// gone back there is a snapshot already, and it may be being written.
void RunFolder::get_ready(model::Engine& engine) {
  if (snapshot_ || !engine.device().shares_host_memory()) return;
  make_snapshot(engine);
  snapshot_->take();
}

void RunFolder::save(model::Engine& engine, const RunState& state, double began) {
  if (begun_) made_anew();
  tell(BeforeCheckpoint{});
  make_snapshot(engine);
  snapshot_->take();
  const config::Config config = as_kept(options_.config);
  saving_step_ = state.step;
  const bool beside = snapshot_->where() != model::Snapshot::Where::nowhere;
  const dist::Sharing& sharing = options_.team.sharing;
  CheckpointContent content = checkpoint_content(engine, config, state, tokens_, sharing.rank, sharing.ranks);
  const double held = steady_seconds() - began;
  saving_ = std::async(std::launch::async, [this, began, beside, held, settings = config.checkpoint,
                                            best = state.ends.best_step, good = state.guard.good,
                                            content = std::move(content)] {
    const auto read = [this](std::span<const model::StateTensor> tensors, const model::TakeBytes& take) {
      snapshot_->read(tensors, take);
    };
    if (options_.team.saving)
      write_checkpoint(files_, checkpoints_, content, read, *options_.team.saving);
    else
      write_checkpoint(files_, checkpoints_, content, read);
    const std::string problem = best == content.step ? io::link_best(files_, checkpoints_, best) : "";
    io::prune_checkpoints(files_, checkpoints_, settings.keep, settings.keep_every, content.step,
                          {best, good.value_or(best)});
    const double seconds = steady_seconds() - began;
    return Written{{content.step, checkpoints_ / io::checkpoint_name(content.step), seconds, beside ? held : seconds},
                   problem};
  });
  if (!beside) saving_.wait();
}

void RunFolder::before_update() {
  if (snapshot_) snapshot_->hold_update();
}

// Checkpoints stand at the steps where they are due: training waits for a disk that does not keep up, and says so.
void RunFolder::wait_for_the_disk() {
  const double began = steady_seconds();
  saving_.wait();
  const double waited = steady_seconds() - began;
  if (waited < kWorthTelling || std::exchange(told_of_waiting_, true)) return;
  tell(Warning{
      fmt::format("the checkpoint of step {} was still being written when the next one was due: training waited "
                  "{:.1f} s for it, and will again; a larger checkpoint.every, or a faster disk, mends that",
                  saving_step_, waited)});
}

std::optional<Keeper::SaveOutcome> RunFolder::settle(Settle which) {
  using namespace std::chrono_literals;
  if (!saving_.valid()) return {};
  if (which == Settle::if_over && saving_.wait_for(0s) != std::future_status::ready) return {};
  if (which == Settle::before_next) wait_for_the_disk();
  return collect(which == Settle::last);
}

Keeper::SaveOutcome RunFolder::collect(bool must_succeed) {
  const auto go_on = [&](const std::exception& e) {
    if (must_succeed || options_.config.checkpoint.on_error == "stop") throw;
    tell(
        Warning{fmt::format("the checkpoint of step {} was not written: {}. Training goes on, and the next one that is "
                            "due is tried (checkpoint.on_error)",
                            saving_step_, e.what())});
  };
  try {
    const Written written = saving_.get();
    if (!written.problem.empty()) tell(Warning{written.problem});
    tell(written.saved);
    return {true, written.saved.seconds};
  } catch (const MachineError& e) {
    go_on(e);
  } catch (const UserError& e) {
    go_on(e);
  }
  return {};
}

}  // namespace redline::train
