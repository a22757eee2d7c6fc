// What comes to rank 0 over a connection: a stranger's bytes never make it a rank, and those of a rank that has proven
// itself are messages within their bounds, and meetings of which few are open at a time. The first byte says who is at
// the other end, the second how the bytes are cut into pieces.
#include "dist/door.h"
#include "dist/messages.h"
#include "dist/token.h"
#include "fuzz.h"

namespace redline::fuzz {
namespace {

using namespace dist;

const std::string kSecret(32, 's');
constexpr int kRanks = 3;

std::string part(std::int64_t number, std::int64_t kind, const std::string& text) {
  return frame_of(Kind::gather, BodyWriter().text("loop").number(number).number(kind).text(text).take());
}

// The bytes as a connection gives them: never more than were wanted.
template <class Take>
void in_pieces(Frames& frames, std::string_view bytes, std::size_t piece, const Take& take) {
  while (!bytes.empty()) {
    const std::size_t n = std::min({frames.wanted(), piece, bytes.size()});
    if (n == 0) {
      require(frames.wrong() || !frames.next(), "a message that nobody took");
      require(frames.wrong(), "no room for what comes");
      return;
    }
    frames.add(bytes.substr(0, n));
    bytes.remove_prefix(n);
    while (const auto message = frames.next()) take(*message);
  }
}

void stranger(std::string_view bytes, std::size_t piece) {
  Frames frames(Other::guest);
  Guest guest(kSecret);
  in_pieces(frames, bytes, piece, [&](const Message& message) {
    require(message.body.size() <= kMostGuestBytes, "a stranger's message is too long");
    require(guest.hear(message) != Guest::Next::come, "a stranger is taken for a rank");
  });
}

void host(std::string_view bytes, std::size_t piece) {
  Frames frames(Other::host);
  Knock knock(kSecret);
  in_pieces(frames, bytes, piece,
            [&](const Message& message) { require(!knock.answered_by(message), "a stranger is taken for rank 0"); });
}

// As rank 0's thread takes them (dist/control.cpp).
void rank(std::string_view bytes, std::size_t piece) {
  Frames frames(Other::rank);
  Meetings meetings(kRanks);
  int from = 1;
  try {
    in_pieces(frames, bytes, piece, [&](const Message& message) {
      const auto most = longest_body(message.kind, Other::rank);
      require(most && message.body.size() <= *most, "a message that no rank may send");
      if (message.kind != Kind::gather) return;
      BodyReader body(message.body);
      const std::string channel = body.text();
      const std::int64_t number = body.number(), kind = body.number();
      std::string text = body.text();
      body.end();
      const auto all = meetings.add(from, channel, number, kind, std::move(text));
      require(!all || all->size() == kRanks, "a meeting without all parts");
      from = (from + 1) % kRanks;
      require(meetings.open() <= 64 * kRanks, "meetings without end");
    });
  } catch (const MachineError&) {  // what ends such a run, with a sentence
  }
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string knock = frame_of(Kind::knock, std::string(kNonceBytes, 'n'));
  const std::string hello =
      frame_of(Kind::hello,
               std::string(kProofBytes, 'p') + BodyWriter().text("1.0").text("host1").number(1).number(kRanks).take());
  const std::string greeting = frame_of(Kind::greeting, std::string(kNonceBytes + kProofBytes, 'g'));
  const std::string beat = frame_of(Kind::beat, BodyWriter().number(1).number(2).number(3).number(4).take());
  const std::string words = frame_of(Kind::warning, BodyWriter().text("hot").take());
  const std::string fail = frame_of(Kind::fail, BodyWriter().number(0).text("done").take());
  return {
      std::string("\0\7", 2) + knock + hello, std::string("\1\x40", 2) + greeting,
      std::string("\2\x20", 2) + part(0, kAllGather, "a") + part(0, kAllGather, "b") + part(0, kAllGather, "c") + beat,
      std::string("\2\1", 2) + part(0, kBarrier, "") + part(0, kBroadcast, "") + words,
      std::string("\2\xff", 2) + beat + fail + frame_of(Kind::goodbye, "")};
}

}  // namespace redline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes = redline::fuzz::text_of(data + 2, size - 2);
  const std::size_t piece = std::size_t{data[1]} + 1;
  switch (data[0] % 3) {
    case 0: redline::fuzz::stranger(bytes, piece); break;
    case 1: redline::fuzz::host(bytes, piece); break;
    default: redline::fuzz::rank(bytes, piece);
  }
  return 0;
}
