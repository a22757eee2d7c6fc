// The calls of the other threads: each leaves its words with the control thread and waits for what comes of them.
#include "dist/control.h"

#include "base/clock.h"
#include "base/error.h"
#include "dist/control_impl.h"

namespace redline::dist {
namespace {

constexpr double kAnswerSeconds = 3;  // for rank 0 to end all at the request of one
constexpr std::int64_t kGather = 0, kBroadcast = 1, kBarrier = 2;
constexpr std::string_view kMeetings[] = {"all_gather", "broadcast", "barrier"};

}  // namespace

Control::Control() : impl_(std::make_unique<Impl>()) {}

std::unique_ptr<Control> Control::join(const Place& place, ControlOptions options) {
  std::unique_ptr<Control> control(new Control);
  Impl& impl = *control->impl_;
  impl.place = place;
  impl.options = std::move(options);
  impl.hosts = {place.host};
  if (place.alone()) return control;
  Joined joined = meet(place, impl.options);
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

void Control::Impl::add_part(int rank, const std::string& channel, std::int64_t number, std::int64_t kind,
                             std::string part) {
  Meeting& meeting = meetings[{channel, number}];
  if (meeting.parts.empty()) {
    meeting.kind = kind;
    meeting.parts.resize(static_cast<std::size_t>(place.ranks));
  }
  if (meeting.kind != kind)
    return end_with(
        fmt::format("{} came to meeting {} of channel '{}' for a {} and others for a {}: ranks do not run the "
                    "same program",
                    named(rank), number, channel, kMeetings[kind], kMeetings[meeting.kind]),
        1, true);
  meeting.parts[static_cast<std::size_t>(rank)] = std::move(part);
  for (const auto& p : meeting.parts)
    if (!p) return;
  BodyWriter body;
  body.text(channel).number(number);
  std::vector<std::string>& result = results[{channel, number}];
  for (auto& p : meeting.parts) {
    body.text(*p);
    result.push_back(std::move(*p));
  }
  meetings.erase({channel, number});
  send_all(Kind::result, body.take());
  changed.notify_all();
}

// Every meeting is this one: all parts go to rank 0 and all of them come back.
std::vector<std::string> Control::Impl::meet_all(std::int64_t kind, std::string_view mine, std::string_view channel) {
  if (place.alone()) return {std::string(mine)};
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
  return impl_->meet_all(kGather, mine, channel);
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
      impl_->send_all(Kind::warning, BodyWriter().text(warning).take());
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
    impl_->send_all(Kind::fail, BodyWriter().number(status).text(sentence).take());
    impl_->wake();
    impl_->changed.wait_for(lock, std::chrono::duration<double>(kAnswerSeconds), over);
  }
  impl_->end_with(std::string(sentence), status, true);  // rank 0's own; or rank 0 does not answer
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
