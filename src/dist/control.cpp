// The thread that serves the connections of ranks, sends and watches signs of life and brings about the end, and the
// calls of the other threads: each leaves its words with the control thread and waits for what comes of them.
#include "dist/control.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/signals.h"
#include "base/words.h"
#include "dist/door.h"

namespace redline::dist {

// How far a rank is, as its last heartbeat said.
struct Progress {
  std::int64_t step = 0, collective = 0, calls = 0;
  std::int64_t pace = 0;  // microseconds
  bool operator==(const Progress&) const = default;
  std::pair<std::int64_t, std::int64_t> place() const { return {step, collective}; }
};

struct Watched {
  Progress progress;
  double changed = 0, heard = 0;  // steady seconds
};

namespace {

constexpr double kBeat = 1;           // seconds between two signs of life
constexpr double kSilent = 5;         // seconds: who said nothing for so long is stopped, or its machine is
constexpr double kLastSeconds = 1;    // for others to hear of the end before rank 0 goes
constexpr double kAtLast = 4;         // seconds after which the process ends, said or not
constexpr double kLeaveSeconds = 5;   // for the goodbyes of rank 0 to be sent
constexpr double kAnswerSeconds = 3;  // for rank 0 to end all at the request of one
// A rank that takes nothing of what it is sent: more than one result waits for it.
constexpr std::size_t kMostUnsent = 2 * kMostResult;

std::string position(const Progress& p) { return fmt::format("step {}, collective {}", p.step, p.collective); }

// An end is never a success, whatever its sender says.
int status_of_end(std::int64_t status) { return status == 2 ? 2 : 1; }

std::string_view cut(std::string_view sentence) { return sentence.substr(0, kMostSentence); }

}  // namespace

// The state of Control, shared by its thread and its callers.
struct Control::Impl {
  Place place;
  ControlOptions options;
  std::vector<std::string> hosts;
  std::thread thread;
  Descriptor wake_descriptor;
  std::atomic<std::int64_t> step = 0, collective = 0, calls = 0;
  std::atomic<std::int64_t> pace = 0;  // microseconds

  std::mutex mutex;  // for all that follows
  std::condition_variable changed;
  std::vector<Peer> peers;
  Meetings meetings;                                 // on rank 0
  using Key = std::pair<std::string, std::int64_t>;  // channel and number
  std::map<Key, std::vector<std::string>> results;
  std::map<std::string, std::int64_t> met;  // by channel
  std::vector<std::pair<int, std::string>> warnings;
  std::vector<Watched> watched;  // by rank; others than rank 0 fill in rank 0's alone
  double watch_seconds = 0, watch_begin = 0;
  bool stopping = false, leaving = false, done = false, ended = false;
  struct End {
    std::string sentence;
    int status = 1;
    bool speaks = false;
    std::vector<int> at_fault = {};  // ranks, where this rank found out whose fault it is
  };
  std::optional<End> end;

  bool first() const { return place.rank == 0; }
  std::string named(int rank) const;  // "rank 3 on host X"
  bool speaks_for_host() const;       // this rank says what ends the run, for those of its machine
  void wake();
  void start();
  std::vector<std::string> meet_all(std::int64_t kind, std::string_view mine, std::string_view channel);

  // With the mutex held.
  void send_all(Kind kind, std::string_view body);
  void add_part(int rank, const std::string& channel, std::int64_t number, std::int64_t kind, std::string part);
  void end_with(std::string sentence, int status, bool speaks, std::vector<int> at_fault = {});

