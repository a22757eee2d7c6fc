// The form of messages between rank 0 and the others, and which of them may come from whom: a frame is four bytes of
// length, one of kind, and the body. Whoever sends anything else is shown out. No sockets here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redline::dist {

enum class Kind : std::uint8_t {
  knock,     // whoever connects: a nonce
  greeting,  // rank 0's answer: its own nonce, and the proof that it knows the token
  hello,     // a rank's proof, and who it is: version, host, rank, ranks
  come_in,   // rank 0's answer to it
  welcome,   // all ranks are there: their hosts
  gather,    // a rank's part of a meeting
  result,    // all parts of it
  beat,      // I am alive, and how far
  warning,
  fail,  // a rank asks for the end of all
  end,   // rank 0 tells it
  goodbye,
};

// The other end of a connection.
enum class Other {
  guest,      // of rank 0: has proven nothing
  host,       // of a rank: has proven nothing
  rank,       // a rank that has proven itself to rank 0
  rank_zero,  // has proven itself to a rank
};

struct Message {
  Kind kind{};
  std::string body;
};

inline constexpr std::size_t kMostGuestBytes = 512;  // what a guest may cost before its proof
// Sentences are cut where they are sent, and what is longer is refused.
inline constexpr std::size_t kMostSentence = 60'000;
inline constexpr std::size_t kMostPart = std::size_t{64} << 20, kMostResult = std::size_t{256} << 20;

// The longest body of a kind that the other end may send; nothing: it may not send this kind at all.
std::optional<std::size_t> longest_body(Kind kind, Other from);

// Numbers and texts one after the other, as bodies hold them.
class BodyWriter {
 public:
  BodyWriter& number(std::int64_t n);
  BodyWriter& text(std::string_view text);
  std::string take() { return std::move(body_); }

 private:
  std::string body_;
};
class BodyReader {  // a body that does not fit is a MachineError
 public:
  explicit BodyReader(std::string_view body) : rest_(body) {}
  std::int64_t number();
  std::int64_t number(std::int64_t low, std::int64_t high);
  std::string text();
  void end() const;  // nothing may be left

 private:
  std::string_view rest_;
};

std::string frame_of(Kind kind, std::string_view body);

// Bytes that have come, as messages.
class Frames {
 public:
  explicit Frames(Other from = Other::guest) : from_(from) {}
  void trust(Other from) { from_ = from; }

  // How many more bytes are of use now: the frame that is coming, and a little of those behind it. So memory is bounded
  // by one frame, and a sender that is too fast waits.
  std::size_t wanted() const;
  void add(std::string_view bytes) { bytes_ += bytes; }
  std::optional<Message> next();  // nothing: more must come, or wrong()
  bool wrong() const { return wrong_; }

 private:
  struct Head {
    Kind kind{};
    std::size_t length = 0;  // with the body
    bool allowed = false;
  };
  std::optional<Head> head() const;  // of the next frame, where it is there

  Other from_;
  std::string bytes_;
  std::size_t taken_ = 0;
  bool wrong_ = false;
};

inline constexpr std::int64_t kAllGather = 0, kBroadcast = 1, kBarrier = 2;  // kinds of meetings

// The meetings of all ranks, as rank 0 keeps them: parts that have come, until all of one meeting have.
class Meetings {
 public:
  explicit Meetings(int ranks = 0) : ranks_(ranks), came_(static_cast<std::size_t>(ranks)) {}

  // All parts by rank, once the last has come. What a rank of the same program never sends is a MachineError: a meeting
  // out of its order, of an unknown kind or of another kind than the others', too many at a time, too many bytes.
  std::optional<std::vector<std::string>> add(int rank, const std::string& channel, std::int64_t number,
                                              std::int64_t kind, std::string part);
  std::size_t open() const { return meetings_.size(); }

 private:
  struct Meeting {
    std::int64_t kind = 0;
    std::size_t bytes = 0;
    std::vector<std::optional<std::string>> parts;
  };
  struct Came {
    std::map<std::string, std::int64_t> next;  // by channel: the number of the rank's next meeting
    int waiting = 0;                           // its parts in meetings that are not complete
  };
  int ranks_;
  std::map<std::pair<std::string, std::int64_t>, Meeting> meetings_;  // by channel and number
  std::vector<Came> came_;                                            // by rank
};

}  // namespace redline::dist
