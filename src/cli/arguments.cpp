// CLI11 stays in this file: it cuts the command line into flags and words; values and sentences are ours, because its
// own errors name neither the nearest flag nor what a value may be.
#include "cli/arguments.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "cli/declared.h"
#include "cli/output.h"
#include "config/keys.h"
#include "config/load.h"

namespace redline::cli {
namespace {

template <class Number>
Number parse_number(const std::string& name, const std::string& text, Number low, Number high, std::string_view kind) {
  Number n{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(n >= low && n <= high)) fail_user("{} takes {} from {} to {}, not '{}'", name, kind, low, high, text);
  return n;
}

}  // namespace

struct Arguments::Impl {
  struct Flag {
    std::string name, value, help;               // value is empty where it takes none
    std::vector<std::string> given;              // as CLI11 found it
    std::function<void(const Flag&)> take = {};  // when it was given
    CLI::Option* option = nullptr;
    std::vector<std::string> choices = {};  // empty: anything
  };
  std::string command, purpose, usage;
  std::vector<std::string> examples;
  CLI::App app;
  std::vector<std::unique_ptr<Flag>> flags;  // by pointer: CLI11 holds addresses of `given`
  std::string words_name, words_help;

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

  Declared declared() const {
    Declared all{command, purpose, usage, words_name, words_help, {}, examples, {}};
    for (const auto& f : flags) all.flags.push_back({f->name, f->value, f->help, f->choices});
    return all;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all = {"--help"};
    for (const auto& f : flags) all.push_back(f->name);
    return all;
  }

  void refuse(const std::vector<std::string>& extras) const {
    if (extras.empty()) return;
    const auto it = std::ranges::find_if(extras, [](const std::string& w) { return w.starts_with('-'); });
    if (it == extras.end())
      fail_user("redline {} does not take '{}'; see redline {} --help", command, extras.front(), command);
    const std::string name = it->substr(0, it->find('='));
    const std::string guess = config::nearest(name, names());
    // A word that is a flag elsewhere may be a key here.
    if (words_name.find("key=value") != words_name.npos && guess.empty()) {
      const std::string word = name.substr(std::min(name.find_first_not_of('-'), name.size()));
      std::string key = config::key_in_other_trainers(word);
      for (const config::Key& k : config::keys())
        if (key.empty() && (k.name == word || k.name.ends_with("." + word))) key = k.name;
      if (!key.empty() && !key.starts_with('-'))
        fail_user("redline {} has no flag '{}'; keys are given as {}=VALUE", command, name, key);
    }
    fail_user("redline {} has no flag '{}'; {}", command, name,
              guess.empty() ? fmt::format("see redline {} --help", command) : fmt::format("did you mean '{}'?", guess));
  }
};

Arguments::Arguments(std::string command, std::string purpose, std::string usage, std::vector<std::string> examples)
    : impl_(std::make_unique<Impl>()) {
  impl_->command = std::move(command);
  impl_->purpose = std::move(purpose);
  impl_->usage = std::move(usage);
  impl_->examples = std::move(examples);
  impl_->app.set_help_flag();
  impl_->app.allow_extras();
}

Arguments::~Arguments() = default;

void Arguments::words(const std::string& name, std::vector<std::string>& to, const std::string& help) {
  impl_->words_name = name;
  impl_->words_help = help;
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
  if (std::ranges::any_of(words, [](const std::string& w) { return w == "--help" || w == "-h"; })) {
    if (Declared* to = declaring())
      *to = impl_->declared();
    else
      print_help();
    return false;
  }
  for (const auto& f : impl_->flags)
    for (const std::string& word : words)
      if (f->value.empty() && word.starts_with(f->name + "=")) fail_user("{} takes no value", f->name);
  try {
    impl_->app.parse(Words(words.rbegin(), words.rend()));  // CLI11 takes them from the back
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
  impl_->refuse(impl_->app.remaining());
  const std::vector<std::string> names = impl_->names();
  for (const auto& f : impl_->flags) {
    if (f->option->count() == 0) continue;
    for (const std::string& given : f->given)
      if (std::ranges::find(names, given) != names.end())
        fail_user("{} needs a value: {} {}, not the flag {}", f->name, f->name, f->value, given);
    f->take(*f);
  }
  return true;
}

void Arguments::print_help() const {
  const Impl& a = *impl_;
  std::string out = fmt::format("redline {}: {}\n\nUsage: redline {} {}\n", a.command, a.purpose, a.command, a.usage);
  std::size_t width = a.words_name.size();
  for (const auto& f : a.flags) width = std::max(width, f->name.size() + 1 + f->value.size());
  const auto line = [&](const std::string& name, const std::string& help) {
    out += fmt::format("  {:<{}}  {}\n", name, width, help);
  };
  out += "\n";
  if (!a.words_name.empty()) line(a.words_name, a.words_help);
  for (const auto& f : a.flags) line(f->value.empty() ? f->name : f->name + " " + f->value, f->help);
  out += "\nFor example:\n";
  for (const std::string& example : a.examples) out += "  " + example + "\n";
  print(out);
}

}  // namespace redline::cli
