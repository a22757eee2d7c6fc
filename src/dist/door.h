// How ranks meet: rank 0 listens, whoever connects proves that it knows the run's token, and rank 0 proves it to them.
// Whoever does not is shown out, and rank 0 waits on. The door is open until all ranks have come, and no longer.
#pragma once

#include <string>
#include <vector>

#include "dist/connection.h"
#include "dist/place.h"

namespace redline::dist {

struct Peer {
  int rank = 0;
  Connection connection;
  bool left = false;  // it has said goodbye
};

struct Joined {
  std::vector<Peer> peers;         // rank 0: all others, by rank; others: rank 0
  std::vector<std::string> hosts;  // by rank
  int shown_out = 0;               // by rank 0: those who said what no rank of this run says
};

// Either side of the door. A port that is taken, and ranks that know the token and do not fit together, are a
// UserError; a rank that does not come in time is a MachineError; both name it.
Joined meet_at_door(const Place& place, const std::string& version, double join_seconds);

// What rank 0 makes of one guest, message by message, without its socket.
class Guest {
 public:
  struct Said {
    std::string version, host;
    std::int64_t rank = 0, ranks = 0;
  };

  explicit Guest(std::string secret);
  enum class Next { answer, come, show_out };  // send greeting(); it is a rank, see said(); it is none
  Next hear(const Message& message);
  const std::string& greeting() const { return greeting_; }
  const Said& said() const { return said_; }

 private:
  std::string secret_, own_nonce_, their_nonce_, greeting_;
  Said said_;
};

// The other side: the bodies that a rank sends, and whether rank 0's answer proves that it is rank 0.
class Knock {
 public:
  explicit Knock(std::string secret);
  const std::string& body() const { return nonce_; }
  bool answered_by(const Message& greeting);
  std::string hello(const Guest::Said& said) const;

 private:
  std::string secret_, nonce_, host_nonce_;
};

}  // namespace redline::dist
