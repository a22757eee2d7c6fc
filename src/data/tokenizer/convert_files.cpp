// Reads pieces of some megabytes, cuts them into lines, and converts the lines in chunks on a pool of threads.
#include "data/tokenizer/convert_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "base/thread_pool.h"
#include "data/input/byte_stream.h"
#include "io/json.h"

namespace redline::data {
namespace {

constexpr std::size_t kPieceBytes = 8 << 20;  // of lines that are worked on at once

using Print = std::function<bool(std::string_view)>;

// A file or standard input, a piece at a time.
class Input {
 public:
  Input(const std::string& path, ConversionProgress& progress) : path_(path), progress_(progress) {
    if (path == "-") return;
    const Path file(path);
    std::error_code ignored;
    if (std::filesystem::is_directory(file, ignored)) fail_user("{} is a folder; name a file", path);
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) fail_user("{}: cannot be opened: {}", path, std::generic_category().message(errno));
  }
  ~Input() {
    if (fd_ > 0) ::close(fd_);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  std::string name() const { return path_ == "-" ? "standard input" : path_; }

  // Adds up to `bytes` to `text`; false at the end.
  bool read(std::string& text, std::size_t bytes) {
    const std::size_t before = text.size();
    text.resize(before + bytes);
    ssize_t n = 0;
    progress_.waiting = true;
    do n = ::read(fd_, text.data() + before, bytes);
    while (n < 0 && errno == EINTR);
    progress_.waiting = false;
    if (n < 0) fail_machine("{}: cannot be read: {}", name(), std::generic_category().message(errno));
    text.resize(before + static_cast<std::size_t>(n));
    progress_.read += static_cast<std::uint64_t>(n);
    return n > 0;
  }
  void converted(std::size_t bytes) { progress_.converted += bytes; }

 private:
  std::string path_;
  ConversionProgress& progress_;
  int fd_ = 0;  // standard input
};

void append_ids(const std::vector<std::int32_t>& ids, std::string_view separator, std::string& out) {
  char digits[16];
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += separator;
    out.append(digits, std::to_chars(digits, digits + sizeof digits, ids[i]).ptr);
  }
}

void check_id(std::int64_t id, std::int64_t vocabulary, const std::string& where) {
  if (id < 0 || id >= vocabulary)
    fail_user("{}: {} is not an id of this tokenizer, which has {}", where, id, vocabulary);
}

std::vector<std::int32_t> parse_ids(std::string_view line, std::int64_t vocabulary, const std::string& where) {
  std::vector<std::int32_t> ids;
  for (std::size_t at = 0; at < line.size();) {
    if (line[at] == ' ' || line[at] == '\t' || line[at] == '\r') {
      ++at;
      continue;
    }
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(line.data() + at, line.data() + line.size(), id);
    const std::size_t next = static_cast<std::size_t>(end - line.data());
    const bool whole = error == std::errc() &&
                       (next == line.size() || std::string_view(" \t\r").find(line[next]) != std::string_view::npos);
    if (!whole)
      fail_user("{}: {} is not an id; ids are whole numbers with spaces between", where,
                io::in_quotes(line.substr(at, line.find_first_of(" \t\r", at) - at)));
    check_id(id, vocabulary, where);
    ids.push_back(static_cast<std::int32_t>(id));
    at = next;
  }
  return ids;
}

// Lines of a file to lines of output, on all cores, in order. `convert` gets a line without its newline.
class LineConverter {
 public:
  using Convert =
      std::function<void(std::string_view line, const std::string& where, Encoder& encoder, std::string& out)>;

  LineConverter(const Tokenizer& tokenizer, const Print& print, Convert convert)
      : print_(print), convert_(std::move(convert)) {
    for (int i = 0; i < pool_.threads() * 4; ++i) encoders_.push_back(tokenizer.encoder());
    outputs_.resize(encoders_.size());
  }

  void run(Input& input) {
    std::string text;
    std::int64_t line = 1;
    bool more = true, wanted = true;
    while ((more || !text.empty()) && wanted) {
      while (more && text.size() < kPieceBytes) more = input.read(text, kPieceBytes / 4);
      const std::size_t newline = text.rfind('\n');
      if (newline == text.npos && more) {  // one line longer than a piece
        more = input.read(text, text.size());
        continue;
      }
      const std::size_t end = more ? newline + 1 : text.size();
      wanted = convert_piece(std::string_view(text).substr(0, end), input.name(), line);
      text.erase(0, end);
      input.converted(end);
    }
  }

