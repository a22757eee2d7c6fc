// How ranks meet: rank 0 listens, greets whoever connects with the name of the job, and hears who it is.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/counted.h"
#include "base/error.h"
#include "dist/control_impl.h"

namespace redline::dist {
namespace {

constexpr double kGreetingSeconds = 5;  // whoever says nothing for so long is somebody else

std::string greeting(const Place& place) { return "redline ranks " + place.job; }

std::string list_of(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < 8; ++i) out += fmt::format("{}{}", i ? ", " : "", ranks[i]);
  return ranks.size() > 8 ? out + fmt::format(" and {} more", ranks.size() - 8) : out;
}

class Host {
 public:
  Host(const Place& place, const ControlOptions& options) : place_(place), options_(options) {
    joined_.hosts.resize(static_cast<std::size_t>(place.ranks));
    joined_.hosts[0] = place.host;
    joined_.peers.resize(static_cast<std::size_t>(place.ranks - 1));
  }

  Joined wait_for_all() {
    listen();
    const double deadline = steady_seconds() + options_.join_seconds;
    while (come_ < place_.ranks - 1) {
      if (steady_seconds() >= deadline) give_up();
      wait_a_little(deadline);
      for (const Descriptor& listener : listeners_)
        while (auto socket = accept_from(listener)) {
          pending_.push_back({Connection(std::move(*socket)), steady_seconds()});
          pending_.back().connection.queue(Kind::greeting, greeting(place_));
        }
      for (Pending& p : pending_) hear(p);
      std::erase_if(pending_, [](const Pending& p) { return !p.connection.open(); });
      check_that_all_stay();
    }
    BodyWriter hosts;
    for (const std::string& host : joined_.hosts) hosts.text(host);
    const std::string body = hosts.take();
    for (Peer& peer : joined_.peers) peer.connection.queue(Kind::welcome, body);
    return std::move(joined_);
  }

 private:
  struct Pending {
    Connection connection;
    double since = 0;
  };

  void listen() {
    std::string problem;
    for (int i = 0; i < place_.ports && listeners_.empty(); ++i)
      listeners_ = listen_at(place_.address, place_.port + i, problem);
    if (!listeners_.empty()) return;
    const std::string ports = place_.ports == 1
                                  ? fmt::format("port {}", place_.port)
                                  : fmt::format("ports {} to {}", place_.port, place_.port + place_.ports - 1);
    fail_user("rank 0 cannot listen on {} of {}: {}; set MASTER_PORT to a free port for all ranks", ports, place_.host,
              problem);
  }

  void wait_a_little(double deadline) {
    std::vector<pollfd> polled;
    for (const Descriptor& listener : listeners_) polled.push_back({listener.number(), POLLIN, 0});
    for (const Pending& p : pending_) polled.push_back({p.connection.descriptor(), POLLIN, 0});
    for (const Peer& p : joined_.peers)
      if (p.connection.open()) polled.push_back({p.connection.descriptor(), POLLIN, 0});
    const double left = std::min(deadline - steady_seconds(), 0.2);
    ::poll(polled.data(), polled.size(), std::max(1, static_cast<int>(1e3 * left)));
  }

  void hear(Pending& pending) {
    Connection& c = pending.connection;
    const bool alive = c.send_some() && c.receive_some();
    if (const auto message = c.next(); message && message->kind == Kind::hello) return welcome(c, message->body);
    if (!alive || steady_seconds() - pending.since > kGreetingSeconds) c.close();
  }

  void welcome(Connection& connection, const std::string& hello) {
    BodyReader body(hello);
    const std::string job = body.text(), version = body.text(), host = body.text();
    const auto rank = static_cast<int>(body.number()), ranks = static_cast<int>(body.number());
    if (job != place_.job) return connection.close();  // another run's
    const auto refuse = [&](const std::string& sentence) {
      refused_.push_back(std::move(connection));
      end_all(sentence, 2);
      throw UserError(sentence);
    };
    if (version != options_.version)
      refuse(fmt::format("rank {} on {} runs redline {} and rank 0 on {} runs {}; start the same program everywhere",
                         rank, host, version, place_.host, options_.version));
    if (ranks != place_.ranks)
      refuse(fmt::format("rank {} on {} was told of {} and rank 0 on {} of {}; start all with the same number", rank,
                         host, counted(ranks, "rank"), place_.host, counted(place_.ranks, "rank")));
    if (rank < 1 || rank >= place_.ranks)
      refuse(fmt::format("a process on {} says that it is rank {} of {}, as rank 0 on {} does", host, rank, ranks,
                         place_.host));
    Peer& peer = joined_.peers[static_cast<std::size_t>(rank - 1)];
    if (peer.connection.open())
      refuse(fmt::format("two processes say that they are rank {}, one on {} and one on {}", rank,
                         joined_.hosts[static_cast<std::size_t>(rank)], host));
    peer = {rank, std::move(connection), false};
    joined_.hosts[static_cast<std::size_t>(rank)] = host;
    ++come_;
  }

