// Goodput divides the time of a session into parts. It is always in exactly one part, so that the parts add up to the
// wall time. report/run_record.h adds sessions up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
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
  std::int64_t tokens = 0;                      // of all steps made, including those lost later
  std::optional<double> joules;                 // of the card, where it counts them

  double& of(Part part) { return seconds[static_cast<std::size_t>(part)]; }
  double of(Part part) const { return seconds[static_cast<std::size_t>(part)]; }
  double wall() const;
  double share(Part part) const;                   // of the wall time
  std::optional<double> joules_per_token() const;  // nothing where one of the two is not known
  // Counts all steps since the account was `kept`, and the work for them, as lost.
  void lose_all_since(const Account& kept);
};

// What a start takes, part by part: a lap is all since the one before.
class StartLaps {
 public:
  explicit StartLaps(double began = steady_seconds()) : began_(began), last_(began) {}
  void lap(std::string_view part, double now = steady_seconds());  // those of one name, a literal, add up
  void part(std::string_view part, double seconds) { lap(part, last_ + seconds); }  // of the lap that ends next
  double began() const { return began_; }
  double seconds() const { return last_ - began_; }
  std::string in_words() const;  // "ready in 9.8 s: plan 1.2, weights 3.1"; parts that no one would feel are left out

 private:
  struct Part {
    std::string_view name;
    double seconds;
  };
  double began_, last_;
  std::vector<Part> parts_ = {};
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
  // Begins in start-up, at `began` on the steady clock, or now.
  explicit Goodput(std::optional<double> began = {}) : Goodput(began, Clocks()) {}
  Goodput(std::optional<double> began, Clocks clocks);

  // Turns to a part while it lives, and then back to the one before.
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
  Part turn_to(Part part);  // returns the part before
  [[nodiscard]] Scope in(Part part) { return Scope(*this, part); }
  [[nodiscard]] Scope saving(std::int64_t step);  // of the checkpoint of that step, while training waits for it
  void went_back(std::int64_t step);              // to the checkpoint of that step: later steps are made again

  // A step has ended. Of its wait for data, only the time counts in which the device was idle. Fills in the metrics of
  // goodput.
  void stepped(StepMetrics& m);
  void ask(const device::GpuMonitor* card);  // asks the card for its energy so far; null: no card

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
