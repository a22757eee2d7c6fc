// Joins ranks, shares the machine among those of it, and lets an error on one end all.
#include "cli/ranks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace redline::cli {
namespace {

// Threads of the CPU backend, where their number was not given: the ranks of a machine share its cores.
void share_cores(const dist::Place& place) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int mine = std::max(1, cores / std::max(1, place.local_ranks));
  ::setenv("REDLINE_THREADS", std::to_string(mine).c_str(), 0);
}

// Whose fault the end is, for redline launch, which leaves out the card of a rank that fails again and again.
void tell_launch(int rank) {
  const char* const given = std::getenv(dist::kAtFaultVariable);
  if (!given) return;
  const std::string line = fmt::format("{}\n", rank);
  if (::write(std::atoi(given), line.data(), line.size()) < 0)
    log::warn("redline launch does not hear that rank {} is at fault: {}", rank, std::strerror(errno));
}

int status_of(const std::exception& e) { return dynamic_cast<const UserError*>(&e) ? kBadInput : kFailed; }

}  // namespace

// Words over a channel of the control connection.
class Ranks::Channel final : public io::Communicator {
 public:
  Channel(dist::Control& control, std::string name) : control_(control), name_(std::move(name)) {}
  int rank() const override { return control_.place().rank; }
  int ranks() const override { return control_.place().ranks; }
  std::string host() const override { return control_.place().host; }
  std::vector<std::string> gather(const std::string& mine) override {
    std::vector<std::string> all = control_.all_gather(mine, name_);
    if (rank() != 0) all.clear();
    return all;
  }
  std::string broadcast(const std::string& words) override { return control_.broadcast(words, name_); }

 private:
  dist::Control& control_;
  std::string name_;
};

Ranks::Ranks(const Words& words) : place_(dist::place_of_process()) {
  if (place_.alone()) return;
  dist::take_own_card(place_);
  share_cores(place_);
  dist::ControlOptions options;
  options.version = version();
  options.warned = [](int rank, std::string_view warning) { log::warn("rank {}: {}", rank, warning); };
  options.say = [](std::string_view sentence) {
    finish_output();
    print_error(sentence);
  };
  options.at_fault = tell_launch;
  options.before_end = [this](std::string_view sentence, int status) {
    const std::lock_guard lock(clearing_up_);
    if (clear_up_) clear_up_(std::string(sentence), status);
  };
  control_ = dist::Control::join(place_, std::move(options));
  communicator_ = std::make_unique<Channel>(*control_, "loop");
  saving_ = std::make_unique<Channel>(*control_, "saving");
  if (!leads())
    listener_ = std::make_unique<log::Listener>([this](bool warning, std::string_view text) {
      if (warning) control_->tell(text);
    });
  const std::string said = fmt::format("{}", fmt::join(words, " "));
  const std::vector<std::string> all = communicator_->gather(said);
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != said)
      fail_user("rank {} was started with other words ({}) than rank 0 ({}); start all ranks alike", rank, all[rank],
                said);
}

Ranks::~Ranks() = default;

std::string Ranks::broadcast(const std::string& words) { return alone() ? words : communicator_->broadcast(words); }

void Ranks::connect(device::Device& device, std::int64_t timeout) {
  if (alone()) return;
  group_ = device.kind() == device::Kind::cpu ? dist::open_cpu(*control_) : dist::open_nccl(device, *control_);
  control_->watch(static_cast<double>(timeout));
}

train::Team Ranks::team(dist::Mode mode, const config::Parallel& parallel) {
  if (alone()) return {};
  return {.sharing = dist::sharing_of(parallel, place_.rank, place_.ranks, mode),
          .ranks_here = std::max(place_.local_ranks, 1),
          .group = group_.get(),
          .communicator = communicator_.get(),
          .saving = saving_.get(),
          .warn = [this](const std::string& warning) { control_->tell(warning); },
          .progress = [this](std::int64_t step) { control_->progress(step); },
          .pace = [this](double seconds) { control_->pace(seconds); },
          .paces = [this] { return control_->paces(); }};
}

// Where it is being called, the process ends before this returns.
void Ranks::set_clear_up(ClearUp clear_up) {
  const std::lock_guard lock(clearing_up_);
  clear_up_ = std::move(clear_up);
}

Ranks::AtEnd::AtEnd(Ranks& ranks, ClearUp clear_up) : ranks_(ranks) { ranks_.set_clear_up(std::move(clear_up)); }
Ranks::AtEnd::~AtEnd() { ranks_.set_clear_up({}); }

int Ranks::run(const std::function<int()>& body) {
  if (alone()) return body();
  try {
    const int status = body();
    control_->goodbye();
    return status;
  } catch (const std::bad_alloc&) {
    control_->fail("out of memory", kFailed);
    throw;
  } catch (const std::exception& e) {
    control_->fail(e.what(), status_of(e));
    throw;
  }
}

}  // namespace redline::cli
