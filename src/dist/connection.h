// Messages (dist/messages.h) over TCP between rank 0 and the others. Sockets never block, and every wait has a
// deadline. A lost connection raises no signal.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/messages.h"

namespace redline::dist {

// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  int number() const { return number_; }
  bool open() const { return number_ >= 0; }
  void reset();

 private:
  int number_ = -1;
};

class Connection {
 public:
  Connection() = default;
  Connection(Descriptor socket, Other from);

  int descriptor() const { return socket_.number(); }
  bool open() const { return socket_.open(); }
  std::size_t to_send() const { return out_.size(); }  // bytes
  void close() { socket_.reset(); }
  void trust(Other from) { frames_.trust(from); }  // it has proven who it is

  void queue(Kind kind, std::string_view body);
  // Both do as much as they can without waiting; the second takes no more than a frame at a time, and next() makes room
  // for more. False: the other end is gone.
  bool send_some();
  bool receive_some();
  std::optional<Message> next();  // of what was received; who sends no message of ours is closed

  // Waits until a deadline in steady seconds; nothing: it passed, or the other end is gone.
  std::optional<Message> receive_until(double deadline);
  bool send_until(double deadline);

 private:
  Descriptor socket_;
  Frames frames_;
  std::string out_;
};

// One socket for each address of the name, which other machines cannot reach where it is the loopback's; none where the
// port is taken, or no address is this machine's. An unknown name is a UserError.
std::vector<Descriptor> listen_at(const std::string& address, int port, std::string& problem);
bool is_loopback(const std::string& address);  // all addresses of the name
std::optional<Descriptor> accept_from(const Descriptor& listener);
// Nothing where no process listens there, and `problem` says why.
std::optional<Descriptor> connect_to(const std::string& address, int port, double deadline, std::string& problem);

// Until one of the sockets can be read (or written, where asked for) or the deadline has passed.
bool wait_readable(int descriptor, double deadline);
bool wait_writable(int descriptor, double deadline);

}  // namespace redline::dist
