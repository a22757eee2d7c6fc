// Holds a run's data against those of the checkpoint that it goes on from, and looks after their files while it trains.
#include "base/clock.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/words.h"
#include "train/step_loop.h"

namespace redline::train {
namespace {

constexpr double kQuiet = 2, kBetweenNotes = 5;  // seconds

// Tells of reading only where it takes long.
data::DataWatch::Progress tell_reading(std::string_view key, std::function<bool()> stopping) {
  return [key, stopping = std::move(stopping), next = steady_seconds() + kQuiet](std::uint64_t done,
                                                                                 std::uint64_t of) mutable {
    if (stopping()) throw Interrupted{};
    if (steady_seconds() < next) return;
    next = steady_seconds() + kBetweenNotes;
    log::note("{}: reading its files, which were moved or written to, to compare them: {:.1f} of {:.1f} GiB", key,
              gib(done), gib(of));
  };
}

}  // namespace

bool StepLoop::data_are_others(const RunState& before, const Path& checkpoint) {
  const bool others = are_others(watch_, before.data, "data.train", checkpoint);
  if (before.eval && eval_watch_) {
    are_others(*eval_watch_, *before.eval, "data.eval", checkpoint);
  } else if (before.eval.has_value() != eval_watch_.has_value() && !before.data.ends_only) {
    if (!options_.allow_change)
      fail_user("data.eval {}, and {} was evaluated on {}; give it back, or allow the change with --allow-change",
                eval_watch_ ? "is set" : "is empty", checkpoint.string(),
                eval_watch_ ? "a part of data.train that training never saw" : "other data");
    keeper_.tell(Note{"held-out losses from here on are of other data than those before"});
    ends_.losses_are_others();
  }
  return others;
}

bool StepLoop::are_others(data::DataWatch& watch, const data::DataIdentity& before, std::string_view key,
                          const Path& checkpoint) {
  const bool eval = key == "data.eval";
  const data::Corpus& corpus = eval ? held_out_.corpus() : loader_.corpus();
  const std::string where = checkpoint.string();
  switch (watch.compare(before, tell_reading(key, [this] { return stopping(); }))) {
    case data::DataMatch::same: return false;
    case data::DataMatch::same_bytes:
      keeper_.tell(Note{fmt::format("{}: its files were moved, copied or touched; every byte is as it was", key)});
      return false;
    case data::DataMatch::same_blocks:
      keeper_.tell(
          Warning{fmt::format("{}: its files were moved, copied or written to since {}. Sizes and the blocks that were "
                              "compared are the same; the run had not read all of them when it was saved, so that the "
                              "rest cannot be compared",
                              key, where)});
      return false;
    case data::DataMatch::unknown:
      if (options_.allow_change) break;
      fail_user(
          "{}: {} is from an earlier redline, which compared no more than the ends of files: whether the data are the "
          "same is not known; --allow-change goes on with them, and begins their order anew",
          key, where);
    case data::DataMatch::other:
      if (options_.allow_change) break;
      fail_user(
          "{} ({}) is not what {} was {} on; give it back its data ({}=PATH, if they were moved), allow the change "
          "with "
          "--allow-change, or start another run with another --out",
          key, corpus.name(), where, eval ? "evaluated" : "trained", key);
  }
  keeper_.tell(Note{fmt::format(
      "{} is other data than before: {}", key,
      eval ? "held-out losses from here on cannot be compared with those before" : "it is read from its beginning")});
  if (eval || !eval_watch_) ends_.losses_are_others();
  return true;
}

// The checkpoint keeps what the data were when they were opened: a resume compares the files with that.
void StepLoop::tell_changed_files() {
  const auto tell = [&](data::DataWatch& watch, std::string_view key) {
    const std::vector<Path> changed = watch.changed();
    if (changed.empty()) return;
    const std::size_t more = changed.size() - 1;
    keeper_.tell(Warning{
        fmt::format("{}: {}{} changed on the disk while the run reads it: steps may have seen either state. The run "
                    "goes on; a resume "
                    "will refuse the data unless every byte is as it was",
                    key, changed[0].string(), more > 0 ? fmt::format(" and {}", counted(more, "other file")) : "")});
  };
  tell(watch_, "data.train");
  if (eval_watch_) tell(*eval_watch_, "data.eval");
}

}  // namespace redline::train
