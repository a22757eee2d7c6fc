// redline tokenize.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "base/thread_pool.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/stop_at_once.h"
#include "data/input/file_kind.h"
#include "data/tokenizer/tokenizer.h"
#include "io/json.h"
#include "report/background_line.h"
#include "report/figures.h"

namespace redline::cli {
namespace {

constexpr std::size_t kPieceBytes = 8 << 20;  // of lines that are worked on at once

// What is known of the work while it is done, for the line about it.
class Progress {
 public:
  Progress(std::string doing, const std::vector<std::string>& files) : doing_(std::move(doing)) {
    for (const std::string& file : files) {
      std::error_code unknown;  // a pipe, or nothing: opening it will tell
      const std::uintmax_t size = std::filesystem::file_size(file, unknown);
      if (unknown) {
        of_ = 0;
        return;
      }
      of_ += size;
    }
  }
  void wait(bool for_input) { waits_ = for_input; }
  void read(std::size_t bytes) { read_ += bytes; }
  void convert(std::size_t bytes) { done_ += bytes; }

  // A text that is encoded whole does not tell how far it is. Nothing while the input decides what comes when.
  std::string text(double seconds) const {
    const std::uint64_t read = read_, done = done_;
    if (waits_ || read == 0) return {};
    if (of_ > 0 && done > 0) return report::BytesProgress::text(doing_, done, of_, seconds);
    return fmt::format("{}: {} read, {} so far", doing_, report::bytes(static_cast<double>(read)),
                       report::duration(seconds));
  }

 private:
  std::string doing_;
  std::uint64_t of_ = 0;  // bytes of all files; 0: not known
  std::atomic<std::uint64_t> read_ = 0, done_ = 0;
  std::atomic<bool> waits_ = false;
};

// Files and standard input, a piece at a time. What ends is a file that is there and can be read.
class Input {
 public:
  Input(const std::string& path, Progress& progress) : path_(path), progress_(progress) {
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
    progress_.wait(true);
    do n = ::read(fd_, text.data() + before, bytes);
    while (n < 0 && errno == EINTR);
    progress_.wait(false);
    if (n < 0) fail_machine("{}: cannot be read: {}", name(), std::generic_category().message(errno));
    text.resize(before + static_cast<std::size_t>(n));
    progress_.read(static_cast<std::size_t>(n));
    return n > 0;
  }
  void converted(std::size_t bytes) { progress_.convert(bytes); }

 private:
  std::string path_;
  Progress& progress_;
  int fd_ = 0;  // standard input
};

// Whole lines reach the output, and a signal that comes meanwhile is heard behind them.
void print_whole(StopAtOnce& stopping, std::string_view lines) {
  stopping.hold();
  print(lines);
  flush_output();
  stopping.release();
}

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

// Lines of a file to lines of output, on all cores, in order. A line is what `convert` gets without its newline.
class LineConverter {
 public:
  using Convert =
      std::function<void(std::string_view line, const std::string& where, data::Encoder& encoder, std::string& out)>;

  LineConverter(const data::Tokenizer& tokenizer, StopAtOnce& stopping, Convert convert)
      : stopping_(stopping), convert_(std::move(convert)) {
    for (int i = 0; i < pool_.threads() * 4; ++i) encoders_.push_back(tokenizer.encoder());
    outputs_.resize(encoders_.size());
  }

  void run(Input& input) {
    std::string text;
    std::int64_t line = 1;
    bool more = true;
    while ((more || !text.empty()) && !output_failed()) {
      while (more && text.size() < kPieceBytes) more = input.read(text, kPieceBytes / 4);
      const std::size_t newline = text.rfind('\n');
      if (newline == text.npos && more) {  // one line longer than a piece
        more = input.read(text, text.size());
        continue;
      }
      const std::size_t end = more ? newline + 1 : text.size();
      convert_piece(std::string_view(text).substr(0, end), input.name(), line);
      text.erase(0, end);
      input.converted(end);
    }
  }

