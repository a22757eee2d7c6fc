// Parts between CPUs of several machines over TCP, for ranks that no MPI started. Every two ranks have a connection,
// made through a door (dist/door.h): whoever does not know the run's token is shown out, and once all have come nothing
// listens any more.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "dist/control.h"
#include "dist/cpu_group.h"
#include "dist/door.h"

namespace redline::dist {
namespace {

class Tcp final : public Transport {
 public:
  // Rank h is the host of all ranks after it, one h after the other.
  explicit Tcp(Control& control)
      : control_(control),
        rank_(static_cast<std::size_t>(control.place().rank)),
        ranks_(static_cast<std::size_t>(control.place().ranks)),
        members_(ranks_),
        connections_(std::make_shared<std::vector<Connection>>(ranks_)) {
    std::iota(members_.begin(), members_.end(), 0);
    const std::vector<std::string> addresses = control.all_gather(control.own_address(), kChannel);
    for (std::size_t host = 0; host < rank_ + 1 && host + 1 < ranks_; ++host) meet(host, addresses[host]);
    control.barrier(kChannel);  // the doors are shut, and what comes from here on are tensors
  }
  // Over the connections that are there: between two ranks calls come in one order, whoever else takes part.
  std::unique_ptr<Transport> between(const std::vector<std::size_t>& members) override {
    auto some = std::make_unique<Tcp>(*this);
    some->rank_ = static_cast<std::size_t>(std::ranges::find(members, rank_) - members.begin());
    some->ranks_ = members.size();
    some->members_.clear();
    for (const std::size_t member : members) some->members_.push_back(members_[member]);
    return some;
  }

  std::string name() const override { return "TCP"; }
  std::size_t most_given() const override { return std::max<std::size_t>(kStagingBytes / ranks_ / 8 * 8, 8); }

  std::vector<const std::byte*> exchange(const std::vector<std::span<const std::byte>>& gives,
                                         const std::vector<std::size_t>& bytes) override {
    staging_.resize(std::reduce(bytes.begin(), bytes.end()));
    std::vector<const std::byte*> gets(ranks_);
    std::vector<std::span<std::byte>> to(ranks_);
    std::size_t at = 0;
    for (std::size_t r = 0; r < ranks_; ++r) {
      to[r] = std::span(staging_).subspan(at, bytes[r]);
      at += bytes[r];
      gets[r] = r == rank_ ? gives[r].data() : to[r].data();
    }
    transfer(gives, to);
    return gets;
  }

  void share(std::byte* data, const std::byte* own, const std::vector<Range>& parts, std::size_t size) override {
    std::vector<std::span<std::byte>> to(ranks_);
    for (std::size_t r = 0; r < ranks_; ++r)
      if (!parts[r].empty())
        to[r] = {data + static_cast<std::size_t>(parts[r].begin) * size,
                 static_cast<std::size_t>(parts[r].elements()) * size};
    const std::span<std::byte> mine = to[rank_];
    if (own != mine.data() && !mine.empty()) std::memmove(mine.data(), own, mine.size());
    transfer(std::vector<std::span<const std::byte>>(ranks_, mine), to);
  }

 private:
  // Memory for parts of other ranks, which wait there for their turn in the sum.
  static constexpr std::size_t kStagingBytes = std::size_t{2} << 20;
  static constexpr const char* kChannel = "tcp";
  static constexpr double kJoinSeconds = 120, kEndSeconds = 60;

  void meet(std::size_t host, const std::string& address) {
    Place place = control_.place();
    place.job += fmt::format(" tensors {}", host);  // so that no door of this run takes another's guests
    place.rank -= static_cast<int>(host);
    place.ranks -= static_cast<int>(host);
    place.local_ranks = 1;
    place.address = address;
    if (host > 0) place.listen.clear();
    place.port = job_port(place.job);
    place.ports = kPortsTried;
    Joined joined;
    try {
      joined = meet_at_door(place, "tensors", kJoinSeconds);
    } catch (const std::exception& e) {
      fail_machine("ranks {} to {} did not connect for their tensors, where rank {} is called rank 0: {}", host,
                   ranks_ - 1, host, e.what());
    }
    for (Peer& peer : joined.peers) {
      peer.connection.send_until(steady_seconds() + kEndSeconds);  // its welcome
      (*connections_)[rank_ == host ? host + static_cast<std::size_t>(peer.rank) : host] = std::move(peer.connection);
    }
  }

  // Sends out[r] to every other rank r and fills in[r] from it, both at once.
  void transfer(std::vector<std::span<const std::byte>> out, std::vector<std::span<std::byte>> in) {
    out[rank_] = {};
    in[rank_] = {};
    std::vector<pollfd> polled(ranks_);
    for (;;) {
      bool over = true;
      for (std::size_t r = 0; r < ranks_; ++r) {
        if (!out[r].empty()) move(r, out[r], ::send(socket(r), out[r].data(), out[r].size(), MSG_NOSIGNAL));
        if (!in[r].empty()) move(r, in[r], ::recv(socket(r), in[r].data(), in[r].size(), 0));
        polled[r] = {out[r].empty() && in[r].empty() ? -1 : socket(r),
                     static_cast<short>((out[r].empty() ? 0 : POLLOUT) | (in[r].empty() ? 0 : POLLIN)), 0};
        over &= polled[r].fd < 0;
      }
      if (over) return;
      ::poll(polled.data(), polled.size(), 1000);
    }
  }
  int socket(std::size_t member) const { return (*connections_)[members_[member]].descriptor(); }

  // What a call moved is done with.
  template <class Byte>
  void move(std::size_t rank, std::span<Byte>& bytes, ssize_t moved) {
    if (moved > 0)
      bytes = bytes.subspan(static_cast<std::size_t>(moved));
    else if (moved == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
      wait_for_the_end(members_[rank]);
  }
  // The control thread hears of a rank that is gone, knows its name and ends the process.
  [[noreturn]] void wait_for_the_end(std::size_t rank) const {
    std::this_thread::sleep_for(std::chrono::duration<double>(kEndSeconds));
    fail_machine("the connection with rank {} was lost, and it still answers rank 0", rank);
  }

  Control& control_;
  std::size_t rank_, ranks_;                              // among its members,
  std::vector<std::size_t> members_;                      // each of which is a rank of the run
  std::shared_ptr<std::vector<Connection>> connections_;  // by rank of the run
  std::vector<std::byte> staging_;
};

}  // namespace

std::unique_ptr<Group> open_tcp(Control& control) { return group_over(std::make_unique<Tcp>(control), control); }

}  // namespace redline::dist
