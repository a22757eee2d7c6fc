// What a stranger may send to rank 0 while it waits for the others, and the ports that a machine listens on.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "dist/connection.h"
#include "dist/messages.h"

namespace redline::testing {

inline int free_port() {
  const dist::Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(socket.number(), reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

// Each is one guest's words: none of them may be taken for a rank, none may end the host.
inline std::vector<std::string> hostile_bytes() {
  using dist::BodyWriter;
  using dist::frame_of;
  using dist::Kind;
  const std::string nonce(32, 'n'), proof(32, 'p');
  const std::string said = BodyWriter().text("1.0").text("host1").number(1).number(2).take();
  return {
      std::string("\3\0\0\0\1abc", 8),                                         // eight bytes
      std::string("\3\0\0\0\2abc", 8),                                         // a hello that is cut short
      "GET / HTTP/1.1\r\nHost: here\r\n\r\n",                                  // somebody's browser
      std::string(100'000, '\xff'),                                            // a length beyond all bounds
      frame_of(Kind::knock, nonce) + frame_of(Kind::hello, proof + said),      // a false proof
      frame_of(Kind::knock, nonce) + frame_of(Kind::hello, ""),                // none
      frame_of(Kind::hello, proof + said),                                     // without a knock
      frame_of(Kind::knock, nonce) + frame_of(Kind::knock, nonce),             // twice
      frame_of(Kind::knock, "short"),                                          // no nonce
      frame_of(Kind::end, BodyWriter().number(0).text("all is well").take()),  // a false end
      frame_of(Kind::fail, BodyWriter().number(0).text("stop").take()),
      frame_of(Kind::gather, BodyWriter().text("").number(0).number(77).text("x").take()),
      frame_of(Kind::goodbye, ""),
      std::string("\0\0\0\0\x7f", 5),  // an unknown kind
      std::string("\0\0", 2),          // half a head, and silence
  };
}

// Ports on which a process, or one that it has started, listens for other machines, as the kernel lists them.
inline std::set<std::string> network_listeners(pid_t process) {
  namespace fs = std::filesystem;
  std::error_code gone;
  std::map<pid_t, pid_t> parents;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    std::ifstream file(entry.path() / "stat");
    std::string text;
    if (pid <= 0 || !std::getline(file, text)) continue;
    parents[pid] = std::atoi(text.substr(std::min(text.rfind(')') + 4, text.size())).c_str());
  }
  std::set<std::string> sockets;
  for (const auto& [pid, parent] : parents) {
    pid_t at = pid;
    while (at != process && parents.contains(at)) at = parents[at];
    if (at != process) continue;
    for (const auto& fd : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
      const std::string target = fs::read_symlink(fd.path(), gone).string();
      if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
    }
  }
  std::set<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::vector<std::string> row{std::istream_iterator<std::string>(words), {}};
      if (row.size() < 10 || row[3] != "0A" || !sockets.contains(row[9])) continue;  // 0A: it listens
      const std::string address = row[1].substr(0, row[1].find(':'));
      if (!address.ends_with("7F") && address != "00000000000000000000000001000000") found.insert(row[1]);
    }
  }
  return found;
}

}  // namespace redline::testing
