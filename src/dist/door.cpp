// Both sides of the meeting of ranks.
#include "dist/door.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/words.h"
#include "dist/token.h"

namespace redline::dist {
namespace {

constexpr double kGreetingSeconds = 5;  // whoever proves nothing for so long is somebody else
// Guests that have proven nothing, at a time; the oldest goes where one more comes. A rank answers in milliseconds, so
// a crowd that says nothing keeps none out.
constexpr std::size_t kMostGuests = 128;
constexpr int kMostAtOnce = 64;  // taken in before those who are here are heard
constexpr std::string_view kOfHost = "rank 0", kOfGuest = "rank";

std::string list_of(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < 8; ++i) out += fmt::format("{}{}", i ? ", " : "", ranks[i]);
  return ranks.size() > 8 ? out + fmt::format(" and {} more", ranks.size() - 8) : out;
}

std::string fields(const Guest::Said& said) {
  return BodyWriter().text(said.version).text(said.host).number(said.rank).number(said.ranks).take();
}

class Host {
 public:
  Host(const Place& place, const std::string& version, double join_seconds)
      : place_(place), version_(version), join_seconds_(join_seconds), secret_(run_secret(place)) {
    joined_.hosts.resize(static_cast<std::size_t>(place.ranks));
    joined_.hosts[0] = place.host;
    joined_.peers.resize(static_cast<std::size_t>(place.ranks - 1));
  }

  Joined wait_for_all() {
    listen();
    const double deadline = steady_seconds() + join_seconds_;
    while (come_ < place_.ranks - 1) {
      if (steady_seconds() >= deadline) give_up();
      wait_a_little(deadline);
      let_in();
      for (Waiting& w : waiting_) hear(w);
      std::erase_if(waiting_, [](const Waiting& w) { return !w.connection.open(); });
      check_that_all_stay();
    }
    BodyWriter hosts;
    for (const std::string& host : joined_.hosts) hosts.text(host);
    const std::string body = hosts.take();
    for (Peer& peer : joined_.peers) peer.connection.queue(Kind::welcome, body);
    return std::move(joined_);
  }

 private:
  struct Waiting {
    Connection connection;
    Guest guest;
    double since = 0;
  };

  void listen() {
    const std::string& address = place_.listen.empty() ? place_.address : place_.listen;
    // A machine's own name is often its loopback's in its file of hosts, where nobody else would find us.
    if (place_.listen.empty() && !place_.one_machine() && address != "localhost" && !address.starts_with("127.") &&
        address != "::1" && is_loopback(address))
      fail_user(
          "'{}' is an address of the loopback on {} itself, which other machines cannot reach; set MASTER_ADDR to its "
          "address in the network that the ranks use, as 10.0.0.5",
          address, place_.host);
    std::string problem = "it has no address of IP";
    for (int i = 0; i < place_.ports && listeners_.empty(); ++i) {
      listeners_ = listen_at(address, place_.port + i, problem);
      secret_ = run_secret(place_, place_.port + i);
    }
    if (!listeners_.empty()) return;
    const std::string ports = place_.ports == 1
                                  ? fmt::format("port {}", place_.port)
                                  : fmt::format("ports {} to {}", place_.port, place_.port + place_.ports - 1);
    fail_user(
        "rank 0 on {} cannot listen on {} of {}: {}; set MASTER_PORT to a free port for all ranks, and MASTER_ADDR to "
        "an "
        "address of this machine, or REDLINE_LISTEN to the one to listen on where others reach it by another",
        place_.host, ports, address, problem);
  }

  void wait_a_little(double deadline) {
    std::vector<pollfd> polled;
    for (const Descriptor& listener : listeners_) polled.push_back({listener.number(), POLLIN, 0});
    for (const Waiting& w : waiting_) polled.push_back({w.connection.descriptor(), POLLIN, 0});
    for (const Peer& p : joined_.peers)
      if (p.connection.open()) polled.push_back({p.connection.descriptor(), POLLIN, 0});
    const double left = std::min(deadline - steady_seconds(), 0.2);
    ::poll(polled.data(), polled.size(), std::max(1, static_cast<int>(1e3 * left)));
  }

