// The control plane of ranks, beside the tensors: membership, small values that all must know, warnings, and the end.
// Every rank has a thread that is connected to rank 0's by TCP and sends a heartbeat each second. A rank that dies,
// hangs or fails ends all of them with one sentence, whatever their main threads wait for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/place.h"

namespace redline::dist {

struct ControlOptions {
  std::string version;        // of the program: all ranks must run the same
  double join_seconds = 120;  // for all ranks to come
  // Called on the control thread of rank 0, with the warnings of other ranks.
  std::function<void(int rank, std::string_view warning)> warned = {};
  // The sentence of an end that is not a goodbye: on rank 0, and on the first other rank of each machine where rank 0
  // itself is gone. Not given: one line on standard error.
  std::function<void(std::string_view sentence)> say = {};
  // Called before the end, on the rank that finds out: a rank that is gone, hangs or has failed.
  std::function<void(int rank)> at_fault = {};
  // Called on the control thread of every rank right before the end itself, whatever its other threads do: what must
  // not be left behind is put in order here. It has about three seconds.
  std::function<void(std::string_view sentence, int status)> before_end = {};
  // The end itself, on every rank, after the sentence. Not given: std::_Exit, since other threads may hang
  // inside a library for ever.
  std::function<void(int status)> end = {};
};

class Control {
 public:
  // Meets all ranks. A port that is taken, and ranks that do not fit together, are a UserError; a rank that does not
  // come in time is a MachineError; both name it. A process that is alone meets at once.
  static std::unique_ptr<Control> join(const Place& place, ControlOptions options);
  ~Control();  // without a goodbye, the others take this rank for gone
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  const Place& place() const;
  const std::vector<std::string>& hosts() const;  // by rank
  std::string own_address() const;                // of this machine, as rank 0 and others reach it

  // Meetings: every rank calls the same ones in the same order, and each returns when all have come. Threads that do so
  // at the same time use channels of their own. After the end of the run they throw a MachineError with its sentence.
  std::vector<std::string> all_gather(std::string_view mine, std::string_view channel = "");  // by rank
  std::string broadcast(std::string_view from_rank_0, std::string_view channel = "");  // others' words are dropped
  void barrier(std::string_view channel = "");

  void tell(std::string_view warning);  // to rank 0

  // How far this rank is; every call of progress() is a sign of progress, also with the same step. Both only store.
  void progress(std::int64_t step);
  void collective(std::int64_t number);  // the last that was begun
  // Seconds of the last step in which this rank did not wait for others; and on rank 0 everybody's, by rank, as the
  // last heartbeats said, 0 where none has.
  void pace(double seconds);
  std::vector<double> paces() const;
  // From here on no progress for so many seconds ends all, and names the ranks that are the least far. All ranks call
  // it.
  void watch(double seconds);

  // Ends all ranks with this sentence and status. Returns once end() has.
  void fail(std::string_view sentence, int status = 1);
  bool ended() const;

  // An ordinary end: returns when all ranks have called it. Nothing may be asked of the others afterwards.
  void goodbye();

 private:
  Control();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline::dist
