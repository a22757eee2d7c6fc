// One request to a server on this machine, and its whole answer.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "base/clock.h"
#include "dist/connection.h"

namespace redline::testing {

inline std::string ask(int port, std::string_view request) {
  std::string problem, answer;
  const double deadline = steady_seconds() + 20;
  const auto socket = dist::connect_to("127.0.0.1", port, deadline, problem);
  if (!socket) return "not connected: " + problem;
  for (std::string_view rest = request; !rest.empty();) {
    if (!dist::wait_writable(socket->number(), deadline)) return "not sent";
    const auto n = ::send(socket->number(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n < 0) break;  // an answer may come before all is said
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  for (char bytes[4096]; dist::wait_readable(socket->number(), deadline);) {
    const auto n = ::recv(socket->number(), bytes, sizeof bytes, 0);
    if (n <= 0) return answer;
    answer.append(bytes, static_cast<std::size_t>(n));
  }
  return "no end: " + answer;
}

inline std::string get(int port, const std::string& path) {
  return ask(port, "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) + "\r\n\r\n");
}

}  // namespace redline::testing
