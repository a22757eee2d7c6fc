// An average of the weights, a flat array beside them (train.average).
// average:   average = parameters where the share is 1, else average + share * (parameters - average);
//            left as it is where the update was not made. The share is the step's (StepState), and average_share says
//            which.
// exchange:  both arrays change places: where products take the parameters themselves, an evaluation of the average
//            has it stand in their place meanwhile.
#pragma once

#include "base/step_state.h"
#include "base/tensor.h"
#include "config/config.h"
#include "optim/state.h"

namespace redline::optim {

inline constexpr std::string_view kAverage = "average";

// Its row of the state, for the parameters of a range. Where ranks share `all` of them, this rank has the range. Its
// tensors have the parameters' own names, in a file of their own.
inline StateArray average_state(Range range, Range all = {}) {
  return {.name = std::string(kAverage), .range = range, .file = kAverageFile, .shared = all};
}

// The share of the weights behind step `step` (from 0) of a run of `steps` in their average:
//   ema   1 / min(step + 1, average_steps): the mean of all so far, then an exponential one of that reach
//   last  1 / k at the k-th of the last average_steps steps; 1 before them, so that it is the weights themselves
double average_share(const config::Train& train, std::int64_t step, std::int64_t steps);

template <class T>
struct Average {
  static constexpr std::string_view kName = "average";
  T parameters;  // [N]
  T average;     // [N]  in place
  T state;       // StepState
  T result;      // UpdateResult

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", average, Access::read));
    return Average<U>{f("parameters", parameters, Access::read), f("average", average, Access::update),
                      f("state", state, Access::read), f("result", result, Access::read)};
  }
};

template <class T>
struct Exchange {
  static constexpr std::string_view kName = "exchange";
  T parameters;  // [N]  in place
  T average;     // [N]  in place

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", average, Access::read));
    return Exchange<U>{f("parameters", parameters, Access::update), f("average", average, Access::update)};
  }
};

}  // namespace redline::optim
