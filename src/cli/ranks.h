// The ranks that a launcher has started (redline launch, torchrun, srun, mpirun), as a command uses them: joined, of
// one mind about what to do, and ended together.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "cli/commands.h"
#include "dist/control.h"
#include "dist/engines.h"
#include "train/options.h"

namespace redline::cli {

class Ranks {
 public:
  // Meets the others, and takes this rank's share of the machine: its card, its part of the cores. A process that
  // nobody launched is alone, and nothing happens. Ranks that were given other words are a UserError.
  explicit Ranks(const Words& words);
  ~Ranks();

  bool alone() const { return place_.alone(); }
  bool leads() const { return place_.rank == 0; }
  int rank() const { return place_.rank; }
  int count() const { return place_.ranks; }
  int on_this_machine() const { return place_.local_ranks; }

  io::Communicator* communicator() { return communicator_.get(); }  // none: it is alone
  // What rank 0 says, on every rank; alone, what was given.
  std::string broadcast(const std::string& words);
  // Connects the devices. From here on a rank without progress for so long ends all of them.
  void connect(device::Device& device, std::int64_t timeout);
  train::Team team(dist::Mode mode, bool bf16_wire);

  // Runs a command's body: an error on one rank ends all of them with its sentence, and an end is one of all.
  int run(const std::function<int()>& body);

 private:
  class Channel;
  dist::Place place_;
  std::unique_ptr<dist::Control> control_;
  std::unique_ptr<log::Listener> listener_;  // of a rank that does not lead: what it has to say goes to rank 0
  std::unique_ptr<dist::Group> group_;
  std::unique_ptr<io::Communicator> communicator_, saving_;
};

}  // namespace redline::cli
