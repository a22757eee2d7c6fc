// redline man and redline completion: the manual page, and scripts for three shells, from the tables of commands,
// flags, keys and presets. The scripts hold all that they offer, so that a press of the tab key starts no program.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/config.h"
#include "cli/output.h"
#include "config/keys.h"
#include "model/family.h"

namespace redline::cli {
namespace {

struct Tables {
  std::vector<Declared> commands = declared_commands();
  std::vector<config::Key> keys = model::keys_with_families();
  std::vector<PresetWords> presets = preset_words();
};

std::string joined(const Words& words) { return fmt::format("{}", fmt::join(words, " ")); }

// A name and what it means, as zsh's _describe takes them.
std::string described(std::string_view name, std::string_view help) {
  std::string out;
  for (const char c : name) out += c == ':' ? std::string("\\:") : std::string(1, c);
  return in_shell_quotes(fmt::format("{}:{}", out, help));
}

std::string word_of_fish(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

bool stands_alone(const Declared& command) { return command.name.find(' ') == command.name.npos; }

// The words that may follow a flag; empty: a file, or words that cannot be listed.
Words values_of(const DeclaredFlag& flag, const Tables& tables) {
  if (flag.name == "--device") return {"auto", "cpu", "cuda"};
  Words values = flag.choices;
  if (flag.name == "--preset")
    for (const PresetWords& preset : tables.presets) values.push_back(preset.name);
  return values;
}

Words values_of(const config::Key& key) {
  if (!key.choices.empty()) return {key.choices.begin(), key.choices.end()};
  const bool yes_or_no = std::holds_alternative<config::Field<bool>>(key.field) ||
                         std::holds_alternative<config::Field<std::optional<bool>>>(key.field);
  return yes_or_no ? Words{"true", "false"} : Words{};
}

std::string first_line(std::string_view shell) {
  return fmt::format("# Completion of redline {0} for {1}, as `redline completion {1}` prints it.\n", version(), shell);
}

std::string groups(const Tables& tables, std::string_view between) {
  Words names;
  for (const Declared& command : tables.commands)
    if (!command.commands.empty()) names.push_back(command.name);
  return fmt::format("{}", fmt::join(names, between));
}

// bash and zsh read these alike.
std::string shared_functions(const Tables& tables) {
  std::string values;
  for (const config::Key& key : tables.keys)
    if (const Words words = values_of(key); !words.empty())
      values += fmt::format("    {}) echo {} ;;\n", key.name, in_shell_quotes(joined(words)));
  return fmt::format(R"sh(
# The command that the words before the cursor name: "train", "data prepare"; after `launch -n 2 --` that of the ranks.
_redline_command() {{
  local command=${{1:-}}
  case $command in
    {}) [[ $# -lt 2 ]] || command="$1 $2" ;;
    launch)
      while [[ $# -gt 0 && $1 != -- ]]; do shift; done
      [[ $# -eq 0 ]] || command=${{2:-}} ;;
  esac
  echo "$command"
}}

# What a key takes, where that can be listed.
_redline_key_values() {{
  case $1 in
{}  esac
}}
)sh",
                     groups(tables, "|"), values);
}

std::string bash_script(const Tables& tables) {
  Words top = {"--help", "--version"}, keys;
  std::string commands, values;
  for (const Declared& command : tables.commands) {
    if (stands_alone(command)) top.push_back(command.name);
    Words flags = {"--help"}, members;
    for (const DeclaredFlag& flag : command.flags) {
      flags.push_back(flag.name);
      if (!flag.value.empty())
        values += fmt::format("    {}) value=yes words={} ;;\n", in_shell_quotes(command.name + " " + flag.name),
                              in_shell_quotes(joined(values_of(flag, tables))));
    }
    for (const Command& member : command.commands) members.emplace_back(member.name);
    commands += fmt::format("    {}) flags={} words={} keys={} ;;\n", in_shell_quotes(command.name),
                            in_shell_quotes(joined(flags)), in_shell_quotes(joined(members)),
                            command.takes_keys() ? "yes" : "''");
  }
  for (const config::Key& key : tables.keys) keys.push_back(std::string(key.name) + "=");
  for (const PresetWords& preset : tables.presets) keys.push_back(preset.name);
  return first_line("bash") + shared_functions(tables) +
         fmt::format(R"sh(
# Where nothing is offered, bash offers files.
_redline() {{
  local line=${{COMP_LINE:0:COMP_POINT}} current='' flags='' words='' keys='' value='' command
  local -a given
  read -ra given <<< "$line"
  [[ $line == *[[:space:]] ]] || {{ current=${{given[-1]}}; unset 'given[-1]'; }}
  command=$(_redline_command "${{given[@]:1}}")
  case $command in
    '') words={} ;;
{}  esac
  case "$command ${{given[-1]:-}}" in
{}  esac
  COMPREPLY=()
  if [[ -z $value && -n $keys && $current == *=* ]]; then
    COMPREPLY=($(compgen -W "$(_redline_key_values "${{current%%=*}}")" -- "${{current#*=}}"))
    # bash cuts words at '=' and replaces what follows it, unless COMP_WORDBREAKS says otherwise.
    [[ $COMP_WORDBREAKS == *=* ]] || COMPREPLY=("${{COMPREPLY[@]/#/${{current%%=*}}=}}")
    return
  fi
  if [[ -z $value && $current == -* && -n $flags ]]; then
    words=$flags
  elif [[ -z $value && -n $keys ]]; then
    words={}
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [[ ${{COMPREPLY[0]:-}} != *= ]] || compopt -o nospace 2>/dev/null
}}
complete -o bashdefault -o default -F _redline redline
)sh",
                     in_shell_quotes(joined(top)), commands, values, in_shell_quotes(joined(keys)));
}

std::string zsh_script(const Tables& tables) {
  Words top, keys, presets;
  std::string commands, values;
  for (const Declared& command : tables.commands) {
    if (stands_alone(command)) top.push_back(described(command.name, command.purpose));
    Words flags = {described("--help", "tell about the command")}, members;
    for (const DeclaredFlag& flag : command.flags) {
      flags.push_back(described(flag.name, flag.help));
      if (!flag.value.empty())
        values += fmt::format("    {}) value=yes values=({}) ;;\n", in_shell_quotes(command.name + " " + flag.name),
                              joined(values_of(flag, tables)));
    }
    for (const Command& member : command.commands) members.push_back(described(member.name, member.purpose));
    commands += fmt::format("    {}) members=({}) flags=({}) takes_keys={} ;;\n", in_shell_quotes(command.name),
                            joined(members), joined(flags), command.takes_keys() ? "yes" : "''");
  }
  for (const config::Key& key : tables.keys) keys.push_back(described(std::string(key.name) + "=", key.help));
  for (const PresetWords& preset : tables.presets) presets.push_back(described(preset.name, preset.about));
  return "#compdef redline\n" + first_line("zsh") + shared_functions(tables) +
         fmt::format(R"sh(
_redline() {{
  local command takes_keys='' value=''
  local -a members flags values keys presets
  command=$(_redline_command "${{(@)words[2,CURRENT-1]}}")
  case $command in
    '') members=({}) flags=(--help --version) ;;
{}  esac
  case "$command ${{words[CURRENT-1]}}" in
{}  esac
  if [[ -z $value && -n $takes_keys && $PREFIX == *=* ]]; then
    value=yes values=(${{=$(_redline_key_values "${{PREFIX%%=*}}")}})
    compset -P '*='
  fi
  if [[ -n $value ]]; then
    if (( ${{#values}} )); then compadd -a values; else _files; fi
  elif [[ $PREFIX == -* ]]; then
    _describe -o flag flags
  elif (( ${{#members}} )); then
    _describe command members
  elif [[ -n $takes_keys ]]; then
    keys=({})
    presets=({})
    _describe -t keys key keys -S ''
    _describe -t presets preset presets
    _files
  else
    _files
  fi
}}

if [[ ${{funcstack[1]}} == _redline ]]; then _redline "$@"; else compdef _redline redline; fi
)sh",
                     joined(top), commands, values, joined(keys), joined(presets));
}

std::string fish_script(const Tables& tables) {
  std::string out = first_line("fish") + fmt::format(R"sh(
# The command that the words before the cursor name: "train", "data prepare"; after `launch -n 2 --` that of the ranks.
function __redline_command
    set -l given (commandline -opc)[2..]
    if contains -- "$given[1]" {}; and test (count $given) -ge 2
        echo "$given[1..2]"
    else if test "$given[1]" = launch; and set -l dashes (contains -i -- -- $given)
        echo "$given[(math $dashes + 1)]"
    else
        echo "$given[1]"
    end
end

function __redline_in
    contains -- (__redline_command) $argv
end

)sh",
                                                     groups(tables, " "));
  const auto in = [](const std::string& command) {
    return fmt::format("complete -c redline -n {}", word_of_fish("__redline_in " + word_of_fish(command)));
  };
  Words with_keys;
  for (const Declared& command : tables.commands) {
    if (stands_alone(command))
      out += fmt::format("{} -f -a {} -d {}\n", in(""), command.name, word_of_fish(command.purpose));
    for (const Command& member : command.commands)
      out += fmt::format("{} -f -a {} -d {}\n", in(command.name), member.name, word_of_fish(member.purpose));
    out += fmt::format("{} -l help -d 'tell about the command'\n", in(command.name));
    for (const DeclaredFlag& flag : command.flags) {
      const bool is_long = flag.name.starts_with("--");
      const Words values = values_of(flag, tables);
      out += fmt::format("{} {} {}", in(command.name), is_long ? "-l" : "-s", flag.name.substr(is_long ? 2 : 1));
      if (!values.empty())
        out += fmt::format(" -x -a {}", word_of_fish(joined(values)));
      else if (!flag.value.empty())
        out += " -r";
      out += fmt::format(" -d {}\n", word_of_fish(flag.help));
    }
    if (command.takes_keys()) with_keys.push_back(word_of_fish(command.name));
  }
  out += in("") + " -f -l version -d 'the version'\n";
  const std::string condition =
      fmt::format("complete -c redline -n {}", word_of_fish("__redline_in " + joined(with_keys)));
  const auto word = [&](const std::string& name, std::string_view help) {
    out += fmt::format("{} -a {} -d {}\n", condition, word_of_fish(name), word_of_fish(help));
  };
  for (const PresetWords& preset : tables.presets) word(preset.name, preset.about);
  for (const config::Key& key : tables.keys) {
    word(fmt::format("{}=", key.name), key.help);
    for (const std::string& value : values_of(key)) word(fmt::format("{}={}", key.name, value), key.help);
  }
  return out;
}

// Text as roff takes it: no letter of it is a request or an escape.
std::string in_roff(std::string_view text) {
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

std::string bold(std::string_view text) { return fmt::format("\\fB{}\\fR", in_roff(text)); }
std::string slanted(std::string_view text) { return fmt::format("\\fI{}\\fR", in_roff(text)); }

// An entry of a list: the term at the margin, and its meaning.
std::string entry(const std::string& term, std::string_view meaning) {
  return fmt::format(".TP\n{}\n{}\n", term, in_roff(meaning));
}

std::string roff_section(std::string_view title) { return fmt::format(".SH {}\n", in_roff(title)); }
std::string roff_subsection(std::string_view title) { return fmt::format(".SS {}\n", in_roff(title)); }

std::string about_command(const Declared& command) {
  std::string out = roff_subsection("redline " + command.name);
  out += fmt::format("{}.\n.PP\n{} {}\n", in_roff(command.purpose), bold("redline " + command.name),
                     slanted(command.usage));
  if (!command.words.empty()) out += entry(slanted(command.words), command.words_help);
  for (const DeclaredFlag& flag : command.flags)
    out += entry(flag.value.empty() ? bold(flag.name) : bold(flag.name) + " " + slanted(flag.value), flag.help);
  for (const Command& member : command.commands) out += entry(bold(member.name), member.purpose);
  out += ".PP\nFor example:\n.PP\n.nf\n";
  for (const std::string& example : command.examples) out += in_roff(example) + "\n";
  out += ".fi\n";
  if (!command.statuses.empty()) out += ".PP\nExit status:\n";
  for (const ExitStatus& s : command.statuses) out += entry(bold(std::to_string(s.status)), s.when);
  return out;
}

std::string about_keys() {
  const config::Config defaults;
  std::string out, last;
  for (const config::Key& key : model::keys_with_families()) {
    const std::string in(key.name.substr(0, key.name.find('.')));
    if (in != last) out += roff_subsection(fmt::format("[{}]", in));
    last = in;
    std::string takes = config::expected(key);
    if (!key.unit.empty()) takes += fmt::format(", {}", key.unit);
    const std::string value = config::literal(config::read(key, defaults));
    out += entry(bold(key.name),
                 fmt::format("{}. {}{}.", key.help, takes, value.empty() ? "" : fmt::format("; default {}", value)));
  }
  return out;
}

std::string manual_page() {
  std::string out = fmt::format(".TH REDLINE 1 \"\" \"redline {}\" \"User Commands\"\n", in_roff(version()));
  out += roff_section("NAME") + "redline \\- pretrains language models\n";
  out += roff_section("SYNOPSIS") + fmt::format("{} {} [...]\n", bold("redline"), slanted("COMMAND"));
  out += roff_section("DESCRIPTION");
  out += in_roff(
      "redline pretrains LLaMA-, Qwen3- and OLMo-2-class language models on CPUs and NVIDIA cards. A configuration is "
      "a TOML file or a preset; any key of it can be given on the command line as key=value.\n");
  out += roff_section("COMMANDS");
  for (const Declared& command : declared_commands()) out += about_command(command);
  out += roff_section("CONFIGURATION KEYS") + about_keys();
  out += roff_section("PRESETS");
  for (const PresetWords& preset : preset_words()) out += entry(bold(preset.name), preset.about);
  out += roff_section("EXIT STATUS") + in_roff(exit_statuses()) + ".\n";
  return out;
}

}  // namespace

int run_completion(const Words& words) {
  Arguments arguments("completion", "print a script with which a shell completes commands, flags, keys and presets",
                      "bash|zsh|fish",
                      {"source <(redline completion bash)                     in ~/.bashrc",
                       "redline completion zsh > ~/.zsh/functions/_redline    in a folder of fpath",
                       "redline completion fish > ~/.config/fish/completions/redline.fish"});
  Words shells;
  arguments.words("SHELL", shells, "bash, zsh or fish");
  if (!arguments.parse(words)) return kDone;
  if (shells.size() != 1) fail_user("redline completion needs one shell: bash, zsh or fish");
  const std::string& shell = shells.front();
  if (shell != "bash" && shell != "zsh" && shell != "fish")
    fail_user("redline completion knows bash, zsh and fish, not '{}'", shell);
  const Tables tables;
  print(shell == "bash" ? bash_script(tables) : shell == "zsh" ? zsh_script(tables) : fish_script(tables));
  return kDone;
}

int run_man(const Words& words) {
  Arguments arguments("man", "print the manual page in roff, from the same tables as the help", "",
                      {"redline man > redline.1", "redline man | man -l -"});
  if (!arguments.parse(words)) return kDone;
  print(manual_page());
  return kDone;
}

}  // namespace redline::cli
