// Serves a page to browsers on this machine while a run goes on: HTTP/1.1 on the loopback alone, one request a
// connection. A request is bounded in bytes and time, and one with a foreign Host is refused: a name of somebody else's
// that leads here would otherwise let his page read this one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/signals.h"
#include "dist/connection.h"

namespace redline::report {

struct ServedPage {
  std::function<std::string()> html;   // of the page as it is now; what it throws is answered as a sentence
  std::function<std::string()> state;  // a text that is another one when the page is
  // Asks what is shown to stop, and says in a sentence what comes of it. Empty: nobody may.
  std::function<std::string()> stop = {};
  std::string token = {};  // that whoever asks to stop must know
};

// The whole answer to the head of a request.
std::string answer(std::string_view request, const ServedPage& page);

class PageServer {
 public:
  // A port of 0 is any free one. A port that is taken is a UserError.
  PageServer(ServedPage page, int port);
  int port() const { return port_; }
  // Answers requests until the flag is set or, in steady seconds, the deadline has passed.
  void serve(double deadline, const StopFlag* stop = nullptr);

 private:
  struct Guest {
    dist::Descriptor socket;
    double deadline = 0;
    std::string in, out;  // received, and still to be sent
    bool answered = false;
  };
  bool attend(Guest& guest);  // false: it is served, gone, or too slow

  ServedPage page_;
  std::vector<dist::Descriptor> listeners_;
  std::vector<Guest> guests_;
  int port_ = 0;
};

}  // namespace redline::report
