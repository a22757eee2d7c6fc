// Bounds of every kind of message, and the order in which ranks come to meetings.
#include "dist/messages.h"

#include <algorithm>

#include "base/error.h"

namespace redline::dist {
namespace {

constexpr std::size_t kFrameHead = 5, kReadAhead = std::size_t{64} << 10;
constexpr std::size_t kLongestText = std::size_t{64} << 10;
constexpr int kMostWaiting = 64;  // meetings a rank; its threads have one each
constexpr std::size_t kMostChannels = 64, kLongestChannel = 64;
constexpr std::string_view kMeetingNames[] = {"all_gather", "broadcast", "barrier"};

}  // namespace

std::optional<std::size_t> longest_body(Kind kind, Other from) {
  const auto only = [&](bool allowed, std::size_t most) { return allowed ? std::optional(most) : std::nullopt; };
  const bool proven = from == Other::rank || from == Other::rank_zero;
  switch (kind) {
    case Kind::knock: return only(from == Other::guest, 64);
    case Kind::hello: return only(from == Other::guest, kMostGuestBytes);
    case Kind::greeting: return only(from == Other::host, 128);
    case Kind::gather: return only(from == Other::rank, kMostPart);
    case Kind::warning:
    case Kind::fail: return only(from == Other::rank, kLongestText);
    case Kind::come_in: return only(from == Other::rank_zero, 0);
    case Kind::welcome: return only(from == Other::rank_zero, std::size_t{1} << 20);
    case Kind::result: return only(from == Other::rank_zero, kMostResult);
    case Kind::end: return only(from == Other::rank_zero, kLongestText);
    case Kind::beat: return only(proven, 32);
    case Kind::goodbye: return only(proven, 0);
  }
  return std::nullopt;
}

BodyWriter& BodyWriter::number(std::int64_t n) {
  for (int shift = 0; shift < 64; shift += 8)
    body_ += static_cast<char>(static_cast<std::uint64_t>(n) >> shift & 0xFFu);
  return *this;
}
BodyWriter& BodyWriter::text(std::string_view text) {
  number(static_cast<std::int64_t>(text.size()));
  body_ += text;
  return *this;
}
std::int64_t BodyReader::number() {
  if (rest_.size() < 8) fail_machine("a message that is cut short");
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < 8; ++i) n |= std::uint64_t{static_cast<unsigned char>(rest_[i])} << (8 * i);
  rest_.remove_prefix(8);
  return static_cast<std::int64_t>(n);
}
std::int64_t BodyReader::number(std::int64_t low, std::int64_t high) {
  const std::int64_t n = number();
  if (n < low || n > high) fail_machine("a message with {}, where {} to {} is possible", n, low, high);
  return n;
}
std::string BodyReader::text() {
  const auto size = static_cast<std::uint64_t>(number());
  if (size > rest_.size()) fail_machine("a message that is cut short");
  std::string text(rest_.substr(0, size));
  rest_.remove_prefix(size);
  return text;
}
void BodyReader::end() const {
  if (!rest_.empty()) fail_machine("a message with {} bytes too many", rest_.size());
}

std::string frame_of(Kind kind, std::string_view body) {
  REDLINE_CHECK(body.size() <= kMostResult, "{} bytes are too many for one message between ranks", body.size());
  std::string frame;
  frame.reserve(kFrameHead + body.size());
  for (int shift = 0; shift < 32; shift += 8) frame += static_cast<char>(body.size() >> shift & 0xFFu);
  frame += static_cast<char>(kind);
  frame += body;
  return frame;
}

std::optional<Frames::Head> Frames::head() const {
  if (bytes_.size() - taken_ < kFrameHead) return std::nullopt;
  std::size_t size = 0;
  for (std::size_t i = 0; i < 4; ++i) size |= std::size_t{static_cast<unsigned char>(bytes_[taken_ + i])} << (8 * i);
  const auto kind = static_cast<unsigned char>(bytes_[taken_ + 4]);
  if (kind > static_cast<unsigned char>(Kind::goodbye)) return Head{};
  const auto most = longest_body(static_cast<Kind>(kind), from_);
  return Head{static_cast<Kind>(kind), kFrameHead + size, most && size <= *most};
}

std::size_t Frames::wanted() const {
  const auto next = head();
  if (wrong_ || (next && !next->allowed)) return 0;
  const std::size_t there = bytes_.size() - taken_;
  const std::size_t enough = (next ? next->length : kFrameHead) + (from_ == Other::guest ? 0 : kReadAhead);
  return enough > there ? enough - there : 0;
}

std::optional<Message> Frames::next() {
  const auto next = wrong_ ? std::nullopt : head();
  if (next && next->allowed && bytes_.size() - taken_ >= next->length) {
    Message message{next->kind, bytes_.substr(taken_ + kFrameHead, next->length - kFrameHead)};
    taken_ += next->length;
    return message;
  }
  if (next && !next->allowed) {
    wrong_ = true;
    taken_ = bytes_.size();
  }
  bytes_.erase(0, taken_);
  taken_ = 0;
  return std::nullopt;
}

std::optional<std::vector<std::string>> Meetings::add(int rank, const std::string& channel, std::int64_t number,
                                                      std::int64_t kind, std::string part) {
  if (kind < kAllGather || kind > kBarrier) fail_machine("a meeting of kind {}, which is none", kind);
  Came& came = came_.at(static_cast<std::size_t>(rank));
  if (channel.size() > kLongestChannel || (came.next.size() >= kMostChannels && !came.next.contains(channel)))
    fail_machine("more channels than ranks have");
  std::int64_t& next = came.next[channel];
  if (number != next) fail_machine("meeting {} of channel '{}', where meeting {} comes next", number, channel, next);
  if (came.waiting >= kMostWaiting) fail_machine("more than {} meetings at a time", kMostWaiting);
  Meeting& meeting = meetings_[{channel, number}];
  if (meeting.parts.empty()) {
    meeting.kind = kind;
    meeting.parts.resize(static_cast<std::size_t>(ranks_));
  }
  if (meeting.kind != kind)
    fail_machine(
        "meeting {} of channel '{}' for a {}, to which others came for a {}: ranks do not run the same program", number,
        channel, kMeetingNames[kind], kMeetingNames[meeting.kind]);
  // Every part stands in the result behind its length.
  meeting.bytes += part.size() + sizeof(std::int64_t);
  if (meeting.bytes + kLongestChannel + 3 * sizeof(std::int64_t) > kMostResult)
    fail_machine("meeting {} of channel '{}' with {} bytes in all, where {} are the most", number, channel,
                 meeting.bytes, kMostResult);
  ++next;
  ++came.waiting;
  meeting.parts[static_cast<std::size_t>(rank)] = std::move(part);
  if (!std::ranges::all_of(meeting.parts, [](const auto& p) { return p.has_value(); })) return std::nullopt;
  std::vector<std::string> all;
  for (auto& p : meeting.parts) all.push_back(std::move(*p));
  meetings_.erase({channel, number});
  for (Came& c : came_) --c.waiting;
  return all;
}

}  // namespace redline::dist
