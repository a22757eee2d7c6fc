// redline tokenizer.
#include "base/error.h"
#include "cli/commands.h"

namespace redline::cli {
int run_tokenizer(const Words&) { fail_user("redline tokenizer train is being written"); }
}  // namespace redline::cli
