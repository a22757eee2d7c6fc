// The same work done by several processes at the same moment: what each of them came to.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "base/error.h"

namespace redline::testing {

enum class CameTo { done, user_error, other };

// Sorted.
inline std::vector<CameTo> at_once(int processes, const std::function<void()>& work) {
  int gate[2];
  if (::pipe2(gate, O_CLOEXEC) != 0) fail_machine("no pipe");
  std::vector<pid_t> children;
  for (int i = 0; i < processes; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    ::close(gate[1]);
    char ready = 0;
    CameTo end = CameTo::other;
    try {
      if (::read(gate[0], &ready, 1) == 0) work();  // until the gate opens for all
      end = CameTo::done;
    } catch (const UserError&) {
      end = CameTo::user_error;
    } catch (const std::exception&) {
    }
    ::_exit(static_cast<int>(end));
  }
  ::close(gate[0]);
  ::close(gate[1]);
  std::vector<CameTo> ends;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    ends.push_back(WIFEXITED(status) ? static_cast<CameTo>(WEXITSTATUS(status)) : CameTo::other);
  }
  std::ranges::sort(ends);
  return ends;
}

}  // namespace redline::testing
