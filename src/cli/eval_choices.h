// The part of redline eval that is about multiple choice (--choices).
#pragma once

#include "cli/ranks.h"
#include "cli/stop_at_once.h"
#include "infer/choices.h"

namespace redline::cli {

void answer_choices(const infer::Checkpoint& checkpoint, const infer::ChoicesRequest& request, bool json, Ranks& ranks,
                    StopAtOnce& stopping);

}  // namespace redline::cli
