// The times of steps, by the device's own clock. They do not depend on the host's work, nor on when it asks.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "device/device.h"

namespace redline::model {

struct StepTime {
  double seconds = 0;  // from the end of the step before to the end of this one
  double working = 0;  // of them in its own programs; in the rest the device stood still, or did something else
};

// Steps follow each other; several may be under way.
class StepClock {
 public:
  explicit StepClock(device::Device& device);

  void restart();  // the next step's time begins here, after all steps were taken; programs begun are forgotten
  void begin();    // a program of the step that comes next
  void end();
  void finish();                                // the step, with the end of its last program
  StepTime take();                              // of the oldest step that nobody took; waits for its end
  void wait_for_all_but(std::size_t programs);  // the last ones of the step that has begun

 private:
  using Span = std::size_t;
  struct Step {
    Span before;  // its end is the end of the step before
    std::vector<Span> programs;
  };
  Span unused();

  std::unique_ptr<device::Spans> spans_;
  std::deque<Step> finished_;   // and not taken
  std::vector<Span> programs_;  // of the step that has begun
  Span last_ = 0;               // its end is where the next step's time begins
  std::vector<Span> unused_;
  Span made_ = 1;
};

}  // namespace redline::model
