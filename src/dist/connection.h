// Messages over TCP between rank 0 and the others: a kind and a body each. Sockets never block, and every wait has a
// deadline. A lost connection raises no signal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

enum class Kind : std::uint8_t {
  greeting,  // rank 0 to whoever connects: the job
  hello,     // a rank's first: version, rank, ranks, host
  welcome,   // all ranks are there: their hosts
  gather,    // a rank's part of a meeting
  result,    // all parts of it
  beat,      // I am alive, and how far
  warning,
  fail,  // a rank asks for the end of all
  end,   // rank 0 tells it
  goodbye,
};

struct Message {
  Kind kind{};
  std::string body;
};

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
  std::string text();

 private:
  std::string_view rest_;
};

class Connection {
 public:
  Connection() = default;
  explicit Connection(Descriptor socket);

  int descriptor() const { return socket_.number(); }
  bool open() const { return socket_.open(); }
  bool has_to_send() const { return !out_.empty(); }
  void close() { socket_.reset(); }

  void queue(Kind kind, std::string_view body);
  // Both do as much as they can without waiting. False: the other end is gone, or sent no message of ours.
  bool send_some();
  bool receive_some();
  std::optional<Message> next();  // of what was received

  // Waits until a deadline in steady seconds; nothing: it passed, or the other end is gone.
  std::optional<Message> receive_until(double deadline);
  bool send_until(double deadline);

 private:
  Descriptor socket_;
  std::string in_, out_;
  std::size_t taken_ = 0;  // of in_
};

// One socket for each family of the address; none where the port is taken. An unknown address is a
// UserError.
std::vector<Descriptor> listen_at(const std::string& address, int port, std::string& problem);
std::optional<Descriptor> accept_from(const Descriptor& listener);
// Nothing where no process listens there, and `problem` says why.
std::optional<Descriptor> connect_to(const std::string& address, int port, double deadline, std::string& problem);

// Until one of the sockets can be read (or written, where asked for) or the deadline has passed.
bool wait_readable(int descriptor, double deadline);
bool wait_writable(int descriptor, double deadline);

}  // namespace redline::dist
