// Dispatch, help of the whole program, and the exit statuses.
#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/words.h"
#include "cli/commands.h"
#include "cli/lost_file.h"
#include "cli/output.h"
#include "cli/pages.h"
#include "cli/version.h"
#include "config/load.h"
#include "train/trainer.h"

namespace redline::cli {
namespace {

constexpr Command kCommands[] = {
    {"train", "train a model; with no configuration, the built-in quick one", run_train},
    {"launch", "train on several ranks: the cards of this machine, or its CPU", run_launch},
    {"sweep", "train every combination of some settings, one after another, and compare them", run_sweep},
    {"data", "text to token shards; what padding would waste and packing saves", run_data},
    {"eval", "loss on held-out data", run_eval},
    {"sample", "text from a trained model", run_sample},
    {"plan", "memory, FLOPs, expected step time and the best batch size, before anything runs", run_plan},
    {"export", "a Hugging Face folder from a checkpoint", run_export},
    {"import", "a checkpoint from a Hugging Face folder", run_import},
    {"profile", "where the time of a training step goes", run_profile},
    {"doctor", "what keeps a run or a configuration from being faster, and what mends it", run_doctor},
    {"ladder", "what each optimisation gives on this machine, from the naive step to the full one", run_ladder},
    {"tune", "search the settings that train a configuration fastest here, and write them down", run_tune},
    {"report", "a run, or several beside each other, as one HTML file", run_report},
    {"verify", "compare with what Hugging Face computed from the same weights", run_verify},
    {"tokenize", "text to token ids, and back", run_tokenize},
    {"tokenizer", "train a tokenizer", run_tokenizer},
    {"config", "the resolved configuration, all keys, the presets", run_config},
    {"peaks", "what cards promise, and what this machine reaches", run_peaks},
    {"info", "what this machine has and which backends work", run_info},
    {"completion", "a script with which bash, zsh or fish completes commands, flags and keys", run_completion},
    {"man", "the manual page", run_man},
};

void print_help() {
  print("redline pretrains language models.\n\nUsage: redline COMMAND [...]\n\nCommands:\n");
  for (const Command& c : kCommands) print(fmt::format("  {:<10}  {}\n", c.name, c.purpose));
  print(
      "\nFor example:\n"
      "  redline train                                      train the quick model on generated data\n"
      "  redline train my.toml optim.lr=1e-3 --out runs/a   train as my.toml says, with one key changed\n"
      "  redline sample --checkpoint runs/a --prompt 10.    continue a text with its newest checkpoint\n"
      "\n`redline COMMAND --help` tells about one command, `redline --version` the version.\n"
      "Exit status: ");
  print(fmt::format("{}.\n", exit_statuses()));
}

const Command* find_command(std::string_view name) {
  const auto it = std::ranges::find(kCommands, name, &Command::name);
  return it == std::end(kCommands) ? nullptr : it;
}

const Command& command_of(const std::string& name) {
  if (const Command* command = find_command(name)) return *command;
  const bool flag = name.starts_with('-');
  std::vector<std::string> names = {"--help", "--version"};
  for (const Command& c : kCommands) names.emplace_back(c.name);
  const std::string guess = config::nearest(name, names);
  fail_user("unknown {} '{}'; {}", flag ? "flag" : "command", name,
            guess.empty() ? "see redline --help" : fmt::format("did you mean '{}'?", guess));
}

int dispatch(Words words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || (words[0] == "help" && words.size() == 1)) {
    print_help();
    return kDone;
  }
  if (words[0] == "--version") {
    print(fmt::format("redline {}\n", version()));
    return kDone;
  }
  if (words[0] == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  const Command& command = command_of(words[0]);
  words.erase(words.begin());
  return command.run(words);
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

std::string_view exit_statuses() {
  return "0 done, 1 something failed (the machine, a check of verify, or doctor has found something), 2 bad input, 3 "
         "stopped by a signal";
}

int run(int argc, const char* const* argv) {
  prepare_output();
  tell_of_lost_files();
  const auto failed = [](int status, std::string_view sentence) {
    finish_output();  // what was printed comes before the sentence
    print_error(sentence);
    return status;
  };
  try {
    const int status = dispatch(Words(argv + std::min(argc, 1), argv + argc));
    const std::string problem = finish_output();
    return problem.empty() ? status : failed(kFailed, problem);
  } catch (const UserError& e) {
    return failed(kBadInput, e.what());
  } catch (const std::bad_alloc&) {
    return failed(kFailed, fmt::format("out of memory; a smaller train.batch_size or train.seq_len needs less; see {}",
                                       troubleshooting::kOutOfMemory));
  } catch (const std::exception& e) {  // MachineError, train::NotFinite, what the standard library throws
    return failed(kFailed, e.what());
  }
}

}  // namespace redline::cli
