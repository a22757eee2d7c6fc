// The state behind Control, shared by its three files: meeting (join.cpp), the thread (control_thread.cpp) and the
// calls (control.cpp). For those alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "dist/connection.h"
#include "dist/control.h"

namespace redline::dist {

// How far a rank is, as its last heartbeat said.
struct Progress {
  std::int64_t step = 0, collective = 0, calls = 0;
  std::int64_t pace = 0;  // microseconds
  bool operator==(const Progress&) const = default;
  std::pair<std::int64_t, std::int64_t> place() const { return {step, collective}; }
};

struct Peer {
  int rank = 0;
  Connection connection;
  bool left = false;  // it has said goodbye
};

struct Watched {
  Progress progress;
  double changed = 0, heard = 0;  // steady seconds
};

struct Joined {
  std::vector<Peer> peers;         // rank 0: all others, by rank; others: rank 0
  std::vector<std::string> hosts;  // by rank
};
Joined meet(const Place& place, const ControlOptions& options);

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
  struct Meeting {
    std::int64_t kind = 0;
    std::vector<std::optional<std::string>> parts;
  };
  using Key = std::pair<std::string, std::int64_t>;  // channel and number
  std::map<Key, Meeting> meetings;                   // on rank 0: not complete yet
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
  };
  std::optional<End> end;

  bool first() const { return place.rank == 0; }
  std::string named(int rank) const;  // "rank 3 on host X"
  void wake();
  void start();
  std::vector<std::string> meet_all(std::int64_t kind, std::string_view mine, std::string_view channel);

  // With the mutex held.
  void send_all(Kind kind, std::string_view body);
  void add_part(int rank, const std::string& channel, std::int64_t number, std::int64_t kind, std::string part);
  void end_with(std::string sentence, int status, bool speaks);

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

}  // namespace redline::dist
