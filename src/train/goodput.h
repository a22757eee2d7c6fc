// Where the time of a run goes: a stopwatch that is always in exactly one part, so that the parts add up to the wall
// time. It counts one session; report/run_goodput.h adds sessions up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace redline::device {
class GpuMonitor;
}

namespace redline::train {

struct StepMetrics;

enum class Part { steps, data, ranks, evaluation, sampling, saving, start_up, done_again, standing_still };

struct PartName {
  std::string_view key, words;  // in files; for people
};
inline constexpr std::array<PartName, 9> kParts = {{{"steps", "in steps"},
                                                    {"data", "waiting for data"},
                                                    {"ranks", "waiting for other ranks"},
                                                    {"evaluation", "evaluation"},
                                                    {"sampling", "sampling"},
                                                    {"saving", "saving"},
                                                    {"start_up", "start-up"},
                                                    {"done_again", "lost and done again"},
                                                    {"standing_still", "standing still"}}};

// The time that a session, or several, took.
struct Account {
  std::array<double, kParts.size()> seconds{};  // of each Part
  std::int64_t tokens = 0;                      // of the steps that were made, those that were lost later included
  std::optional<double> joules;                 // of the card, where it counts them

  double& of(Part part) { return seconds[static_cast<std::size_t>(part)]; }
  double of(Part part) const { return seconds[static_cast<std::size_t>(part)]; }
  double wall() const;
  double share(Part part) const;                   // of the wall time
  std::optional<double> joules_per_token() const;  // nothing where one of the two is not known
  // All that was made since the account was `kept`, its steps and the work for them, was lost.
  void lose_all_since(const Account& kept);
};

// When this process began, on steady_seconds(), the loading of its libraries included.
double process_began();

// Seconds for which the machine was suspended since it was started: a steady clock does not count them.
double asleep_seconds();

// May be read while another thread switches it.
class Goodput {
 public:
  struct Clocks {
    double (*steady)() = steady_seconds;
    double (*asleep)() = asleep_seconds;
    double (*of_day)() = unix_seconds;
  };
  // Is in start-up, since `began` on the steady clock; nothing: from now on.
  explicit Goodput(std::optional<double> began = {}) : Goodput(began, Clocks()) {}
  Goodput(std::optional<double> began, Clocks clocks);

  // A part while it lives, and then what it was before.
  class Scope {
   public:
    Scope(Goodput& of, Part part) : of_(of), before_(of.turn_to(part)) {}
    ~Scope() { of_.turn_to(before_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Goodput& of_;
    Part before_;
  };
  Part turn_to(Part part);  // the part that it was in
  [[nodiscard]] Scope in(Part part) { return Scope(*this, part); }
  [[nodiscard]] Scope saving(std::int64_t step);  // a checkpoint after that many updates, as far as it holds training
  void went_back(std::int64_t step);              // to the checkpoint of that step: what was made since is done again

  // A step has ended. Of its wait for data counts the time in which the device had nothing to do. Puts what stands in
  // the metrics of goodput there.
  void stepped(StepMetrics& m);
  void ask(const device::GpuMonitor* card);  // for what it has used by now; no card is none

  Account account() const;                 // so far
  double began() const { return began_; }  // seconds since 1970

 private:
  struct Mark {
    std::int64_t step;
    Account account;
  };
  Account now() const;  // the mutex is held
  void settle();

  Clocks clocks_;
  double began_;
  double asleep_;  // when it began
  mutable std::mutex mutex_;
  Part part_ = Part::start_up;
  double since_;      // up to here `account_` has all
  double told_ = -1;  // when the parts last stood in the metrics of a step, in seconds of the session
  Account account_;
  std::vector<Mark> marks_;  // of the checkpoints, oldest first
};

}  // namespace redline::train
