// Sockets: listening, connecting, sending and receiving.
#include "dist/connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "base/error.h"

namespace redline::dist {
namespace {

constexpr int kUnansweredMs = 20000;  // a machine without power answers no packet

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& address, int port, std::string& problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list); error != 0)
    problem = ::gai_strerror(error);
  return Addresses(list);
}

Descriptor make_socket(int family) {
  return Descriptor(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

bool of_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

bool stands_before(const addrinfo* list, const addrinfo* one) {  // a file of hosts may name an address twice
  for (const addrinfo* a = list; a != one; a = a->ai_next)
    if (a->ai_addrlen == one->ai_addrlen && std::memcmp(a->ai_addr, one->ai_addr, a->ai_addrlen) == 0) return true;
  return false;
}

bool wait_for(int descriptor, short events, double deadline) {
  for (;;) {
    const double left = deadline - steady_seconds();
    pollfd one{descriptor, events, 0};
    const int ready = ::poll(&one, 1, left > 0 ? static_cast<int>(std::ceil(1e3 * std::min(left, 3600.0))) : 0);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (left <= 0) return false;
  }
}

// A socket that tries a port long enough may be given that very port and meet itself.
bool is_own_end(int socket) {
  sockaddr_storage own{}, other{};
  socklen_t own_size = sizeof own, other_size = sizeof other;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&other), &other_size) == 0 && own_size == other_size &&
         std::memcmp(&own, &other, own_size) == 0;
}

void set_option(int socket, int level, int name, int value) { ::setsockopt(socket, level, name, &value, sizeof value); }

}  // namespace

void Descriptor::reset() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    std::swap(number_, other.number_);
  }
  return *this;
}

Connection::Connection(Descriptor socket, Other from) : socket_(std::move(socket)), frames_(from) {
  set_option(descriptor(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(descriptor(), SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_USER_TIMEOUT
  set_option(descriptor(), IPPROTO_TCP, TCP_USER_TIMEOUT, kUnansweredMs);
#endif
}

void Connection::queue(Kind kind, std::string_view body) { out_ += frame_of(kind, body); }

bool Connection::send_some() {
  std::size_t sent = 0;
  bool alive = open();
  while (alive && sent < out_.size()) {
    const auto n = ::send(descriptor(), out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno != EINTR) {
      alive = errno == EAGAIN || errno == EWOULDBLOCK;
      break;
    }
  }
  out_.erase(0, sent);
  return alive;
}

bool Connection::receive_some() {
  char bytes[65536];
  while (open()) {
    const std::size_t wanted = std::min(frames_.wanted(), sizeof bytes);
    if (wanted == 0) return true;
    const auto n = ::recv(descriptor(), bytes, wanted, 0);
    if (n > 0) {
      frames_.add({bytes, static_cast<std::size_t>(n)});
    } else if (n == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return false;
}

std::optional<Message> Connection::next() {
  auto message = frames_.next();
  if (frames_.wrong()) close();
  return message;
}

std::optional<Message> Connection::receive_until(double deadline) {
  for (;;) {
    if (auto message = next()) return message;
    if (!open() || !wait_readable(descriptor(), deadline)) return std::nullopt;
    const bool alive = receive_some();
    if (auto message = next()) return message;
    if (!alive) return std::nullopt;
  }
}

bool Connection::send_until(double deadline) {
  while (send_some()) {
    if (to_send() == 0) return true;
    if (!wait_writable(descriptor(), deadline)) return false;
  }
  return false;
}

std::vector<Descriptor> listen_at(const std::string& address, int port, std::string& problem) {
  const Addresses list = resolve(address, port, problem);
  if (!list) fail_user("rank 0's machine '{}' is not known here: {}; see MASTER_ADDR", address, problem);
  std::vector<Descriptor> listeners;
  for (addrinfo* a = list.get(); a; a = a->ai_next) {
    if ((a->ai_family != AF_INET && a->ai_family != AF_INET6) || stands_before(list.get(), a)) continue;
    Descriptor socket = make_socket(a->ai_family);
    if (!socket.open()) continue;
    set_option(socket.number(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (a->ai_family == AF_INET6) set_option(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (::bind(socket.number(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(socket.number(), SOMAXCONN) == 0) {
      listeners.push_back(std::move(socket));
      continue;
    }
    problem = std::strerror(errno);
    if (errno == EADDRINUSE) return {};  // half of a port would leave some ranks outside
  }
  return listeners;
}

bool is_loopback(const std::string& address) {
  std::string problem;
  const Addresses list = resolve(address, 0, problem);
  for (addrinfo* a = list.get(); a; a = a->ai_next)
    if ((a->ai_family == AF_INET || a->ai_family == AF_INET6) && !of_loopback(*a->ai_addr)) return false;
  return list != nullptr;
}

std::optional<Descriptor> accept_from(const Descriptor& listener) {
  Descriptor socket(::accept4(listener.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  return socket.open() ? std::optional(std::move(socket)) : std::nullopt;
}

std::optional<Descriptor> connect_to(const std::string& address, int port, double deadline, std::string& problem) {
  const Addresses list = resolve(address, port, problem);
  for (addrinfo* a = list.get(); a; a = a->ai_next) {
    Descriptor socket = make_socket(a->ai_family);
    if (!socket.open()) continue;
    int error = 0;
    if (::connect(socket.number(), a->ai_addr, a->ai_addrlen) != 0) {
      error = errno;
      if (error == EINPROGRESS) {
        error = ETIMEDOUT;
        socklen_t size = sizeof error;
        if (wait_writable(socket.number(), deadline))
          ::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
    if (error == 0 && is_own_end(socket.number())) error = ECONNREFUSED;
    if (error == 0) return socket;
    problem = std::strerror(error);
  }
  return std::nullopt;
}

bool wait_readable(int descriptor, double deadline) { return wait_for(descriptor, POLLIN, deadline); }
bool wait_writable(int descriptor, double deadline) { return wait_for(descriptor, POLLOUT, deadline); }

}  // namespace redline::dist
