// The commands. A command parses its words, calls the library and prints; it returns the exit status and throws what
// the library throws.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace redline::cli {

using Words = std::vector<std::string>;

inline constexpr int kDone = 0, kFailed = 1, kBadInput = 2, kStopped = 3;
std::string_view exit_statuses();  // one sentence, as the help ends

// The version of this program: the git tag it was built from, or the number in CMakeLists.txt
// (cmake/WriteVersion.cmake). "0.1.0", or "0.1.0-12-g1a2b3c4" twelve commits after the tag.
std::string_view version();

struct Command {
  std::string_view name, purpose;
  int (*run)(const Words& words);
};

// Commands for one purpose, as the help shows them.
struct CommandSection {
  std::string_view title;
  std::vector<Command> commands;
};
const std::vector<CommandSection>& command_sections();
std::vector<Command> commands();  // of all sections

// From the words of the command line to an exit status: finds the command, runs it, and turns whatever is thrown into
// one sentence on standard error.
int run(int argc, const char* const* argv);

int run_check(const Words& words);
int run_completion(const Words& words);
int run_config(const Words& words);
int run_data(const Words& words);
int run_doctor(const Words& words);
int run_eval(const Words& words);
int run_export(const Words& words);
int run_import(const Words& words);
int run_info(const Words& words);
int run_ladder(const Words& words);
int run_launch(const Words& words);
int run_man(const Words& words);
int run_peaks(const Words& words);
int run_plan(const Words& words);
int run_profile(const Words& words);
int run_report(const Words& words);
int run_sample(const Words& words);
int run_sweep(const Words& words);
int run_tokenize(const Words& words);
int run_tokenizer(const Words& words);
int run_train(const Words& words);
int run_tune(const Words& words);
int run_verify(const Words& words);

}  // namespace redline::cli