  // A rank that has come sends nothing until it is welcome: what can be read is its end.
  void check_that_all_stay() {
    for (Peer& peer : joined_.peers) {
      if (!peer.connection.open() || peer.connection.receive_some()) continue;
      const std::string sentence = fmt::format("rank {} on {} is gone before all ranks had come", peer.rank,
                                               joined_.hosts[static_cast<std::size_t>(peer.rank)]);
      end_all(sentence, 1);
      throw MachineError(sentence);
    }
  }

  void give_up() {
    std::vector<int> missing;
    for (int rank = 1; rank < place_.ranks; ++rank)
      if (!joined_.peers[static_cast<std::size_t>(rank - 1)].connection.open()) missing.push_back(rank);
    const std::string sentence = fmt::format("{} of {} did not come to rank 0 on {} within {:g} seconds",
                                             list_of(missing), place_.ranks, place_.host, options_.join_seconds);
    end_all(sentence, 1);
    throw MachineError(sentence);
  }

  void end_all(const std::string& sentence, int status) {
    const std::string body = BodyWriter().number(status).text(sentence).take();
    const double deadline = steady_seconds() + 1;
    const auto tell = [&](Connection& c) {
      if (!c.open()) return;
      c.queue(Kind::end, body);
      c.send_until(deadline);
    };
    for (Peer& peer : joined_.peers) tell(peer.connection);
    for (Connection& connection : refused_) tell(connection);
  }

  const Place& place_;
  const ControlOptions& options_;
  std::vector<Descriptor> listeners_;
  std::vector<Pending> pending_;
  std::vector<Connection> refused_;
  Joined joined_;
  int come_ = 0;
};

// Rank 0 may have taken any of the ports, or not be there yet.
Connection reach_first(const Place& place, double deadline, const ControlOptions& options) {
  std::string problem = "nobody answered";
  while (steady_seconds() < deadline) {
    for (int port = place.port; port < place.port + place.ports; ++port) {
      auto socket = connect_to(place.address, port, std::min(deadline, steady_seconds() + kGreetingSeconds), problem);
      if (!socket) continue;
      Connection connection(std::move(*socket));
      const auto message = connection.receive_until(std::min(deadline, steady_seconds() + kGreetingSeconds));
      if (message && message->kind == Kind::greeting && message->body == greeting(place)) return connection;
      problem = "somebody else listens there";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  fail_machine("rank {} on {} did not reach rank 0 at {}:{} within {:g} seconds: {}", place.rank, place.host,
               place.address, place.port, options.join_seconds, problem);
}

Joined join_first(const Place& place, const ControlOptions& options) {
  const double deadline = steady_seconds() + options.join_seconds;
  Connection connection = reach_first(place, deadline, options);
  connection.queue(Kind::hello, BodyWriter()
                                    .text(place.job)
                                    .text(options.version)
                                    .text(place.host)
                                    .number(place.rank)
                                    .number(place.ranks)
                                    .take());
  connection.send_until(deadline);
  // Rank 0 began to wait later than we did, and its sentence is the better one.
  const auto message = connection.receive_until(deadline + options.join_seconds + kGreetingSeconds);
  if (!message || (message->kind != Kind::welcome && message->kind != Kind::end))
    fail_machine("rank {} on {} met rank 0 at {}, which is gone before all ranks had come", place.rank, place.host,
                 place.address);
  BodyReader body(message->body);
  if (message->kind == Kind::end) {
    const bool users = body.number() == 2;
    const std::string sentence = body.text();
    if (users) throw UserError(sentence);
    throw MachineError(sentence);
  }
  Joined joined;
  for (int rank = 0; rank < place.ranks; ++rank) joined.hosts.push_back(body.text());
  joined.peers.push_back({0, std::move(connection), false});
  return joined;
}

}  // namespace

Joined meet(const Place& place, const ControlOptions& options) {
  return place.rank == 0 ? Host(place, options).wait_for_all() : join_first(place, options);
}

}  // namespace redline::dist
