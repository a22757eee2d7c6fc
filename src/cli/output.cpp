// Writing to the standard streams, and the ways in which that fails.
#include "cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "base/words.h"
#include "io/json.h"

namespace redline::cli {
namespace {

int g_write_error = 0;  // the first one; standard output is one for the whole process

void remember_error() {
  if (g_write_error == 0) g_write_error = errno;
}

void put(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size()) remember_error();
}

}  // namespace

void prepare_output() {
  for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);  // what cannot be written says so itself
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) == -1 && ::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) == -1) return;
}

void print(std::string_view text) { put(visible(text)); }

void print_data(std::string_view bytes) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (terminal) return print(bytes);
  put(bytes);
}

// JSON escapes most of what steers a terminal by itself, and visible() writes the rest as JSON does, but for one.
void print_json(const nlohmann::ordered_json& json) {
  std::string text;
  for (const char c : json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n")
    text += c == '\x7f' ? std::string("\\u007f") : std::string(1, c);
  print(text);
}

void print_error(std::string_view sentence) {
  std::string line = "redline: error: ";
  for (const char c : sentence) line += c == '\n' || c == '\r' ? ' ' : c;
  line = visible(line) + '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

bool has_blocks() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (!value || !*value) continue;
    const std::string_view locale = value;
    return locale.find("UTF-8") != locale.npos || locale.find("utf8") != locale.npos ||
           locale.find("utf-8") != locale.npos;
  }
  return false;
}

void flush_output() {
  if (std::fflush(stdout) != 0) remember_error();
}

bool output_failed() { return g_write_error != 0; }

std::string finish_output() {
  flush_output();
  if (g_write_error == 0 || g_write_error == EPIPE) return {};
  return "standard output: cannot write: " + std::generic_category().message(g_write_error);
}

std::string in_shell_quotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string shell_word(std::string_view text) {
  const auto plain = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x80 || std::isalnum(byte) != 0 || std::string_view("_-./:,+@%=").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::ranges::all_of(text, plain) ? std::string(text) : in_shell_quotes(text);
}

void check_output_file(std::string_view flag, const std::string& file, const OutputKind& kind,
                       const std::vector<std::string>& inputs) {
  namespace fs = std::filesystem;
  const Path path(file);
  std::error_code ignored;
  if (path.has_parent_path() && !fs::is_directory(path.parent_path(), ignored))
    fail_user("{} {}: there is no folder {}", flag, file, path.parent_path().string());
  if (fs::is_directory(path, ignored)) fail_user("{} {}: that is a folder; name a file", flag, file);
  if (!fs::exists(path, ignored)) return;
  // A new file takes the name of the old one. /dev/stdout may stand for a file, and is not one.
  if (!fs::is_regular_file(path, ignored) || fs::canonical(path.parent_path(), ignored) == "/dev")
    fail_user("{} {}: that is a device or a pipe; name a file", flag, file);
  for (const std::string& input : inputs)
    if (fs::equivalent(path, input, ignored))
      fail_user("{} {}: that is what is being read; name another file", flag, file);
  std::string begins(kind.begins.size(), '\0');
  std::ifstream is(path, std::ios::binary);
  is.read(begins.data(), std::ssize(begins));
  if (is.gcount() == 0 && is.eof()) return;  // empty
  if (begins != kind.begins)
    fail_user("{} {}: that file is there, and is no {} that redline wrote; name another file, or move it away", flag,
              file, kind.what);
}

}  // namespace redline::cli
