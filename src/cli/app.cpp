// Dispatch, help of the whole program, and the exit statuses.
#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/words.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "config/load.h"

namespace redline::cli {
namespace {

void print_help() {
  print("redline pretrains language models.\n\nUsage: redline COMMAND [...]\n");
  for (const CommandSection& section : command_sections()) {
    print(fmt::format("\n{}:\n", section.title));
    for (const Command& c : section.commands) print(fmt::format("  {:<10}  {}\n", c.name, c.purpose));
  }
  print(
      "\nFor example:\n"
      "  redline train                                      train the quick model on generated data\n"
      "  redline train my_texts/                            train on a folder of text; the rest is chosen, and said\n"
      "  redline train my.toml optim.lr=1e-3 --out runs/a   train as my.toml says, with one key changed\n"
      "  redline sample runs/a --prompt 10.                 continue a text with its newest checkpoint\n"
      "\n`redline COMMAND --help` tells about one command, `redline --version` the version.\n"
      "Exit status: ");
  print(fmt::format("{}.\n", exit_statuses()));
}

Command command_of(const std::string& name) {
  std::vector<std::string> names = {"--help", "--version"};
  for (const Command& c : commands()) {
    if (c.name == name) return c;
    names.emplace_back(c.name);
  }
  const std::string guess = config::nearest(name, names);
  fail_user("unknown {} '{}'; {}", name.starts_with('-') ? "flag" : "command", name,
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
  const Command command = command_of(words[0]);
  words.erase(words.begin());
  return command.run(words);
}

}  // namespace

const std::vector<CommandSection>& command_sections() {
  static const std::vector<CommandSection> all = {
      {"Train and continue",
       {{"train", "train a model, or go on with a run; with no configuration, the built-in quick one", run_train},
        {"launch", "train on several ranks: the cards of this machine, or its CPU", run_launch},
        {"sweep", "train every combination of some settings, one after another, and compare them", run_sweep},
        {"config", "the resolved configuration, all keys, the presets", run_config}}},
      {"Data",
       {{"data", "text to token shards; what padding would waste and packing saves", run_data},
        {"tokenize", "text to token ids, and back", run_tokenize},
        {"tokenizer", "train a tokenizer", run_tokenizer}}},
      {"Look",
       {{"report", "a run, or several beside each other, as one HTML file", run_report},
        {"eval", "loss on held-out data", run_eval},
        {"sample", "text from a trained model", run_sample}}},
      {"Go faster",
       {{"plan", "memory, FLOPs, expected step time and the best batch size, before anything runs", run_plan},
        {"profile", "where the time of a training step goes", run_profile},
        {"doctor", "what keeps a run or a configuration from being faster, and what mends it", run_doctor},
        {"ladder", "what each optimisation gives on this machine, from the naive step to the full one", run_ladder},
        {"tune", "search the settings that train a configuration fastest here, and write them down", run_tune}}},
      {"In and out",
       {{"export", "a Hugging Face folder from a checkpoint", run_export},
        {"import", "a checkpoint from a Hugging Face folder", run_import},
        {"verify", "compare with what Hugging Face computed from the same weights", run_verify}}},
      {"Machine",
       {{"check", "whether redline works on this machine: a self-test of a minute", run_check},
        {"info", "what this machine has and which backends work", run_info},
        {"peaks", "what cards promise, and what this machine reaches", run_peaks},
        {"completion", "a script with which bash, zsh or fish completes commands, flags and keys", run_completion},
        {"man", "the manual page", run_man}}},
  };
  return all;
}

std::vector<Command> commands() {
  std::vector<Command> all;
  for (const CommandSection& section : command_sections())
    all.insert(all.end(), section.commands.begin(), section.commands.end());
  return all;
}

std::string_view exit_statuses() {
  return "0 done, 1 something failed (the machine, a part of check or verify, or doctor has found something), 2 bad "
         "input, 3 stopped by a signal";
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
    return failed(kFailed, fmt::format("out of the host's memory; where a CPU trains, a smaller train.batch_size or "
                                       "train.seq_len needs less; see {}",
                                       troubleshooting::kOutOfMemory));
  } catch (const std::exception& e) {  // MachineError, train::NotFinite, what the standard library throws
    return failed(kFailed, e.what());
  }
}

}  // namespace redline::cli
