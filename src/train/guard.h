// The guard decides what a run does about updates that were not made: how many it bears, which checkpoint it goes back
// to, and which batches it then passes over. The device itself decides about an update (optim/adamw.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "io/json_fwd.h"
#include "train/observer.h"

namespace redline::train {

// The part of the guard that goes into a checkpoint. Batches are counted by draws, from 0: one draw is the batches of a
// step.
struct GuardState {
  std::int64_t drawn = 0;                       // draws so far: the steps, and those that were passed over
  std::vector<std::int64_t> streak = {};        // draws of the last steps, where they made no update
  std::int64_t skipped = 0, rollbacks = 0;      // of the run so far
  std::optional<std::int64_t> good = {};        // the newest checkpoint that is held to be good
  std::vector<std::int64_t> to_pass_over = {};  // draws that are still to come, rising
  bool operator==(const GuardState&) const = default;
};

io::Json to_json(const GuardState& state);
GuardState guard_state_from(const io::Json& json, const std::string& file);

class Guard {
 public:
  enum class Verdict { skip, end, go_back };

  // The state belongs to the run. Loading a checkpoint replaces it.
  Guard(const config::Guard& settings, GuardState& state) : settings_(settings), state_(state) {}

  // The state is that of the checkpoint of this step; step 0: of none.
  void begin(std::int64_t step);

  void made(std::int64_t draw, std::span<const std::int64_t> documents);
  Verdict left_out(std::int64_t draw, std::span<const std::int64_t> documents);

  // A checkpoint is good once the next one is saved with no update left out between them. before_save is called when a
  // save begins, saved when it is on the disk, steps later; a failed save has no second call.
  void before_save(std::int64_t step);
  void saved(std::int64_t step);

  std::int64_t streak() const { return static_cast<std::int64_t>(state_.streak.size()); }
  std::optional<std::int64_t> good() const { return state_.good; }
  // The checkpoint that a run would go back to: the good one, or the newest where none is good yet.
  std::optional<std::int64_t> back_to() const { return state_.good ? state_.good : saved_; }
  bool may_go_back() const { return state_.rollbacks < settings_.rollbacks && back_to(); }

  // The run has gone back to a checkpoint whose own state is `then`. It will pass over the draws of the streak, and
  // over that of the last update where `broken`: this update broke the weights. Returns the batches it will pass over.
  std::vector<PassedBatch> go_back(GuardState then, std::int64_t step, bool broken);

  bool passes_over() const;  // whether the next draw is one to pass over
  void passed_over();        // it was drawn

 private:
  const config::Guard& settings_;
  GuardState& state_;
  std::optional<std::int64_t> saved_;  // the newest checkpoint
  bool clean_ = true;                  // no update was left out since
  bool clean_since_begun_ = true;      // the save that may still be under way
  std::optional<std::int64_t> last_made_;
  std::map<std::int64_t, std::vector<std::int64_t>> documents_;  // of the streak and of the last update, by draw
};

std::vector<std::int64_t> each_once(std::span<const std::int64_t> documents);  // rising
// "3, 9, 12 and 40 more"; each once.
std::string documents_in_words(std::span<const std::int64_t> documents);

}  // namespace redline::train