 private:
  void convert_piece(std::string_view text, const std::string& name, std::int64_t& line) {
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
    for (const std::string& output : outputs_) print_whole(stopping_, output);
    line += count;
  }

  StopAtOnce& stopping_;
  ThreadPool pool_;
  Convert convert_;
  std::vector<std::unique_ptr<data::Encoder>> encoders_;  // one a chunk
  std::vector<std::string> outputs_;
  std::vector<std::string_view> lines_;
};

bool blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

[[noreturn]] void rethrow_at(const std::string& where, const UserError& error) {
  fail_user("{}: {}", where, error.what());
}

void text_to_ids(std::string_view line, const std::string& where, data::Encoder& encoder, std::string& out) {
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

void ids_to_text(const data::Tokenizer& tokenizer, std::string_view line, const std::string& where, std::string& out) {
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

void encode_whole(data::Encoder& encoder, Input& input, bool any_bytes, StopAtOnce& stopping) {
  std::string text, out;
  std::size_t piece = 1 << 20;
  while (input.read(text, piece)) piece = std::max<std::size_t>(text.size(), 1 << 20);
  if (const std::string why = data::why_not_text(std::string_view(text).substr(0, 1 << 16), {}, "", any_bytes);
      !why.empty())
    fail_user("{}: {}", input.name(), why);
  std::vector<std::int32_t> ids;
  try {
    encoder.append(text, ids);
  } catch (const UserError& error) {
    rethrow_at(input.name(), error);
  }
  append_ids(ids, " ", out);
  print_whole(stopping, out + "\n");
  input.converted(text.size());
}

}  // namespace

int run_tokenize(const Words& words) {
  Arguments arguments("tokenize", "text to token ids, and back", "--tokenizer FILE [--decode] [--jsonl] [FILE...]",
                      {"redline tokenize --tokenizer tokenizer.json book.txt > book.ids",
                       "redline tokenize --tokenizer tokenizer.json --decode book.ids",
                       "echo '{\"text\": \"Hello\"}' | redline tokenize --tokenizer llama2.model --jsonl"});
  std::string name;
  std::vector<std::string> files;
  bool decode = false, jsonl = false;
  arguments.words("FILE...", files, "each is one text, whose ids become one line; none, or -: standard input");
  arguments.text("--tokenizer", "FILE", name,
                 "a tokenizer.json, a sentencepiece .model, a folder with one, bytes or ping");
  arguments.flag("--decode", decode, "ids to text: each line of ids becomes its text");
  arguments.flag("--jsonl", jsonl, "lines of {\"text\": ...} become lines of {\"ids\": [...]}; with --decode, back");
  if (!arguments.parse(words)) return kDone;
  if (name.empty()) fail_user("redline tokenize needs --tokenizer FILE");
  if (files.empty()) files = {"-"};

  StopAtOnce stopping("stopped; the output ends before the input does");
  const auto tokenizer = data::open_tokenizer(name, "--tokenizer");
  Progress progress(decode ? "decoding" : "tokenizing", files);
  report::LiveLine live(stderr);
  std::optional<report::BackgroundLine> shown;  // on a terminal the output itself shows how far it is
  if (::isatty(STDOUT_FILENO) != 1) shown.emplace(live, [&](double seconds) { return progress.text(seconds); });
  if (!decode && !jsonl) {
    const auto encoder = tokenizer->encoder();
    for (const std::string& file : files) {
      Input input(file, progress);
      encode_whole(*encoder, input, name == "bytes", stopping);
    }
    return kDone;
  }
  LineConverter converter(
      *tokenizer, stopping,
      [&](std::string_view line, const std::string& where, data::Encoder& encoder, std::string& out) {
        if (jsonl && decode) {
          ids_to_text(*tokenizer, line, where, out);
        } else if (jsonl) {
          text_to_ids(line, where, encoder, out);
        } else {
          out += tokenizer->decode(parse_ids(line, tokenizer->vocabulary(), where));
        }
      });
  for (const std::string& file : files) {
    Input input(file, progress);
    converter.run(input);
  }
  return kDone;
}

}  // namespace redline::cli
