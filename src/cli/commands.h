// The commands, one file each. A command parses its words, calls the library and prints; it returns the exit status and
// throws what the library throws.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redline::cli {

using Words = std::vector<std::string>;

inline constexpr int kDone = 0, kFailed = 1, kBadInput = 2, kStopped = 3;

struct Command {
  std::string_view name, purpose;
  int (*run)(const Words& words);
};

// From the words of the command line to an exit status: finds the command, runs it, and turns whatever is thrown into
// one sentence on standard error.
int run(int argc, const char* const* argv);
std::span<const Command> commands();  // in the order that help shows them

int run_train(const Words& words);
int run_launch(const Words& words);
int run_sweep(const Words& words);
int run_eval(const Words& words);
int run_sample(const Words& words);
int run_plan(const Words& words);
int run_peaks(const Words& words);
int run_export(const Words& words);
int run_import(const Words& words);
int run_profile(const Words& words);
int run_doctor(const Words& words);
int run_ladder(const Words& words);
int run_tune(const Words& words);
int run_report(const Words& words);
int run_verify(const Words& words);
int run_tokenize(const Words& words);
int run_tokenizer(const Words& words);
int run_config(const Words& words);
int run_info(const Words& words);
int run_data(const Words& words);  // and under it:
int run_data_prepare(const Words& words);
int run_data_stats(const Words& words);

}  // namespace redline::cli