  void let_in() {
    for (const Descriptor& listener : listeners_)
      for (int i = 0; i < kMostAtOnce; ++i) {
        auto socket = accept_from(listener);
        if (!socket) break;
        if (waiting_.size() >= kMostGuests) waiting_.pop_front();
        waiting_.push_back({Connection(std::move(*socket), Other::guest), Guest(secret_), steady_seconds()});
      }
  }

  void hear(Waiting& w) {
    Connection& c = w.connection;
    bool alive = c.send_some() && c.receive_some();
    while (const auto message = c.next()) {
      switch (w.guest.hear(*message)) {
        case Guest::Next::answer:
          c.queue(Kind::greeting, w.guest.greeting());
          alive = c.send_some() && c.receive_some();
          continue;
        case Guest::Next::come: return take(c, w.guest.said());
        case Guest::Next::show_out: break;
      }
      ++joined_.shown_out;
      return c.close();
    }
    const bool no_message = !c.open();
    if (!alive || steady_seconds() - w.since > kGreetingSeconds) c.close();
    // A knock without a proof after it is that of a rank with another token, to which ours was none.
    if (no_message || (!c.open() && !w.guest.greeting().empty())) ++joined_.shown_out;
  }

  // It knows the token: what does not fit now is a mistake of whoever started the ranks, and ends all.
  void take(Connection& connection, const Guest::Said& said) {
    connection.trust(Other::rank);
    const auto refuse = [&](const std::string& sentence) {
      refused_.push_back(std::move(connection));
      end_all(sentence, 2);
      throw UserError(sentence);
    };
    if (said.version != version_)
      refuse(fmt::format("rank {} on {} runs redline {} and rank 0 on {} runs {}; start the same program everywhere",
                         said.rank, said.host, said.version, place_.host, version_));
    if (said.ranks != place_.ranks)
      refuse(fmt::format("rank {} on {} was told of {} and rank 0 on {} of {}; start all with the same number",
                         said.rank, said.host, counted(said.ranks, "rank"), place_.host,
                         counted(place_.ranks, "rank")));
    if (said.rank < 1 || said.rank >= place_.ranks)
      refuse(fmt::format("a process on {} says that it is rank {} of {}, as rank 0 on {} does", said.host, said.rank,
                         said.ranks, place_.host));
    const auto rank = static_cast<std::size_t>(said.rank);
    Peer& peer = joined_.peers[rank - 1];
    if (peer.connection.open())
      refuse(fmt::format("two processes say that they are rank {}, one on {} and one on {}", rank, joined_.hosts[rank],
                         said.host));
    connection.queue(Kind::come_in, "");
    connection.send_some();
    peer = {static_cast<int>(said.rank), std::move(connection), false};
    joined_.hosts[rank] = said.host;
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
    std::string sentence = fmt::format("{} of {} did not come to rank 0 on {} within {:g} seconds", list_of(missing),
                                       place_.ranks, place_.host, join_seconds_);
    if (joined_.shown_out > 0)
      sentence += fmt::format("; {} came without this run's token: REDLINE_TOKEN must be the same for all ranks",
                              counted(joined_.shown_out, "connection"));
    end_all(sentence, 1);
    throw MachineError(sentence);
  }

