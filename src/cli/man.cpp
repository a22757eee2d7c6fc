// redline man: the manual page in roff, from the tables of commands, flags, keys and presets.
#include <fmt/format.h>

#include "cli/arguments.h"
#include "cli/declared.h"
#include "cli/output.h"
#include "cli/pages.h"
#include "cli/version.h"
#include "config/keys.h"
#include "model/family.h"

namespace redline::cli {
namespace {

// Text as roff takes it: no letter of it is a request or an escape.
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string bold(std::string_view text) { return fmt::format("\\fB{}\\fR", plain(text)); }
std::string slanted(std::string_view text) { return fmt::format("\\fI{}\\fR", plain(text)); }

// An entry of a list: the term at the margin, and its meaning.
std::string entry(const std::string& term, std::string_view meaning) {
  return fmt::format(".TP\n{}\n{}\n", term, plain(meaning));
}

std::string section(std::string_view title) { return fmt::format(".SH {}\n", plain(title)); }
std::string subsection(std::string_view title) { return fmt::format(".SS {}\n", plain(title)); }

std::string about_command(const Declared& command) {
  std::string out = subsection("redline " + command.name);
  out +=
      fmt::format("{}.\n.PP\n{} {}\n", plain(command.purpose), bold("redline " + command.name), slanted(command.usage));
  if (!command.words.empty()) out += entry(slanted(command.words), command.words_help);
  for (const DeclaredFlag& flag : command.flags)
    out += entry(flag.value.empty() ? bold(flag.name) : bold(flag.name) + " " + slanted(flag.value), flag.help);
  for (const Command& member : command.commands) out += entry(bold(member.name), member.purpose);
  out += ".PP\nFor example:\n.PP\n.nf\n";
  for (const std::string& example : command.examples) out += plain(example) + "\n";
  return out + ".fi\n";
}

std::string about_keys() {
  const config::Config defaults;
  std::string out, last;
  for (const config::Key& key : model::keys_with_families()) {
    const std::string in(key.name.substr(0, key.name.find('.')));
    if (in != last) out += subsection(fmt::format("[{}]", in));
    last = in;
    std::string takes = config::expected(key);
    if (!key.unit.empty()) takes += fmt::format(", {}", key.unit);
    const std::string value = config::literal(config::read(key, defaults));
    out += entry(bold(key.name),
                 fmt::format("{}. {}{}.", key.help, takes, value.empty() ? "" : fmt::format("; default {}", value)));
  }
  return out;
}

std::string page() {
  std::string out = fmt::format(".TH REDLINE 1 \"\" \"redline {}\" \"User Commands\"\n", plain(version()));
  out += section("NAME") + "redline \\- pretrains language models\n";
  out += section("SYNOPSIS") + fmt::format("{} {} [...]\n", bold("redline"), slanted("COMMAND"));
  out += section("DESCRIPTION");
  out += plain(
      "redline pretrains LLaMA-, Qwen3- and OLMo-2-class language models on CPUs and NVIDIA cards. A configuration is "
      "a "
      "TOML file or a preset; any key of it can be given on the command line as key=value.\n");
  out += section("COMMANDS");
  for (const Declared& command : declared_commands()) out += about_command(command);
  out += section("CONFIGURATION KEYS") + about_keys();
  out += section("PRESETS");
  for (const PresetWords& preset : preset_words()) out += entry(bold(preset.name), preset.about);
  out += section("EXIT STATUS") + plain(exit_statuses()) + ".\n";
  return out;
}

}  // namespace

int run_man(const Words& words) {
  Arguments arguments("man", "print the manual page in roff, from the same tables as the help", "",
                      {"redline man > redline.1", "redline man | man -l -"});
  if (!arguments.parse(words)) return kDone;
  print(page());
  return kDone;
}

}  // namespace redline::cli
