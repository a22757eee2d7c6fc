// The ranks that a launcher has started (redline launch, torchrun, srun, mpirun), for commands: they meet, agree on
// what to do, and end together.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/log.h"
#include "cli/commands.h"
#include "config/config.h"
#include "dist/control.h"
#include "dist/group.h"
#include "io/communicator.h"
#include "train/trainer.h"

namespace redline::cli {

class Ranks {
 public:
  // Meets the other ranks, and takes this rank's share of the machine: its card, its part of the cores. Does nothing in
  // a process without a launcher, which is alone. Ranks with different words are a UserError.
  explicit Ranks(const Words& words);
  ~Ranks();

  bool alone() const { return place_.alone(); }
  bool leads() const { return place_.rank == 0; }
  int rank() const { return place_.rank; }
  int count() const { return place_.ranks; }
  int on_this_machine() const { return place_.local_ranks; }
  const std::string& restart() const { return place_.restart; }  // by the launcher; empty: it is none

  io::Communicator* communicator() { return communicator_.get(); }  // null: alone
  // Returns rank 0's words on every rank.
  std::string broadcast(const std::string& words);
  // Connects the devices. From here on a rank that makes no progress for `timeout` seconds ends all ranks.
  void connect(device::Device& device, std::int64_t timeout);
  train::Team team(dist::Mode mode, const config::Parallel& parallel);

  // While it lives, `clear_up` is called on this rank where an error of another ends all, with its sentence and status,
  // on a thread beside the command's.
  using ClearUp = std::function<void(const std::string& sentence, int status)>;
  class AtEnd {
   public:
    AtEnd(Ranks& ranks, ClearUp clear_up);
    ~AtEnd();
    AtEnd(const AtEnd&) = delete;
    AtEnd& operator=(const AtEnd&) = delete;

   private:
    Ranks& ranks_;
  };

  // Runs a command's body. An error on one rank ends all ranks with its sentence, and all ranks return together.
  int run(const std::function<int()>& body);

 private:
  class Channel;
  void set_clear_up(ClearUp clear_up);

  dist::Place place_;
  std::mutex clearing_up_;
  ClearUp clear_up_;
  std::unique_ptr<dist::Control> control_;
  std::unique_ptr<log::Listener> listener_;  // of ranks other than 0: sends their lines to rank 0
  std::unique_ptr<dist::Group> group_;
  std::unique_ptr<io::Communicator> communicator_, saving_;
};

}  // namespace redline::cli
