// CLI11 stays in this file: it cuts the command line into flags and words; values and sentences are ours, because its
// own errors name neither the nearest flag nor what a value may be.
#include "cli/arguments.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "cli/output.h"
#include "config/keys.h"
#include "config/load.h"
#include "data/input/text_input.h"

namespace redline::cli {
namespace {

Declared* g_declaring = nullptr;  // where a command that is asked for help puts its declaration; null: it prints

// A command's flags are known once it runs, so each is asked for its help, which lands here instead of on a terminal.
Declared declared_by(const Command& command, const std::string& name) {
  Declared declared;
  g_declaring = &declared;
  const int status = command.run({"--help"});
  g_declaring = nullptr;
  REDLINE_CHECK(status == kDone && declared.name == name, "redline {} --help declares '{}'", name, declared.name);
  return declared;
}

std::string statuses_in_words(const std::vector<ExitStatus>& statuses) {
  std::vector<std::string> parts;
  for (const ExitStatus& s : statuses) parts.push_back(fmt::format("{} {}", s.status, s.when));
  return fmt::format("{}", fmt::join(parts, "; "));
}

void print_or_declare(const Declared& d) {
  if (g_declaring) {
    *g_declaring = d;
    return;
  }
  std::vector<std::pair<std::string, std::string>> lines;
  if (!d.words.empty()) lines.emplace_back(d.words, d.words_help);
  for (const DeclaredFlag& f : d.flags) lines.emplace_back(f.value.empty() ? f.name : f.name + " " + f.value, f.help);
  for (const Command& c : d.commands) lines.emplace_back(c.name, c.purpose);
  std::size_t width = 0;
  for (const auto& [name, help] : lines) width = std::max(width, name.size());
  std::string out = fmt::format("redline {0}: {1}\n\nUsage: redline {0} {2}\n\n", d.name, d.purpose, d.usage);
  if (!d.commands.empty()) out += "Commands:\n";
  for (const auto& [name, help] : lines) out += fmt::format("  {:<{}}  {}\n", name, width, help);
  out += "\nFor example:\n";
  for (const std::string& example : d.examples) out += "  " + example + "\n";
  if (!d.commands.empty()) out += fmt::format("\n`redline {} COMMAND --help` tells about one command.\n", d.name);
  if (!d.statuses.empty()) out += fmt::format("\nExit status: {}.\n", statuses_in_words(d.statuses));
  print(out);
}

bool asks_for_help(const std::string& word) { return word == "--help" || word == "-h"; }

template <class Number>
Number parse_number(const std::string& name, const std::string& text, Number low, Number high, std::string_view kind) {
  Number n{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(n >= low && n <= high)) fail_user("{} takes {} from {} to {}, not '{}'", name, kind, low, high, text);
  return n;
}

// Words that a command with a configuration takes for it or for a key of it.
bool names_configuration(const std::string& word) {
  const auto presets = config::embedded_configs();
  return word.ends_with(".toml") || config::find_key(word.substr(0, word.find('='))) ||
         std::ranges::find(presets, word, &config::EmbeddedFile::name) != presets.end();
}

// "--Max_New-tokens" as the tables write it: "max-new-tokens".
std::string plain_word(std::string_view flag) {
  std::string word;
  for (const char c : flag.substr(std::min(flag.find_first_not_of('-'), flag.size())))
    word += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

// llm.c's flags of one dash, by the names that its program has for them. Its -h, choices of HellaSwag, is help here.
struct ShortFlag {
  std::string_view flag, name;
};
constexpr ShortFlag kLlmC[] = {
    {"-i", "train_files"},
    {"-j", "input_val_bin"},
    {"-o", "out_dir"},
    {"-e", "load_from"},
    {"-b", "batch_size"},
    {"-t", "seq_len"},
    {"-d", "total_batch_size"},
    {"-l", "learning_rate"},
    {"-u", "warmup_iterations"},
    {"-q", "final_learning_rate_frac"},
    {"-k", "lr_scheduler_type"},
    {"-c", "weight_decay"},
    {"-x", "max_steps"},
    {"-v", "val_loss_every"},
    {"-m", "val_max_steps"},
    {"-s", "sample_every"},
    {"-g", "genT"},
    {"-n", "checkpoint_every"},
    {"-nk", "checkpoints_keep"},
    {"-nm", "major_checkpoint_every"},
    {"-y", "resume"},
    {"-z", "zero_stage"},
    {"-r", "recompute"},
    {"-sl", "skip_update_lossz"},
    {"-sg", "skip_update_gradz"},
    {"-w", "use_master_weights"},
    {"-f", "override_enable_tf32"},
    {"-ge", "gelu_fusion"},
    {"-lg", "log_gpu_every"},
    {"-pn", "num_nodes"},
    {"-pg", "nproc_per_node"},
};

constexpr FlagNames kElsewhere[] = {
    // Before --tokens, which means max-length where there are no rows.
    {"--seq-len",
     " max-length max-seq-len max-seq-length sequence-length seq-length context-length block-size "
     "max-target-length crop-size "},
    {"--temperature", " temp t "},
    {"--tokens", " max-new-tokens max-tokens n-predict num-tokens new-tokens n-tokens length max-length "},
    {"--samples", " num-samples n-samples num-return-sequences "},
    {"--top-k", " topk "},
    {"--top-p", " topp nucleus "},
    {"--prompt", " text start input "},
    {"--stop", " stop-sequence stop-sequences stop-string stop-strings until "},
    {"--stop-token", " eos-token-id eos-id eos "},
    {"--checkpoint", " model ckpt ckpt-path checkpoint-path model-path model-dir model-name-or-path pretrained "},
    {"--data", " dataset datasets dataset-path eval-data "},
    {"--choices", " tasks task multiple-choice "},
    {"--batches", " limit num-batches max-batches eval-batches eval-iters eval-steps "},
    {"--tokenizer", " tokenizer-name tokenizer-path tokenizer-model tokenizer-file tokenizer-dir vocab-file "},
    {"--out", " output output-dir out-dir output-path output-file outfile output-prefix save-dir save-path o "},
    {"--dtype", " torch-dtype outtype out-type precision "},
    {"--precision", " dtype torch-dtype "},
    {"--shard-size", " max-shard-size "},
    {"--device", " accelerator gpu cuda cpu "},
    {"-n", " nproc-per-node nproc np num-processes num-gpus ngpus world-size ranks "},
    {"--restarts", " max-restarts "},
    {"--gpus", " num-gpus ngpus world-size "},
    {"--gpus-per-node", " num-gpus-per-node nproc-per-node "},
    {"--memory", " vram gpu-memory "},
    {"--resume", " resume-from-checkpoint resume-from continue "},
    {"--vocab-size", " vocab n-vocab "},
    {"--special", " special-tokens "},
    {"--text-field", " text-column json-key json-keys text-key "},
    {"--separator", " delimiter document-separator "},
    {"--end-token", " append-eod eos eot eos-token "},
    {"--threads", " workers num-workers num-proc jobs "},
    {"--steps", " iters iterations num-steps max-steps "},
    {"--average", " ema use-ema "},
    {"--decode", " detokenize "},
};

}  // namespace

std::span<const FlagNames> flags_elsewhere() { return kElsewhere; }

std::string exit_statuses_as_markdown() {
  std::string out = "| command | 0 | 1 | 2 | 3 |\n|---|---|---|---|---|\n";
  for (const Declared& d : declared_commands()) {
    if (d.statuses.empty()) continue;
    out += fmt::format("| `{}` |", d.name);
    for (const int status : {kDone, kFailed, kBadInput, kStopped}) {
      const auto it = std::ranges::find(d.statuses, status, &ExitStatus::status);
      out += it == d.statuses.end() ? " |" : fmt::format(" {} |", it->when);
    }
    out += "\n";
  }
  return out;
}

std::vector<Declared> declared_commands() {
  std::vector<Declared> all;
  for (const Command& command : commands()) {
    all.push_back(declared_by(command, std::string(command.name)));
    const std::vector<Command> members = all.back().commands;
    for (const Command& member : members)
      all.push_back(declared_by(member, fmt::format("{} {}", command.name, member.name)));
  }
  return all;
}

struct Arguments::Impl {
  struct Flag : DeclaredFlag {
    std::vector<std::string> given;              // as CLI11 found it
    std::function<void(const Flag&)> take = {};  // when it was given
    CLI::Option* option = nullptr;
    std::string alone = {};  // the value of the flag without one; empty: it needs one
  };
  Declared declared;  // but for the flags
  CLI::App app;
  std::vector<std::unique_ptr<Flag>> flags;  // by pointer: CLI11 holds addresses of `given`
  const std::vector<std::string>* words = nullptr;

