// One loop that waits for signals, for what the processes write, and for their ends.
#include "cli/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "cli/commands.h"
#include "dist/connection.h"

extern char** environ;

namespace redline::cli {
namespace {

using dist::Descriptor;

std::pair<Descriptor, Descriptor> make_pipe(int flags = O_CLOEXEC) {
  int ends[2];
  if (::pipe2(ends, flags) != 0) fail_machine("pipe: {}", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

int g_heard = -1;  // the end of a pipe that a handler writes to; whichever thread the signal comes in

void on_process_signal(int number) {
  const int before = errno;
  const auto byte = static_cast<unsigned char>(number);
  [[maybe_unused]] const auto written = ::write(g_heard, &byte, 1);
  errno = before;
}

// Signals come through a descriptor while it lives; one at a time. Ignored signals stay ignored.
class SignalsAsInput {
 public:
  SignalsAsInput() : pipe_(make_pipe(O_CLOEXEC | O_NONBLOCK)) {
    g_heard = pipe_.second.number();
    for (const int number : kHeard) {
      struct sigaction how {};
      ::sigaction(number, nullptr, &before_[number]);
      if (before_[number].sa_handler == SIG_IGN && number != SIGCHLD) continue;
      how.sa_handler = on_process_signal;
      how.sa_flags = SA_RESTART;
      ::sigaction(number, &how, nullptr);
    }
  }
  ~SignalsAsInput() {
    for (const int number : kHeard) ::sigaction(number, &before_[number], nullptr);
    g_heard = -1;
  }
  SignalsAsInput(const SignalsAsInput&) = delete;
  SignalsAsInput& operator=(const SignalsAsInput&) = delete;

  int descriptor() const { return pipe_.first.number(); }
  int next() const {  // 0: none
    unsigned char number = 0;
    return ::read(descriptor(), &number, 1) == 1 ? number : 0;
  }

 private:
  static constexpr int kHeard[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
  std::pair<Descriptor, Descriptor> pipe_;
  std::map<int, struct sigaction> before_;
};

void write_all(int to, std::string_view text) {
  while (!text.empty()) {
    const auto n = ::write(to, text.data(), text.size());
    if (n <= 0 && errno != EINTR) return;  // there is no reader any more
    text.remove_prefix(n > 0 ? static_cast<std::size_t>(n) : 0);
  }
}

// The output of a process on one of its two streams, on its way to ours.
struct Stream {
  Descriptor from;
  int to = STDOUT_FILENO;
  std::string prefix, line;

  void take() {
    char bytes[16384];
    const auto n = ::read(from.number(), bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) {
      if (!line.empty()) write_all(to, prefix + line + "\n");
      return from.reset();
    }
    line.append(bytes, static_cast<std::size_t>(n));
    for (std::size_t end = line.find('\n'); end != line.npos; end = line.find('\n')) {
      write_all(to, prefix + line.substr(0, end + 1));
      line.erase(0, end + 1);
    }
  }
};

class Process {
 public:
  explicit Process(const ProcessToStart& how) : how_(how) {
    std::map<std::string, std::string> variables;
    for (char** v = environ; *v; ++v) {
      const std::string_view text = *v;
      const std::size_t equals = text.find('=');
      if (equals != text.npos) variables[std::string(text.substr(0, equals))] = text.substr(equals + 1);
    }
    for (const auto& [name, value] : how.environment) {
      if (value.empty())
        variables.erase(name);
      else
        variables[name] = value;
    }
    std::vector<std::string> set;
    for (const auto& [name, value] : variables) set.push_back(name + "=" + value);
    std::vector<char*> words = {const_cast<char*>(how.program.c_str())}, environment;
    for (const std::string& word : how.words) words.push_back(const_cast<char*>(word.c_str()));
    for (const std::string& variable : set) environment.push_back(const_cast<char*>(variable.c_str()));
    words.push_back(nullptr);
    environment.push_back(nullptr);

    std::pair<Descriptor, Descriptor> out, err;
    const auto appended = [](const std::string& file) {
      Descriptor to(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
      if (!to.open()) fail_machine("{}: {}", file, std::strerror(errno));
      return to;
    };
    Descriptor log, document;
    if (!how.log.empty()) {
      log = appended(how.log);
      if (!how.out.empty()) document = appended(how.out);
    } else if (!how.prefix.empty()) {
      out = make_pipe();
      err = make_pipe();
    }
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) fail_machine("{} could not be started: {}", how.name, std::strerror(errno));
    if (pid_ == 0) {    // only calls that a fork leaves safe
      ::setpgid(0, 0);  // the terminal's Ctrl-C comes to us, and from us once
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (::getppid() != parent) ::_exit(1);
      if (out.second.open()) {
        ::dup2(out.second.number(), STDOUT_FILENO);
        ::dup2(err.second.number(), STDERR_FILENO);
      }
      if (log.open()) {
        ::dup2((document.open() ? document : log).number(), STDOUT_FILENO);
        ::dup2(log.number(), STDERR_FILENO);
      }
      ::execvpe(words[0], words.data(), environment.data());
      constexpr std::string_view kNot = "redline: error: the program could not be started\n";
      [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kNot.data(), kNot.size());
      ::_exit(kFailed);
    }
    ::setpgid(pid_, pid_);
    if (out.first.open()) {
      streams_.push_back({std::move(out.first), STDOUT_FILENO, how.prefix, ""});
      streams_.push_back({std::move(err.first), STDERR_FILENO, how.prefix, ""});
    }
  }

  const ProcessToStart& how() const { return how_; }
  std::vector<Stream>& streams() { return streams_; }
  bool running() const { return !ended_; }
  bool has_ended(int& status) {  // once
    if (ended_ || ::waitpid(pid_, &status, WNOHANG) != pid_) return false;
    return ended_ = true;
  }
  void give(int number) const {
    if (!ended_) ::kill(pid_, number);
  }
  void kill_at_once() const {  // and whatever it has started
    if (!ended_) ::kill(-pid_, SIGKILL);
  }

 private:
  const ProcessToStart& how_;
  pid_t pid_ = 0;
  bool ended_ = false;
  std::vector<Stream> streams_;
};

class Processes {
 public:
  Processes(const std::vector<ProcessToStart>& all, const EndingSeconds& seconds, const Look& look)
      : seconds_(seconds), look_(look) {
    processes_.reserve(all.size());
    for (const ProcessToStart& one : all) processes_.emplace_back(one);
  }
  ~Processes() {
    for (const Process& p : processes_) p.kill_at_once();
  }

  ProcessesEnd wait() {
    while (std::ranges::any_of(processes_, &Process::running) || anything_to_read()) {
      wait_a_little();
      while (const int number = signals_.next()) {
        if (number == SIGCHLD) continue;
        end_.asked_to = true;
        for (const Process& p : processes_) p.give(number);
      }
      for (Process& p : processes_)
        if (int status = 0; p.has_ended(status)) note_end(p, status);
      end_others();
      if (const int number = look_ ? look_(end_.asked_to) : 0)
        for (const Process& p : processes_) p.give(number);
    }
    return end_;
  }

 private:
  bool anything_to_read() {
    for (Process& p : processes_)
      for (const Stream& s : p.streams())
        if (s.from.open()) return true;
    return false;
  }

  void wait_a_little() {
    std::vector<pollfd> polled = {{signals_.descriptor(), POLLIN, 0}};
    std::vector<Stream*> streams;
    for (Process& p : processes_)
      for (Stream& s : p.streams())
        if (s.from.open()) {
          polled.push_back({s.from.number(), POLLIN, 0});
          streams.push_back(&s);
        }
    ::poll(polled.data(), polled.size(), 200);
    for (std::size_t i = 0; i < streams.size(); ++i)
      if (polled[i + 1].revents != 0) streams[i]->take();
  }

  void note_end(const Process& process, int status) {
    int code = WEXITSTATUS(status);
    std::string how = fmt::format("exit status {}", code);
    if (WIFSIGNALED(status) || code > 128) {  // a shell tells of a signal so
      const int number = WIFSIGNALED(status) ? WTERMSIG(status) : code - 128;
      how = fmt::format("signal {} ({})", number, ::strsignal(number));
      code = kFailed;
    }
    if (code == kDone || !end_.who.empty()) return;
    end_ = {code, process.how().name, how, end_.asked_to, {}};
    if (code != kStopped) failed_at_ = steady_seconds();
  }

  void end_others() {
    if (failed_at_ == 0) return;
    const double since = steady_seconds() - failed_at_;
    if (since > seconds_.before_term && !termed_) {
      for (const Process& p : processes_) p.give(SIGTERM);
      termed_ = true;
    }
    if (since <= seconds_.before_term + seconds_.before_kill) return;
    const bool first = !std::exchange(killed_, true);
    for (const Process& p : processes_) {
      if (first && p.running()) end_.killed.push_back(p.how().name);
      p.kill_at_once();
    }
  }

  SignalsAsInput signals_;
  EndingSeconds seconds_;
  const Look& look_;
  std::vector<Process> processes_;
  ProcessesEnd end_;
  double failed_at_ = 0;
  bool termed_ = false, killed_ = false;
};

}  // namespace

ProcessesEnd run_processes(const std::vector<ProcessToStart>& all, const EndingSeconds& seconds, const Look& look) {
  return Processes(all, seconds, look).wait();
}

std::string own_path() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) fail_machine("/proc/self/exe: {}", error.message());
  return path.string();
}

}  // namespace redline::cli
