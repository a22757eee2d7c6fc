// "INPUT... [--text-field F] [--separator S] [--on-error WHAT]": how commands name the documents that they read.
#pragma once

#include <string>
#include <vector>

#include "cli/arguments.h"
#include "data/input/text_input.h"

namespace redline::cli {

struct DocumentWords {
  std::vector<std::string> inputs;
  std::string text_field = "text", separator, on_error = "stop";

  void declare(Arguments& arguments);
  data::InputFormat format() const;  // a bad value of a flag is a UserError
  bool skip_bad() const { return on_error == "skip"; }
};

}  // namespace redline::cli