 private:
  // False where the output wants no more.
  bool convert_piece(std::string_view text, const std::string& name, std::int64_t& line) {
    lines_.clear();
    while (!text.empty()) {
      const std::size_t newline = std::min(text.find('\n'), text.size());
      lines_.push_back(text.substr(0, newline));
      text.remove_prefix(std::min(newline + 1, text.size()));
    }
    const auto chunks = static_cast<std::int64_t>(encoders_.size());
    const auto count = static_cast<std::int64_t>(lines_.size());
    pool_.run(chunks, [&](std::int64_t c) {
      const auto chunk = static_cast<std::size_t>(c);
      outputs_[chunk].clear();
      for (std::int64_t i = count * c / chunks; i < count * (c + 1) / chunks; ++i)
        convert_(lines_[static_cast<std::size_t>(i)], fmt::format("{}:{}", name, line + i), *encoders_[chunk],
                 outputs_[chunk]);
    });
    line += count;
    return std::ranges::all_of(outputs_, [&](const std::string& output) { return print_(output); });
  }

  const Print& print_;
  ThreadPool pool_;
  Convert convert_;
  std::vector<std::unique_ptr<Encoder>> encoders_;  // one a chunk
  std::vector<std::string> outputs_;
  std::vector<std::string_view> lines_;
};

bool blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

[[noreturn]] void rethrow_at(const std::string& where, const UserError& error) {
  fail_user("{}: {}", where, error.what());
}

void text_to_ids(std::string_view line, const std::string& where, Encoder& encoder, std::string& out) {
  if (blank(line)) return;
  const io::Json object = io::parse_json(line, where);
  const std::string text = io::string_at(object, "text", where);
  std::vector<std::int32_t> ids;
  try {
    encoder.append(text, ids);
  } catch (const UserError& error) {
    rethrow_at(where, error);
  }
  out += "{\"ids\": [";
  append_ids(ids, ", ", out);
  out += "]}\n";
}

void ids_to_text(const Tokenizer& tokenizer, std::string_view line, const std::string& where, std::string& out) {
  if (blank(line)) return;
  const io::Json object = io::parse_json(line, where);
  const auto list = object.is_object() ? object.find("ids") : object.end();
  if (!object.is_object() || list == object.end() || !list->is_array())
    fail_user("{}: expected an object with a list of \"ids\"", where);
  std::vector<std::int32_t> ids;
  for (const io::Json& value : *list) {
    if (!value.is_number_integer()) fail_user("{}: {} is not an id", where, io::in_quotes(value.dump()));
    const bool large = value.is_number_unsigned() && value.get<std::uint64_t>() > INT32_MAX;
    const std::int64_t id = large ? INT32_MAX : value.get<std::int64_t>();
    check_id(id, tokenizer.vocabulary(), where);
    ids.push_back(static_cast<std::int32_t>(id));
  }
  io::Json result;
  result["text"] = tokenizer.decode(ids);
  out += result.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n";
}

void encode_whole(Encoder& encoder, Input& input, bool any_bytes, const Print& print) {
  std::string text, out;
  std::size_t piece = 1 << 20;
  while (input.read(text, piece)) piece = std::max<std::size_t>(text.size(), 1 << 20);
  if (const std::string why = why_not_text(std::string_view(text).substr(0, 1 << 16), {}, "", any_bytes); !why.empty())
    fail_user("{}: {}", input.name(), why);
  std::vector<std::int32_t> ids;
  try {
    encoder.append(text, ids);
  } catch (const UserError& error) {
    rethrow_at(input.name(), error);
  }
  append_ids(ids, " ", out);
  print(out + "\n");
  input.converted(text.size());
}

}  // namespace

void convert_files(const Tokenizer& tokenizer, const std::vector<std::string>& files, const Conversion& conversion,
                   const Print& print, ConversionProgress& progress) {
  if (!conversion.decode && !conversion.jsonl) {
    const auto encoder = tokenizer.encoder();
    for (const std::string& file : files) {
      Input input(file, progress);
      encode_whole(*encoder, input, conversion.any_bytes, print);
    }
    return;
  }
  LineConverter converter(tokenizer, print,
                          [&](std::string_view line, const std::string& where, Encoder& encoder, std::string& out) {
                            if (conversion.jsonl && conversion.decode) {
                              ids_to_text(tokenizer, line, where, out);
                            } else if (conversion.jsonl) {
                              text_to_ids(line, where, encoder, out);
                            } else {
                              out += tokenizer.decode(parse_ids(line, tokenizer.vocabulary(), where));
                            }
                          });
  for (const std::string& file : files) {
    Input input(file, progress);
    converter.run(input);
  }
}

}  // namespace redline::data
