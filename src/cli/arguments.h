// The words and flags of one command. One declaration gives parsing, errors that name the nearest valid flag, and
// --help.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"

namespace redline::cli {

class Arguments {
 public:
  // `usage` is what follows "redline COMMAND"; `examples` are whole lines.
  Arguments(std::string command, std::string purpose, std::string usage, std::vector<std::string> examples);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  // Variables must outlive parse(). A flag that is not given leaves its variable as it is.
  void words(const std::string& name, std::vector<std::string>& to, const std::string& help);
  void flag(const std::string& name, bool& to, const std::string& help);
  void text(const std::string& name, const std::string& value, std::string& to, const std::string& help);
  // One of `choices`, and nothing else.
  void choice(const std::string& name, const std::string& value, std::string& to, std::vector<std::string> choices,
              const std::string& help);
  void texts(const std::string& name, const std::string& value, std::vector<std::string>& to, const std::string& help);
  // repeated() takes one value each time the flag is given; texts() takes all words that follow it.
  void repeated(const std::string& name, const std::string& value, std::vector<std::string>& to,
                const std::string& help);
  void integer(const std::string& name, const std::string& value, std::int64_t& to, std::int64_t low, std::int64_t high,
               const std::string& help);
  void number(const std::string& name, const std::string& value, double& to, double low, double high,
              const std::string& help);

  // False: --help was asked for and has been printed. A word that cannot be understood is a UserError.
  bool parse(const Words& words);

 private:
  void print_help() const;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline::cli