  // The thread.
  void run();
  void wait_for_sockets(double deadline);
  void serve(Peer& peer);
  void take(Peer& peer, const Message& message);
  void lose(Peer& peer);
  void beat(double now);
  void note(int rank, const Progress& progress, double now);
  void check_progress(double now);
  void check_first(double now);
  void finish();
};

void Control::Impl::start() {
  wake_descriptor = Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  REDLINE_CHECK(wake_descriptor.open(), "eventfd failed");
  const double now = steady_seconds();
  watched.assign(static_cast<std::size_t>(place.ranks), Watched{{}, now, now});
  // Signals are for the other threads: a handler of ours may wait for what this one does.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Control::Impl::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_descriptor.number(), &one, sizeof one);
}

std::string Control::Impl::named(int rank) const {
  return fmt::format("rank {} on {}", rank, hosts[static_cast<std::size_t>(rank)]);
}

void Control::Impl::send_all(Kind kind, std::string_view body) {
  for (Peer& peer : peers) {
    if (!peer.connection.open()) continue;
    if (peer.connection.to_send() <= kMostUnsent)
      peer.connection.queue(kind, body);
    else
      end_with(fmt::format("{} does not take what it is sent; all ranks end", named(peer.rank)), 1, first(),
               {peer.rank});
  }
}

void Control::Impl::end_with(std::string sentence, int status, bool speaks, std::vector<int> at_fault) {
  if (!end && !done) end = End{std::move(sentence), status, speaks, std::move(at_fault)};
}

void Control::Impl::run() {
  double next_beat = 0;
  std::unique_lock lock(mutex);
  while (!stopping && !done && !end) {
    lock.unlock();
    wait_for_sockets(next_beat);
    lock.lock();
    for (Peer& peer : peers) serve(peer);
    const double now = steady_seconds();
    if (now >= next_beat) {
      beat(now);
      next_beat = now + kBeat;
      if (watch_seconds > 0) first() ? check_progress(now) : check_first(now);
    }
    if (first() && leaving && !end && std::ranges::all_of(peers, &Peer::left)) {
      send_all(Kind::goodbye, "");
      for (Peer& peer : peers) peer.connection.send_until(now + kLeaveSeconds);
      done = true;
    }
    auto heard = std::move(warnings);
    warnings.clear();
    lock.unlock();
    for (const auto& [rank, text] : heard)
      if (options.warned) options.warned(rank, text);
    lock.lock();
  }
  if (end) {
    lock.unlock();
    finish();
    lock.lock();
    ended = true;
  }
  changed.notify_all();
}

void Control::Impl::wait_for_sockets(double deadline) {
  std::vector<pollfd> polled;
  {
    const std::lock_guard lock(mutex);
    polled.push_back({wake_descriptor.number(), POLLIN, 0});
    for (const Peer& peer : peers)
      if (peer.connection.open())
        polled.push_back({peer.connection.descriptor(),
                          static_cast<short>(POLLIN | (peer.connection.to_send() > 0 ? POLLOUT : 0)), 0});
  }
  const double left = std::clamp(deadline - steady_seconds(), 0.0, kBeat);
  ::poll(polled.data(), polled.size(), static_cast<int>(std::ceil(1e3 * left)));
  std::uint64_t count = 0;
  [[maybe_unused]] const auto read = ::read(wake_descriptor.number(), &count, sizeof count);
}

void Control::Impl::serve(Peer& peer) {
  if (!peer.connection.open()) return;
  const bool sent = peer.connection.send_some();
  bool received = true;
  for (bool more = true; more;) {
    more = false;
    received = peer.connection.receive_some();
    while (const auto message = peer.connection.next()) {
      more = !sent;  // it is gone, and all that it has said counts
      try {
        take(peer, *message);
      } catch (const std::exception& e) {
        end_with(fmt::format("{} sent what no rank sends: {}", named(peer.rank), e.what()), 1, true, {peer.rank});
      }
    }
  }
  if (!peer.connection.open())  // next() closed it
    return end_with(fmt::format("{} sent what no rank sends; all ranks end", named(peer.rank)), 1, true, {peer.rank});
  if (!sent || !received) lose(peer);
}

// Frames of kinds that the other end may not send never come here.
void Control::Impl::take(Peer& peer, const Message& message) {
  BodyReader body(message.body);
  switch (message.kind) {
    case Kind::gather: {
      const std::string channel = body.text();
      const std::int64_t number = body.number(), kind = body.number();
      std::string part = body.text();
      body.end();
      return add_part(peer.rank, channel, number, kind, std::move(part));
    }
    case Kind::result: {
      const std::string channel = body.text();
      const auto asked = met.find(channel);
      const std::int64_t number = body.number(0, asked == met.end() ? -1 : asked->second - 1);
      std::vector<std::string> parts;
      for (int rank = 0; rank < place.ranks; ++rank) parts.push_back(body.text());
      body.end();
      results[{channel, number}] = std::move(parts);
      return changed.notify_all();
    }
    case Kind::beat: {
      Progress progress;
      progress.step = body.number();
      progress.collective = body.number();
      progress.calls = body.number();
      progress.pace = body.number();
      body.end();
      return note(peer.rank, progress, steady_seconds());
    }
    case Kind::warning: {
      warnings.emplace_back(peer.rank, body.text());
      return body.end();
    }
    case Kind::fail: {
      const int status = status_of_end(body.number());
      return end_with(fmt::format("{}: {}", named(peer.rank), body.text()), status, true, {peer.rank});
    }
    case Kind::end: {
      const int status = status_of_end(body.number());
      return end_with(body.text(), status, false);
    }
    case Kind::goodbye:
      peer.left = true;
      if (!first()) {
        done = true;
        changed.notify_all();
      }
      return;
    case Kind::knock:
    case Kind::greeting:
    case Kind::hello:
    case Kind::come_in:
    case Kind::welcome: break;
  }
  fail_machine("a message of kind {}", static_cast<int>(message.kind));
}

void Control::Impl::lose(Peer& peer) {
  peer.connection.close();
  if (peer.left) return;
  end_with(fmt::format("{} is gone (its connection was closed without a goodbye); all ranks end", named(peer.rank)), 1,
           speaks_for_host(), {peer.rank});
}

// One voice a machine: rank 0's, or where it is gone that of the first of those that are left.
bool Control::Impl::speaks_for_host() const {
  if (first()) return true;
  return std::find(hosts.begin() + 1, hosts.begin() + place.rank, place.host) == hosts.begin() + place.rank;
}

void Control::Impl::beat(double now) {
  const Progress own{step, collective, calls, pace};
  note(place.rank, own, now);
  send_all(Kind::beat, BodyWriter().number(own.step).number(own.collective).number(own.calls).number(own.pace).take());
  for (Peer& peer : peers) peer.connection.send_some();
}

void Control::Impl::note(int rank, const Progress& progress, double now) {
  Watched& w = watched[static_cast<std::size_t>(rank)];
  if (w.progress != progress) w.changed = now;
  w.progress = progress;
  w.heard = now;
}

// A rank that waits for another is ahead of it by a collective, or as far; so those that are less far are named. Where
// all are equally far, those that do not answer are named, if any.
void Control::Impl::check_progress(double now) {
  const auto left = [&](int rank) { return rank > 0 && peers[static_cast<std::size_t>(rank - 1)].left; };
  std::pair<std::int64_t, std::int64_t> furthest{-1, -1}, least = Progress{}.place();
  bool one = false, all_idle = true;
  for (int rank = 0; rank < place.ranks; ++rank) {
    if (left(rank)) continue;
    const Watched& w = watched[static_cast<std::size_t>(rank)];
    furthest = std::max(furthest, w.progress.place());
    least = one ? std::min(least, w.progress.place()) : w.progress.place();
    one = true;
    all_idle &= now - std::max(w.changed, watch_begin) >= watch_seconds;
  }
  std::vector<int> dead, slow;
  for (int rank = 0; rank < place.ranks; ++rank) {
    if (left(rank)) continue;
    const Watched& w = watched[static_cast<std::size_t>(rank)];
    const bool idle = now - std::max(w.changed, watch_begin) >= watch_seconds;
    if (now - std::max(w.heard, watch_begin) >= (all_idle ? std::min(kSilent, watch_seconds) : watch_seconds))
      dead.push_back(rank);
    if (idle && w.progress.place() < furthest && (!all_idle || w.progress.place() == least)) slow.push_back(rank);
  }
  const std::vector<int>& named_ones = dead.empty() ? slow : dead;
  if (named_ones.empty() && !all_idle) return;
  const Watched& w = watched[static_cast<std::size_t>(named_ones.empty() ? 0 : named_ones[0])];
  if (named_ones.empty())
    return end_with(
        fmt::format("no rank has made progress for {:g} seconds; all are at {}", watch_seconds, position(w.progress)),
        1, true);
  std::string who = named(named_ones[0]);
  for (std::size_t i = 1; i < named_ones.size() && i < 8; ++i) who += ", " + named(named_ones[i]);
  if (named_ones.size() > 8) who += fmt::format(" and {} more", named_ones.size() - 8);
  const std::string what = dead.empty() ? "made no progress" : "not answered";
  const double since = now - std::max(dead.empty() ? w.changed : w.heard, watch_begin);
  end_with(fmt::format("{} {} {} for {:.0f} seconds (at {}; the furthest rank is at {}); all ranks end", who,
                       named_ones.size() == 1 ? "has" : "have", what, since, position(w.progress),
                       position({furthest.first, furthest.second, 0})),
           1, true, named_ones);
}

void Control::Impl::check_first(double now) {
  const double silent = now - std::max(watched[0].heard, watch_begin);
  if (silent < watch_seconds) return;
  end_with(fmt::format("{} has not answered for {:.0f} seconds; all ranks end", named(0), silent), 1, speaks_for_host(),
           {0});
}

void Control::Impl::finish() {
  if (!options.end)  // a thread that hangs may hold what the sentence is written with
    std::thread([status = end->status] {
      std::this_thread::sleep_for(std::chrono::duration<double>(kAtLast));
      std::_Exit(status);
    }).detach();
  if (options.at_fault)
    for (const int rank : end->at_fault) options.at_fault(rank);
  if (first()) {
    const std::lock_guard lock(mutex);
    send_all(Kind::end, BodyWriter().number(end->status).text(cut(end->sentence)).take());
    for (Peer& peer : peers) peer.connection.send_some();
  }
  if (end->speaks) {
    if (options.say)
      options.say(end->sentence);
    else
      say_in_handler({"redline: error: ", end->sentence});
  }
  if (first()) {  // the last to go: what it sent must arrive
    const double deadline = steady_seconds() + kLastSeconds;
    for (bool waiting = true; waiting && steady_seconds() < deadline;) {
      {
        const std::lock_guard lock(mutex);
        waiting = false;
        for (Peer& peer : peers) {
          if (!peer.connection.open()) continue;
          const bool alive = peer.connection.send_some() && peer.connection.receive_some();
          while (peer.connection.next()) {
          }
          alive ? void(waiting = true) : peer.connection.close();
        }
      }
      if (waiting) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  {
    const std::lock_guard lock(mutex);
    for (Peer& peer : peers) peer.connection.close();
  }
  if (options.before_end) options.before_end(end->sentence, end->status);
  options.end ? options.end(end->status) : std::_Exit(end->status);
}

Control::Control() : impl_(std::make_unique<Impl>()) {}

std::unique_ptr<Control> Control::join(const Place& place, ControlOptions options) {
  std::unique_ptr<Control> control(new Control);
  Impl& impl = *control->impl_;
  impl.place = place;
  impl.options = std::move(options);
  impl.hosts = {place.host};
  if (place.alone()) return control;
  Joined joined = meet_at_door(place, impl.options.version, impl.options.join_seconds);
  if (joined.shown_out > 0 && impl.options.warned)
    impl.options.warned(0, fmt::format("{} came to rank 0 without this run's token: shown out",
                                       counted(joined.shown_out, "connection")));
  impl.meetings = Meetings(place.ranks);
  impl.hosts = std::move(joined.hosts);
  impl.peers = std::move(joined.peers);
  impl.start();
  return control;
}

Control::~Control() {
  if (!impl_->thread.joinable()) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake();
  impl_->thread.join();
}

const Place& Control::place() const { return impl_->place; }
const std::vector<std::string>& Control::hosts() const { return impl_->hosts; }

std::string Control::own_address() const {
  if (impl_->first()) return impl_->place.address;
  const std::lock_guard lock(impl_->mutex);
  sockaddr_storage about{};
  socklen_t size = sizeof about;
  char text[NI_MAXHOST];
  REDLINE_CHECK(
      ::getsockname(impl_->peers[0].connection.descriptor(), reinterpret_cast<sockaddr*>(&about), &size) == 0 &&
          ::getnameinfo(reinterpret_cast<sockaddr*>(&about), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0,
      "the connection with rank 0 has no address");
  return text;
}

void Control::Impl::add_part(int rank, const std::string& channel, std::int64_t number, std::int64_t kind,
                             std::string part) {
  std::optional<std::vector<std::string>> all;
  try {
    all = meetings.add(rank, channel, number, kind, std::move(part));
  } catch (const MachineError& e) {
    return end_with(fmt::format("{} came to {}", named(rank), e.what()), 1, true, {rank});
  }
  if (!all) return;
  BodyWriter body;
  body.text(channel).number(number);
  for (const std::string& p : *all) body.text(p);
  results[{channel, number}] = std::move(*all);
  send_all(Kind::result, body.take());
  changed.notify_all();
}

// Every meeting is this one: all parts go to rank 0 and all of them come back.
std::vector<std::string> Control::Impl::meet_all(std::int64_t kind, std::string_view mine, std::string_view channel) {
  if (place.alone()) return {std::string(mine)};
  REDLINE_CHECK(mine.size() <= kMostPart - 1024, "{} bytes are too many for a meeting of ranks", mine.size());
  std::unique_lock lock(mutex);
  const Key key{std::string(channel), met[std::string(channel)]++};
  if (first())
    add_part(0, key.first, key.second, kind, std::string(mine));
  else
    send_all(Kind::gather, BodyWriter().text(channel).number(key.second).number(kind).text(mine).take());
  wake();
  changed.wait(lock, [&] { return ended || done || results.contains(key); });
  const auto it = results.find(key);
  if (it == results.end()) throw MachineError(end ? end->sentence : "a meeting of ranks after their goodbye");
  std::vector<std::string> parts = std::move(it->second);
  results.erase(it);
  return parts;
}

std::vector<std::string> Control::all_gather(std::string_view mine, std::string_view channel) {
  return impl_->meet_all(kAllGather, mine, channel);
}
std::string Control::broadcast(std::string_view from_rank_0, std::string_view channel) {
  return impl_->meet_all(kBroadcast, impl_->first() ? from_rank_0 : "", channel)[0];
}
void Control::barrier(std::string_view channel) { impl_->meet_all(kBarrier, "", channel); }

void Control::tell(std::string_view warning) {
  if (impl_->place.alone()) {
    if (impl_->options.warned) impl_->options.warned(0, warning);
    return;
  }
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->first())
      impl_->warnings.emplace_back(0, warning);
    else
      impl_->send_all(Kind::warning, BodyWriter().text(cut(warning)).take());
  }
  impl_->wake();
}

void Control::progress(std::int64_t step) {
  impl_->step = step;
  ++impl_->calls;
}
void Control::collective(std::int64_t number) { impl_->collective = number; }
void Control::pace(double seconds) { impl_->pace = static_cast<std::int64_t>(1e6 * seconds); }

std::vector<double> Control::paces() const {
  std::vector<double> seconds;
  const std::lock_guard lock(impl_->mutex);
  for (const Watched& w : impl_->watched) seconds.push_back(1e-6 * static_cast<double>(w.progress.pace));
  return seconds;
}

void Control::watch(double seconds) {
  const std::lock_guard lock(impl_->mutex);
  impl_->watch_seconds = seconds;
  impl_->watch_begin = steady_seconds();
}

void Control::fail(std::string_view sentence, int status) {
  if (impl_->place.alone()) {
    impl_->end = Impl::End{std::string(sentence), status, true};
    impl_->finish();
    impl_->ended = true;
    return;
  }
  std::unique_lock lock(impl_->mutex);
  const auto over = [&] { return impl_->ended || impl_->done; };
  if (!impl_->first()) {
    impl_->send_all(Kind::fail, BodyWriter().number(status).text(cut(sentence)).take());
    impl_->wake();
    impl_->changed.wait_for(lock, std::chrono::duration<double>(kAnswerSeconds), over);
  }
  impl_->end_with(std::string(sentence), status, true, {impl_->place.rank});  // rank 0's own; or rank 0 does not answer
  impl_->wake();
  impl_->changed.wait(lock, over);
}

bool Control::ended() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->ended;
}

void Control::goodbye() {
  if (impl_->place.alone()) return;
  std::unique_lock lock(impl_->mutex);
  impl_->leaving = true;
  if (!impl_->first()) impl_->send_all(Kind::goodbye, "");
  impl_->wake();
  impl_->changed.wait(lock, [&] { return impl_->ended || impl_->done; });
  if (impl_->ended) throw MachineError(impl_->end->sentence);
}

}  // namespace redline::dist
