// The place of a process among the ranks of a run, as its launcher says in the environment: redline launch, torchrun,
// Slurm's srun or OpenMPI's mpirun. Nothing is connected here.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace redline::dist {

// Set by redline launch: why it started the ranks again; and the number of a descriptor that they write to whose fault
// an end was.
inline constexpr const char *kRestartVariable = "REDLINE_RESTART", *kAtFaultVariable = "REDLINE_AT_FAULT";

struct Place {
  int rank = 0, ranks = 1;
  int local_rank = 0, local_ranks = 1;  // on this machine
  std::string host;                     // this machine's name
  std::string address;                  // rank 0's machine; empty where a process is alone
  std::string listen;                   // where rank 0 listens instead: REDLINE_LISTEN
  int port = 0;                         // where rank 0 listens
  int ports = 1;                        // so many, from `port` on, may be tried until one is free
  std::string job;                      // tells apart runs that try the same ports
  std::string launcher;                 // "torchrun", "Slurm", "mpirun"; empty: alone
  std::string token;                    // REDLINE_TOKEN, by which ranks know each other (dist/token.h)
  std::string restart;                  // "restart 1 by torchrun": which one, and why where it is known; empty: none

  bool alone() const { return ranks == 1; }
  bool one_machine() const { return local_ranks == ranks; }
};

// The first of so many ports where the processes of a job look for each other.
int job_port(std::string_view job);
inline constexpr int kPortsTried = 16;

using Lookup = std::function<std::optional<std::string>(const std::string& variable)>;

// Whether a launcher tells its processes their place by this variable, among others. A process that is started without
// them is alone, whatever started ours.
bool is_of_launcher(std::string_view variable);

// Variables that are no numbers, that are missing where others are set, or that contradict each other are a UserError.
// An allocation of Slurm without srun, and a single task, are no launch.
Place place_of_process(const Lookup& environment, std::string host);
Place place_of_process();  // of this process, with this machine's name

// The CUDA_VISIBLE_DEVICES with which this rank sees its own card as card 0; `visible` is the present one. One card
// that is visible is the rank's own: Slurm and redline launch hand out cards in that way.
std::optional<std::string> visible_card(const Place& place, const std::optional<std::string>& visible);
// Sets it in the environment. CUDA reads it once, so this comes before the first call that asks for cards.
void take_own_card(const Place& place);

}  // namespace redline::dist
