// The last sentence of a process that a signal ends. Every function here may be called in a signal handler.
#pragma once

#include "base/handler_words.h"

namespace redline::cli {

[[noreturn]] inline void last_words(std::initializer_list<std::string_view> sentence, int status) {
  say_in_handler(sentence);
  ::_exit(status);
}

}  // namespace redline::cli