  Flag& add(const std::string& name, const std::string& value, const std::string& help) {
    Flag& f = *flags.emplace_back(std::make_unique<Flag>());
    f.name = name;
    f.value = value;
    f.help = help;
    return f;
  }
  // One value; the last one counts when it is given again.
  Flag& add_single(const std::string& name, const std::string& value, const std::string& help) {
    Flag& f = add(name, value, help);
    f.option = app.add_option(name, f.given)->expected(1)->take_last()->allow_extra_args(false);
    return f;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all = {"--help"};
    for (const auto& f : flags) all.push_back(f->name);
    return all;
  }

  void refuse(const std::vector<std::string>& extras, const Words& given) const {
    if (extras.empty()) return;
    const std::string& command = declared.name;
    const auto it = std::ranges::find_if(extras, [](const std::string& w) { return w.starts_with('-'); });
    if (it == extras.end())
      fail_user("redline {} does not take '{}'; see redline {} --help", command, extras.front(), command);
    const std::string name = it->substr(0, it->find('='));
    // The value of a flag that is not known: behind its '=', else perhaps the word behind it, else it is a switch.
    Words values = {"true"};
    const auto at = std::ranges::find(given, *it);
    if (name.size() < it->size())
      values = {it->substr(name.size() + 1)};
    else if (at != given.end() && std::next(at) != given.end())
      values = {*std::next(at), "true"};
    const std::string advice = advice_on(name, values);
    fail_user("redline {} has no flag '{}'; {}", command, name,
              advice.empty() ? fmt::format("see redline {} --help", command) : advice);
  }

