// The part of redline eval that is about multiple choice (--choices).
#pragma once

#include <string>

#include "cli/ranks.h"
#include "cli/stop_at_once.h"
#include "infer/load.h"

namespace redline::cli {

struct ChoicesSettings {
  std::string file, tokenizer, precision, device;
  bool json = false;
};

void answer_choices(const infer::Checkpoint& checkpoint, const ChoicesSettings& settings, Ranks& ranks,
                    StopAtOnce& stopping);

}  // namespace redline::cli
