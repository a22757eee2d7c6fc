// Loads and writes a rank's part of checkpoints, as rank 0 says.
#include "train/rank_folder.h"

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "config/toml.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "train/run_folder.h"

namespace redline::train {

std::string TakenUp::words() const {
  return io::Json{{"checkpoint", checkpoint}, {"new_order", new_order}, {"other_batches", other_batches}}.dump();
}

TakenUp TakenUp::read(const std::string& words) {
  const io::Json json = io::Json::parse(words);
  return {json.at("checkpoint"), json.at("new_order"), json.at("other_batches")};
}

std::string agree_on(io::Communicator& ranks, const std::string& problem) {
  std::string first;
  const std::vector<std::string> all = ranks.gather(problem);
  for (std::size_t rank = 0; rank < all.size() && first.empty(); ++rank)
    if (!all[rank].empty()) first = rank == 0 ? all[rank] : fmt::format("rank {}: {}", rank, all[rank]);
  return ranks.broadcast(first);
}

RankFolder::~RankFolder() {
  if (!saving_.valid()) return;
  try {
    collect(true);
  } catch (const std::exception& e) {  // the run has ended by another error, which says more
    if (options_.team.warn) options_.team.warn(e.what());
  }
}

void RankFolder::tell(const Event& event) {
  hear(event, [&](const Warning& w) {
    if (options_.team.warn) options_.team.warn(w.text);
  });
}

// As the leader's, who has changed it in the same way.
RunState RankFolder::state_of(const TakenUp& taken) const {
  const Path checkpoint = taken.checkpoint;
  RunState state = read_run_state(files_, checkpoint);
  if (taken.other_batches || taken.new_order) state.guard = counted_anew(state);
  if (!taken.new_order) state.loader = read_loader_state(files_, checkpoint);
  return state;
}

std::optional<Path> RankFolder::resume(StepLoop& loop) {
  if (!options_.resume) return std::nullopt;
  io::Communicator& ranks = *options_.team.communicator;
  for (;;) {
    const TakenUp taken = TakenUp::read(ranks.broadcast(""));
    if (taken.checkpoint.empty()) return std::nullopt;
    std::string problem;
    try {
      loop.restore(state_of(taken));
      if (loop.trains()) {
        loop.make_engine();
        const std::optional<config::Config> before = config_of_checkpoint(files_, taken.checkpoint);
        loop.load_checkpoint(taken.checkpoint, before ? &*before : nullptr);
      }
    } catch (const std::exception& e) {
      problem = e.what();
    }
    if (agree_on(ranks, problem).empty()) return taken.checkpoint;
  }
}

void require_shared_folder(const TrainOptions& options, FileSystem& files) {
  io::Communicator& ranks = *options.team.communicator;
  const Path path = options.folder / kRunConfig;
  const auto read = [&] { return files.exists(path) ? files.read(path) : ""; };
  const std::string first = ranks.broadcast(options.team.leads() ? read() : "");
  const bool same = first == read();  // only now: rank 0 has made the folder before it spoke
  const std::string problem = agree_on(ranks, same ? "" : fmt::format("there is another {} here, or none", kRunConfig));
  if (!problem.empty())
    fail_user(
        "{} is not the same folder on every rank ({}): ranks write their checkpoints together; choose an --out on a "
        "file "
        "system that all of them share",
        options.folder.string(), problem);
}

void RankFolder::get_ready(model::Engine& engine) {
  if (snapshot_ || !engine.device().shares_host_memory()) return;
  snapshot_.emplace(engine);
  snapshot_->take();
}

void RankFolder::save(model::Engine& engine, const RunState& state, double began) {
  if (!snapshot_) snapshot_.emplace(engine);
  snapshot_->take();
  const dist::Sharing& sharing = options_.team.sharing;
  saving_ = std::async(std::launch::async, [this, began,
                                            content = checkpoint_content(engine, as_kept(options_.config), state, {},
                                                                         sharing.rank, sharing.ranks)] {
    write_checkpoint(
        files_, options_.folder / kCheckpoints, content,
        [this](std::span<const model::StateTensor> tensors, const model::TakeBytes& take) {
          snapshot_->read(tensors, take);
        },
        *options_.team.saving);
    return steady_seconds() - began;
  });
  if (snapshot_->where() == model::Snapshot::Where::nowhere) saving_.wait();
}

void RankFolder::before_update() {
  if (snapshot_) snapshot_->hold_update();
}

std::optional<Keeper::SaveOutcome> RankFolder::settle(Settle which) {
  using namespace std::chrono_literals;
  if (!saving_.valid()) return {};
  if (which == Settle::if_over && saving_.wait_for(0s) != std::future_status::ready) return {};
  return collect(which == Settle::last);
}

// A save that fails on one rank fails on all, and rank 0 tells of it.
Keeper::SaveOutcome RankFolder::collect(bool must_succeed) {
  try {
    return {true, saving_.get()};
  } catch (const std::exception&) {
    if (must_succeed || options_.config.checkpoint.on_error == "stop") throw;
  }
  return {};
}

std::optional<RunState> RankFolder::go_back(StepLoop& loop, std::int64_t) {
  if (saving_.valid()) collect(false);
  const TakenUp taken = TakenUp::read(options_.team.communicator->broadcast(""));
  if (taken.checkpoint.empty()) return {};
  RunState state = state_of(taken);
  const std::optional<config::Config> before = config_of_checkpoint(files_, taken.checkpoint);
  loop.load_checkpoint(taken.checkpoint, before ? &*before : nullptr);
  return state;
}

}  // namespace redline::train