  // What was meant, from the surest sign on: another tool's name for one of our flags, the beginning of one, a key of
  // the configuration, a slip of the keys.
  std::string advice_on(const std::string& name, const Words& values) const {
    if (const auto there = std::ranges::find(kLlmC, name, &ShortFlag::flag); there != std::end(kLlmC)) {
      const std::string advice = advice_on(fmt::format("--{}", there->name), values);
      if (!advice.empty() && declared.takes_keys()) return fmt::format("llm.c's {}: {}", there->name, advice);
    }
    const std::string word = plain_word(name);
    const auto here = [&](std::string_view flag) {
      const auto it = std::ranges::find_if(flags, [&](const auto& f) { return f->name == flag; });
      if (it == flags.end()) return std::string();
      return fmt::format("here it is '{}{}{}'", flag, (*it)->value.empty() ? "" : " ", (*it)->value);
    };
    for (const FlagNames& row : kElsewhere)
      if (row.elsewhere.find(" " + word + " ") != row.elsewhere.npos)
        if (const std::string advice = here(row.here); !advice.empty()) return advice;
    std::vector<std::string> begun;
    for (const std::string& flag : names())
      if (word.size() > 2 && flag.starts_with("--" + word)) begun.push_back(flag);
    if (begun.size() == 1) return fmt::format("did you mean '{}'?", begun[0]);

    std::string key = config::key_in_other_trainers(word);
    if (key.starts_with('-')) {
      if (const std::string advice = here(key); !advice.empty()) return advice;
      key.clear();
    }
    for (const config::Key& k : config::keys())
      if (key.empty() && (plain_word(k.name) == word || plain_word(k.name).ends_with("." + word))) key = k.name;
    for (const std::string& value : values)
      if (const std::string advice = config::advice_from_other_trainers(word, value);
          !advice.empty() && declared.takes_keys())
        return advice;
    if (!key.empty() && declared.takes_keys()) return fmt::format("keys are given as {}=VALUE", key);
    if (!key.empty())
      return fmt::format("{} is a key of a run's configuration, and this command has none; see redline {} --help", key,
                         declared.name);
    const std::string guess = config::nearest(name, names());
    return guess.empty() ? "" : fmt::format("did you mean '{}'?", guess);
  }
};

Arguments::Arguments(std::string command, std::string purpose, std::string usage, std::vector<std::string> examples)
    : impl_(std::make_unique<Impl>()) {
  impl_->declared.name = std::move(command);
  impl_->declared.purpose = std::move(purpose);
  impl_->declared.usage = std::move(usage);
  impl_->declared.examples = std::move(examples);
  impl_->declared.statuses = {{kDone, "done"}, {kFailed, "the machine failed"}, {kBadInput, "bad input"}};
  impl_->app.set_help_flag();
  impl_->app.allow_extras();
}

Arguments::~Arguments() = default;

void Arguments::words(const std::string& name, std::vector<std::string>& to, const std::string& help) {
  impl_->declared.words = name;
  impl_->declared.words_help = help;
  impl_->words = &to;
  impl_->app.add_option("words", to);
}

void Arguments::flag(const std::string& name, bool& to, const std::string& help) {
  Impl::Flag& f = impl_->add(name, "", help);
  f.option = impl_->app.add_flag(name);
  f.take = [&to](const Impl::Flag&) { to = true; };
}

void Arguments::text(const std::string& name, const std::string& value, std::string& to, const std::string& help) {
  impl_->add_single(name, value, help).take = [&to](const Impl::Flag& f) { to = f.given.back(); };
}

void Arguments::choice(const std::string& name, const std::string& value, std::string& to,
                       std::vector<std::string> choices, const std::string& help) {
  Impl::Flag& flag = impl_->add_single(name, value, help);
  flag.choices = std::move(choices);
  flag.take = [&to](const Impl::Flag& f) {
    to = f.given.back();
    if (std::ranges::find(f.choices, to) != f.choices.end()) return;
    fail_user("{} takes {} or {}, not '{}'", f.name, fmt::join(f.choices.begin(), f.choices.end() - 1, ", "),
              f.choices.back(), to);
  };
}

void Arguments::texts(const std::string& name, const std::string& value, std::vector<std::string>& to,
                      const std::string& help) {
  Impl::Flag& f = impl_->add(name, value, help);
  f.option = impl_->app.add_option(name, f.given);
  f.take = [&to](const Impl::Flag& given) { to = given.given; };
}

void Arguments::repeated(const std::string& name, const std::string& value, std::vector<std::string>& to,
                         const std::string& help) {
  texts(name, value, to, help);
  impl_->flags.back()->option->type_size(1)->expected(1)->allow_extra_args(false)->multi_option_policy(
      CLI::MultiOptionPolicy::TakeAll);
}

void Arguments::json_or_file(std::string& to, const std::string& help) {
  text("--json", "[FILE]", to, help);
  impl_->flags.back()->alone = kStandardOutput;
}

void Arguments::exits(int status, const std::string& when) {
  std::vector<ExitStatus>& all = impl_->declared.statuses;
  const auto it = std::ranges::find(all, status, &ExitStatus::status);
  if (it == all.end())
    all.push_back({status, when});
  else
    it->when = when;
}

void Arguments::integer(const std::string& name, const std::string& value, std::int64_t& to, std::int64_t low,
                        std::int64_t high, const std::string& help) {
  impl_->add_single(name, value, help).take = [&to, low, high](const Impl::Flag& f) {
    to = parse_number(f.name, f.given.back(), low, high, "a whole number");
  };
}

void Arguments::number(const std::string& name, const std::string& value, double& to, double low, double high,
                       const std::string& help) {
  impl_->add_single(name, value, help).take = [&to, low, high](const Impl::Flag& f) {
    to = parse_number(f.name, f.given.back(), low, high, "a number");
  };
}

bool Arguments::parse(const Words& words) {
  if (std::ranges::any_of(words, asks_for_help)) {
    Declared all = impl_->declared;
    for (const auto& f : impl_->flags) all.flags.push_back(*f);
    print_or_declare(all);
    return false;
  }
  Words given = words;
  const auto refuse_empty = [](const Impl::Flag& f) {
    const bool any_text = f.value == "TEXT" || f.value == "S";  // a separator may be empty, too
    if (!any_text) fail_user("{} was given an empty {}; is a variable of the shell not set?", f.name, f.value);
  };
  for (const auto& f : impl_->flags)
    for (std::size_t i = 0; i < given.size() && given[i] != "--"; ++i) {
      if (f->value.empty() && given[i].starts_with(f->name + "=")) fail_user("{} takes no value", f->name);
      if (!f->value.empty() && given[i] == f->name + "=") {  // CLI11 would take the next word for its value
        refuse_empty(*f);
        given[i] = f->name;
        given.insert(given.begin() + static_cast<std::ptrdiff_t>(i) + 1, "");
      }
      if (f->alone.empty() || given[i] != f->name) continue;
      const std::string next = i + 1 < given.size() ? given[i + 1] : "";
      if (next.empty() || (next.starts_with('-') && next != "-") || names_configuration(next))
        given[i] += "=" + f->alone;
    }
  try {
    impl_->app.parse(Words(given.rbegin(), given.rend()));  // CLI11 takes them from the back
  } catch (const CLI::ArgumentMismatch& e) {
    const std::string what = e.what();  // "--out: 1 required TEXT missing"
    const std::string name = what.substr(0, what.find(':'));
    const auto& flags = impl_->flags;
    const auto it = std::ranges::find_if(flags, [&](const auto& f) { return f->name == name; });
    if (it == flags.end()) throw UserError(what);
    fail_user("{} needs a value: {} {}", name, name, (*it)->value);
  } catch (const CLI::ParseError& e) {
    throw UserError(e.what());
  }
  impl_->refuse(impl_->app.remaining(), given);
  if (impl_->words && std::ranges::find(*impl_->words, "") != impl_->words->end())
    fail_user("redline {} was given an empty word for {}; is a variable of the shell not set?", impl_->declared.name,
              impl_->declared.words);
  const std::vector<std::string> names = impl_->names();
  for (const auto& f : impl_->flags) {
    if (f->option->count() == 0) continue;
    for (const std::string& value : f->given) {
      if (value.empty()) refuse_empty(*f);
      if (std::ranges::find(names, value) != names.end())
        fail_user("{} needs a value: {} {}, not the flag {}", f->name, f->name, f->value, value);
    }
    f->take(*f);
  }
  return true;
}

int run_group(const CommandGroup& group, const Words& words) {
  if (words.empty() || asks_for_help(words[0])) {
    print_or_declare({.name = std::string(group.name),
                      .purpose = std::string(group.purpose),
                      .usage = "COMMAND [...]",
                      .words = "",
                      .words_help = "",
                      .flags = {},
                      .examples = group.examples,
                      .commands = {group.commands.begin(), group.commands.end()},
                      .statuses = {}});
    return kDone;
  }
  const auto command = std::ranges::find(group.commands, words[0], &Command::name);
  if (command != group.commands.end()) return command->run(Words(words.begin() + 1, words.end()));
  std::vector<std::string> names;
  for (const Command& c : group.commands) names.emplace_back(c.name);
  const std::string guess = config::nearest(words[0], names);
  fail_user("unknown command '{} {}'; {}", group.name, words[0],
            guess.empty() ? fmt::format("it may be: {}", fmt::join(names, ", "))
                          : fmt::format("did you mean '{} {}'?", group.name, guess));
}

void ModelWords::declare(Arguments& arguments) {
  arguments.words("MODEL", words, "a run (its newest checkpoint), a step, or a Hugging Face folder");
  arguments.text("--checkpoint", "MODEL", checkpoint, "the same, for scripts");
}

std::string ModelWords::model(std::string_view command, std::string_view second) const {
  if (words.size() > 1) fail_user("redline {} takes one model, not also '{}'; {}", command, words[1], second);
  if (!words.empty() && !checkpoint.empty())
    fail_user("{} and --checkpoint {}: one model at a time", words[0], checkpoint);
  if (words.empty() && checkpoint.empty())
    fail_user("redline {} needs a MODEL, or --checkpoint MODEL: a run or a Hugging Face folder", command);
  return words.empty() ? checkpoint : words[0];
}

void DocumentWords::declare(Arguments& arguments) {
  arguments.words("INPUT...", inputs,
                  "text or .jsonl files, also .gz and .zst; .parquet files; folders; patterns such as 'wiki/*.txt'");
  arguments.text(
      "--text-field", "F", text_field,
      ".jsonl: the field that holds the text, .parquet: the column; meta.text is a field of a field (default: text)");
  arguments.text(
      "--separator", "S", separator,
      "text files: what stands between documents; \\n and \\t are understood (default: a file is a document)");
  arguments.integer("--max-document-mib", "N", max_document_mib, 1, 1 << 20,
                    "MiB of the longest document, before it is parsed; a longer one is malformed (default: 256)");
  arguments.choice("--on-error", "WHAT", on_error, {"stop", "skip"},
                   "what to do at malformed documents and broken archives: stop or skip (default: stop)");
}

data::InputFormat DocumentWords::format() const {
  if (text_field.empty()) fail_user("--text-field takes the name of a field, not nothing");
  data::InputFormat format;
  format.text_field = text_field;
  format.separator = data::separator_of(separator, "--separator");
  format.text_field_key = "--text-field";
  format.separator_key = "--separator";
  format.longest_document = max_document_mib << 20;
  format.longest_key = "--max-document-mib";
  return format;
}

}  // namespace redline::cli