  void end_all(const std::string& sentence, int status) {
    const std::string body = BodyWriter().number(status).text(sentence.substr(0, kMostSentence)).take();
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
  const std::string& version_;
  double join_seconds_;
  std::string secret_;
  std::vector<Descriptor> listeners_;
  std::deque<Waiting> waiting_;  // the oldest first
  std::vector<Connection> refused_;
  Joined joined_;
  int come_ = 0;
};

[[noreturn]] void end_as_told(const Message& end) {
  BodyReader body(end.body);
  const bool users = body.number() == 2;
  const std::string sentence = body.text();
  if (users) throw UserError(sentence);
  throw MachineError(sentence);
}

// A connection with rank 0, which may have taken any of the ports, or not be there yet. Whoever listens there must
// prove that it is rank 0 before it hears who we are.
Connection reach_first(const Place& place, const std::string& version, double deadline, double join_seconds) {
  std::string problem = "nobody answered";
  while (steady_seconds() < deadline) {
    for (int port = place.port; port < place.port + place.ports; ++port) {
      const double patience = std::min(deadline, steady_seconds() + kGreetingSeconds);
      auto socket = connect_to(place.address, port, patience, problem);
      if (!socket) continue;
      Connection connection(std::move(*socket), Other::host);
      Knock knock(run_secret(place, port));  // nobody can pass our knock on to another port
      connection.queue(Kind::knock, knock.body());
      const auto greeting = connection.send_until(patience) ? connection.receive_until(patience) : std::nullopt;
      if (!greeting || !knock.answered_by(*greeting)) {
        problem = greeting ? "whoever listens there does not know this run's token; REDLINE_TOKEN must be the same for "
                             "all ranks"
                           : "somebody else listens there";
        continue;
      }
      connection.trust(Other::rank_zero);
      connection.queue(Kind::hello, knock.hello({version, place.host, place.rank, place.ranks}));
      connection.send_until(deadline);
      const auto answer = connection.receive_until(deadline + kGreetingSeconds);
      if (answer && answer->kind == Kind::come_in) return connection;
      if (answer && answer->kind == Kind::end) end_as_told(*answer);
      problem = "rank 0 closed the connection";  // too many others stood at its door: once more
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  fail_machine("rank {} on {} did not reach rank 0 at {}:{} within {:g} seconds: {}", place.rank, place.host,
               place.address, place.port, join_seconds, problem);
}

Joined join_first(const Place& place, const std::string& version, double join_seconds) {
  const double deadline = steady_seconds() + join_seconds;
  Connection connection = reach_first(place, version, deadline, join_seconds);
  // Rank 0 began to wait later than we did, and its sentence is the better one.
  const auto message = connection.receive_until(deadline + join_seconds + kGreetingSeconds);
  if (message && message->kind == Kind::end) end_as_told(*message);
  if (!message || message->kind != Kind::welcome)
    fail_machine("rank {} on {} met rank 0 at {}, which is gone before all ranks had come", place.rank, place.host,
                 place.address);
  BodyReader body(message->body);
  Joined joined;
  for (int rank = 0; rank < place.ranks; ++rank) joined.hosts.push_back(body.text());
  body.end();
  joined.peers.push_back({0, std::move(connection), false});
  return joined;
}

}  // namespace

Guest::Guest(std::string secret) : secret_(std::move(secret)), own_nonce_(random_bytes(kNonceBytes)) {}

Guest::Next Guest::hear(const Message& message) {
  const bool first = their_nonce_.empty();
  if (message.kind == Kind::knock && first && message.body.size() == kNonceBytes) {
    their_nonce_ = message.body;
    greeting_ = own_nonce_ + proof(secret_, kOfHost, own_nonce_, their_nonce_);
    return Next::answer;
  }
  if (message.kind != Kind::hello || first || message.body.size() < kProofBytes) return Next::show_out;
  const std::string_view given = std::string_view(message.body).substr(0, kProofBytes),
                         said = std::string_view(message.body).substr(kProofBytes);
  if (!same_secret(given, proof(secret_, kOfGuest, own_nonce_, their_nonce_, said))) return Next::show_out;
  try {
    BodyReader body(said);
    said_.version = body.text();
    said_.host = body.text();
    said_.rank = body.number();
    said_.ranks = body.number();
    body.end();
  } catch (const MachineError&) {
    return Next::show_out;
  }
  return Next::come;
}

Knock::Knock(std::string secret) : secret_(std::move(secret)), nonce_(random_bytes(kNonceBytes)) {}

bool Knock::answered_by(const Message& greeting) {
  if (greeting.kind != Kind::greeting || greeting.body.size() != kNonceBytes + kProofBytes) return false;
  const std::string_view body = greeting.body;
  host_nonce_ = body.substr(0, kNonceBytes);
  return same_secret(body.substr(kNonceBytes), proof(secret_, kOfHost, host_nonce_, nonce_));
}

std::string Knock::hello(const Guest::Said& said) const {
  const std::string body = fields(said);
  return proof(secret_, kOfGuest, host_nonce_, nonce_, body) + body;
}

Joined meet_at_door(const Place& place, const std::string& version, double join_seconds) {
  return place.rank == 0 ? Host(place, version, join_seconds).wait_for_all() : join_first(place, version, join_seconds);
}

}  // namespace redline::dist
