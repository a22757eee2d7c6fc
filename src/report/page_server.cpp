// One thread and poll(2). Connections that say nothing, as browsers open them ahead of need, keep nobody waiting.
#include "report/page_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "dist/token.h"

namespace redline::report {
namespace {

constexpr std::size_t kMostBytes = 16 << 10, kMostGuests = 32;  // of a request's head; of connections at a time
constexpr double kMostSeconds = 10;                             // of a request and its answer
constexpr int kLookMs = 200;                                    // for the flag

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// The value of a header; nothing where there is none, or more than one.
std::string header(std::string_view request, std::string_view name) {
  std::vector<std::string> found;
  for (std::size_t at = request.find('\n'); at != request.npos; at = request.find('\n', at + 1)) {
    const std::string_view line = request.substr(at + 1, request.find('\n', at + 1) - at - 1);
    const std::size_t colon = line.find(':');
    if (colon != line.npos && lower(line.substr(0, colon)) == name) found.emplace_back(trimmed(line.substr(colon + 1)));
  }
  return found.size() == 1 ? found[0] : "";
}

// Any port: a tunnel from another machine has its own.
bool is_here(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  if (colon != host.npos && host.find(']', colon) == host.npos) {
    const std::string_view port = host.substr(colon + 1);
    if (port.empty() || port.find_first_not_of("0123456789") != port.npos) return false;
    host = host.substr(0, colon);
  }
  return host == "127.0.0.1" || host == "[::1]" || lower(host) == "localhost";
}

std::string response(std::string_view status, std::string_view type, std::string_view body, bool head = false) {
  std::string out = fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n"
      "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
      "Cross-Origin-Resource-Policy: same-origin\r\nContent-Security-Policy: frame-ancestors 'none'\r\n{}\r\n",
      status, type, body.size(), status.starts_with("405") ? "Allow: GET, HEAD\r\n" : "");
  return head ? out : out.append(body);
}

std::string sentence(std::string_view status, std::string_view text) {
  return response(status, "text/plain", fmt::format("{}\n", text));
}

}  // namespace

std::string answer(std::string_view request, const ServedPage& page) {
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const std::size_t first = line.find(' '), second = line.rfind(' ');
  if (first == line.npos || first == second || !line.substr(second + 1).starts_with("HTTP/1."))
    return sentence("400 Bad Request", "this is no request of HTTP/1.1");
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, second - first - 1);
  const std::string_view path = target.substr(0, target.find('?'));
  if (!is_here(header(request, "host")))
    return sentence("421 Misdirected Request", "this is served as 127.0.0.1 and localhost, and under no other name");
  try {
    if (path == "/stop" && page.stop) {
      if (method != "POST") return sentence("405 Method Not Allowed", "stopping takes a POST");
      if (!dist::same_secret(header(request, "x-redline-token"), page.token))
        return sentence("403 Forbidden", "whoever stops a run opens the address that the command printed, whole");
      return sentence("200 OK", page.stop());
    }
    if (method != "GET" && method != "HEAD") return sentence("405 Method Not Allowed", "only GET is answered here");
    if (path == "/") return response("200 OK", "text/html", page.html(), method == "HEAD");
    if (path == "/state") return response("200 OK", "text/plain", page.state(), method == "HEAD");
  } catch (const std::exception& e) {  // a run that is moved away, a disk that fails: the next request may do better
    return sentence("503 Service Unavailable", e.what());
  }
  return sentence("404 Not Found", "there is nothing here but the page, at /");
}

PageServer::PageServer(ServedPage page, int port) : page_(std::move(page)) {
  std::string problem;
  listeners_ = dist::listen_at("127.0.0.1", port, problem);
  if (listeners_.empty()) fail_user("port {} of this machine cannot be had: {}; give another --port", port, problem);
  sockaddr_in own{};
  socklen_t size = sizeof own;
  if (::getsockname(listeners_[0].number(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    fail_machine("the port of a socket is not known");
  port_ = ntohs(own.sin_port);
}

void PageServer::serve(double deadline, const StopFlag* stop) {
  while (steady_seconds() < deadline && !(stop && *stop != 0)) {
    std::vector<pollfd> all = {{listeners_[0].number(), POLLIN, 0}};
    if (guests_.size() >= kMostGuests) all[0].events = 0;
    for (const Guest& guest : guests_)
      all.push_back({guest.socket.number(), static_cast<short>(guest.answered ? POLLOUT : POLLIN), 0});
    if (::poll(all.data(), all.size(), kLookMs) < 0 && errno != EINTR) fail_machine("poll: error {}", errno);
    std::erase_if(guests_, [&](Guest& guest) { return !attend(guest); });
    while (guests_.size() < kMostGuests) {
      std::optional<dist::Descriptor> came = dist::accept_from(listeners_[0]);
      if (!came) break;
      guests_.push_back({std::move(*came), steady_seconds() + kMostSeconds, {}, {}});
    }
  }
}

bool PageServer::attend(Guest& guest) {
  const auto waits = [] { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; };
  while (!guest.answered) {
    char bytes[4096];
    const auto n = ::recv(guest.socket.number(), bytes, sizeof bytes, 0);
    if (n == 0) return false;
    if (n < 0) return waits() && steady_seconds() < guest.deadline;
    guest.in.append(bytes, static_cast<std::size_t>(n));
    const std::size_t end = guest.in.find("\r\n\r\n");
    guest.answered = end != guest.in.npos || guest.in.size() > kMostBytes;
    if (guest.answered)
      guest.out = end <= kMostBytes ? answer(std::string_view(guest.in).substr(0, end), page_)
                                    : sentence("431 Request Header Fields Too Large", "this request is too long");
    guest.deadline = guest.answered ? steady_seconds() + kMostSeconds : guest.deadline;
  }
  while (!guest.out.empty()) {
    const auto n = ::send(guest.socket.number(), guest.out.data(), guest.out.size(), MSG_NOSIGNAL);
    if (n < 0) return waits() && steady_seconds() < guest.deadline;
    guest.out.erase(0, static_cast<std::size_t>(n));
  }
  return false;
}

}  // namespace redline::report
