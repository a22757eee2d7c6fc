// The control thread: it serves the connections, sends and watches signs of life, and brings about the end.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>

#include "base/clock.h"
#include "base/error.h"
#include "base/handler_words.h"
#include "dist/control_impl.h"

namespace redline::dist {
namespace {

constexpr double kBeat = 1;          // seconds between two signs of life
constexpr double kSilent = 5;        // seconds: who said nothing for so long is stopped, or its machine is
constexpr double kLastSeconds = 1;   // for others to hear of the end before rank 0 goes
constexpr double kAtLast = 4;        // seconds behind which the process ends, said or not
constexpr double kLeaveSeconds = 5;  // for the goodbyes of rank 0 to be sent

std::string position(const Progress& p) { return fmt::format("step {}, collective {}", p.step, p.collective); }

}  // namespace

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
  for (Peer& peer : peers)
    if (peer.connection.open()) peer.connection.queue(kind, body);
}

void Control::Impl::end_with(std::string sentence, int status, bool speaks) {
  if (!end && !done) end = End{std::move(sentence), status, speaks};
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
    auto told = std::move(warnings);
    warnings.clear();
    lock.unlock();
    for (const auto& [rank, text] : told)
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
                          static_cast<short>(POLLIN | (peer.connection.has_to_send() ? POLLOUT : 0)), 0});
  }
  const double left = std::clamp(deadline - steady_seconds(), 0.0, kBeat);
  ::poll(polled.data(), polled.size(), static_cast<int>(std::ceil(1e3 * left)));
  std::uint64_t count = 0;
  [[maybe_unused]] const auto read = ::read(wake_descriptor.number(), &count, sizeof count);
}

void Control::Impl::serve(Peer& peer) {
  if (!peer.connection.open()) return;
  const bool sent = peer.connection.send_some();
  const bool received = peer.connection.receive_some();
  while (const auto message = peer.connection.next()) {
    try {
      take(peer, *message);
    } catch (const std::exception& e) {
      end_with(fmt::format("{} sent what cannot be read: {}", named(peer.rank), e.what()), 1, true);
    }
  }
  if (!sent || !received || !peer.connection.open()) lose(peer);
}

void Control::Impl::take(Peer& peer, const Message& message) {
  BodyReader body(message.body);
  switch (message.kind) {
    case Kind::gather: {
      const std::string channel = body.text();
      const std::int64_t number = body.number(), kind = body.number();
      return add_part(peer.rank, channel, number, kind, body.text());
    }
    case Kind::result: {
      const std::string channel = body.text();
      auto& parts = results[{channel, body.number()}];
      for (int rank = 0; rank < place.ranks; ++rank) parts.push_back(body.text());
      return changed.notify_all();
    }
    case Kind::beat: {
      Progress progress;
      progress.step = body.number();
      progress.collective = body.number();
      progress.calls = body.number();
      progress.pace = body.number();
      return note(peer.rank, progress, steady_seconds());
    }
    case Kind::warning: warnings.emplace_back(peer.rank, body.text()); return;
    case Kind::fail: {
      const auto status = static_cast<int>(body.number());
      return end_with(fmt::format("{}: {}", named(peer.rank), body.text()), status, true);
    }
    case Kind::end: {
      const auto status = static_cast<int>(body.number());
      return end_with(body.text(), status, false);
    }
    case Kind::goodbye:
      peer.left = true;
      if (!first()) {
        done = true;
        changed.notify_all();
      }
      return;
    case Kind::greeting:
    case Kind::hello:
    case Kind::welcome: break;
  }
  fail_machine("a message of kind {}", static_cast<int>(message.kind));
}

void Control::Impl::lose(Peer& peer) {
  peer.connection.close();
  if (peer.left) return;
  bool speaks = true;
  if (!first())  // one voice a machine: where rank 0 is gone, the first of those that are left
    for (int rank = 1; rank < place.rank; ++rank) speaks &= hosts[static_cast<std::size_t>(rank)] != place.host;
  end_with(fmt::format("{} is gone (its connection was closed without a goodbye); all ranks end", named(peer.rank)), 1,
           speaks);
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

// A rank that waits for another is ahead of it by a collective, or as far; so those that are behind are to be named.
// Where all are equally far, those that do not answer are, or else nobody knows.
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
  std::vector<int> dead, behind;
  for (int rank = 0; rank < place.ranks; ++rank) {
    if (left(rank)) continue;
    const Watched& w = watched[static_cast<std::size_t>(rank)];
    const bool idle = now - std::max(w.changed, watch_begin) >= watch_seconds;
    if (now - std::max(w.heard, watch_begin) >= (all_idle ? std::min(kSilent, watch_seconds) : watch_seconds))
      dead.push_back(rank);
    if (idle && w.progress.place() < furthest && (!all_idle || w.progress.place() == least)) behind.push_back(rank);
  }
  const std::vector<int>& named_ones = dead.empty() ? behind : dead;
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
           1, true);
}

void Control::Impl::check_first(double now) {
  const double silent = now - std::max(watched[0].heard, watch_begin);
  if (silent < watch_seconds) return;
  bool speaks = true;
  for (int rank = 1; rank < place.rank; ++rank) speaks &= hosts[static_cast<std::size_t>(rank)] != place.host;
  end_with(fmt::format("{} has not answered for {:.0f} seconds; all ranks end", named(0), silent), 1, speaks);
}

void Control::Impl::finish() {
  if (!options.end)  // a thread that hangs may hold what the sentence is written with
    std::thread([status = end->status] {
      std::this_thread::sleep_for(std::chrono::duration<double>(kAtLast));
      std::_Exit(status);
    }).detach();
  if (first()) {
    const std::lock_guard lock(mutex);
    send_all(Kind::end, BodyWriter().number(end->status).text(end->sentence).take());
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
  options.end ? options.end(end->status) : std::_Exit(end->status);
}

}  // namespace redline::dist
