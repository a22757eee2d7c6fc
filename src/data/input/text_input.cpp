// One buffer of decompressed bytes slides over each file; documents are found in it by memchr or by the separator and
// copied out in blocks.
#include "data/input/text_input.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>

#include "base/counted.h"
#include "base/error.h"
#include "data/input/byte_stream.h"
#include "data/input/file_kind.h"
#include "data/input/json_text.h"
#include "data/input/parquet_library.h"
#include "data/input/parquet_rows.h"
#include "data/input/paths.h"
#include "data/utf8.h"
#include "io/json.h"

namespace redline::data {
namespace {

constexpr std::size_t kRead = std::size_t{1} << 18, kLook = std::size_t{1} << 14;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// For whoever has a file of conversations and does not know how they are read.
std::string_view chat_hint(std::string_view json) {
  const bool likely = json.find("\"messages\"") != json.npos || json.find("\"completion\"") != json.npos;
  return likely ? "; conversations are learned with data.chat (docs/chat.md)" : "";
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == line.npos; }

}  // namespace

std::string separator_of(const std::string& text, std::string_view key) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    switch (++i < text.size() ? text[i] : ' ') {
      case 'n': out += '\n'; break;
      case 'r': out += '\r'; break;
      case 't': out += '\t'; break;
      case '0': out += '\0'; break;
      case '\\': out += '\\'; break;
      default: fail_user("{} '{}': a backslash stands before n, r, t, 0 or another backslash", key, text);
    }
  }
  return out;
}

bool is_json_lines(const Path& path) {
  const Path name = compression_of(path) == Compression::none ? path : path.stem();
  const Path end = name.extension();  // corpora such as C4 call their lines of JSON .json
  return end == ".jsonl" || end == ".ndjson" || end == ".json";
}

struct TextInput::Impl {
  std::vector<Path> files;
  std::vector<bool> json, table;  // by file
  std::vector<std::int64_t> bytes_before;
  std::int64_t bytes_on_disk = 0;
  InputFormat format;
  JsonTextField field;
  std::optional<std::boyer_moore_horspool_searcher<std::string::const_iterator>> separator;

  // Where we are. `pending` holds bytes [start, ...) of which those before `scanned` hold no end of a document.
  std::int64_t file = 0;
  std::unique_ptr<ParquetRows> rows;  // of a table; none of what follows is about it
  std::unique_ptr<ByteStream> stream;
  std::string pending;
  std::size_t start = 0, scanned = 0;
  std::int64_t offset = 0;    // of pending[start] in the file
  std::int64_t line = 1;      // there; 0: not known
  bool at_end = false;        // of the file: nothing more to read
  bool passing = false;       // over the rest of a line that is too long
  std::exception_ptr broken;  // the file ends here because of this
  std::atomic<std::int64_t> read_so_far{0};

  Impl(const std::vector<std::string>& paths, InputFormat f, const std::string& key)
      : files(expand_paths(paths, key)), format(std::move(f)), field(format.text_field) {
    if (files.empty()) fail_user("{}: name text files, .jsonl or .parquet files, folders or patterns", key);
    if (!format.separator.empty()) separator.emplace(format.separator.cbegin(), format.separator.cend());
    for (const Path& path : files) {
      json.push_back(is_json_lines(path));
      table.push_back(is_parquet(path));
      if (table.back()) require_parquet_library(path, format.text_field);  // which no file is to blame for
      bytes_before.push_back(bytes_on_disk);
      bytes_on_disk += static_cast<std::int64_t>(real_files().size(path));
    }
  }

  // Whether the beginning of a file is that of text or JSON.
  void check_start(std::size_t f, std::string_view beginning) const {
    std::string why;
    if (format.separator.empty()) why = why_not_one_document(files[f], format.separator_key);
    // What JSON is not, its parser tells better.
    const std::string_view look =
        json[f] ? beginning.substr(0, std::min(beginning.find('{'), beginning.size())) : beginning;
    if (why.empty()) why = why_not_text(look, {}, format.separator, false);
    const std::size_t first = beginning.find_first_not_of(" \t\r\n");
    if (why.empty() && json[f] && first != beginning.npos && beginning[first] == '[')
      why =
          "this is one JSON array, and must be objects, { ... }, a line each; jq -c '.[]' FILE > NEW.jsonl writes them "
          "so";
    if (!why.empty()) fail_user("{}: {}", files[f].string(), why);
  }

  std::size_t index() const { return static_cast<std::size_t>(file); }
  bool done() const { return index() == files.size(); }
  std::int64_t file_bytes() const {  // when it was found
    return (index() + 1 < files.size() ? bytes_before[index() + 1] : bytes_on_disk) - bytes_before[index()];
  }

  void leave() {
    ++file;
    reset();
  }
  void reset() {
    rows.reset();
    stream.reset();
    pending.clear();
    start = scanned = 0;
    offset = 0;
    line = 1;
    at_end = passing = false;
    broken = nullptr;
    read_so_far = done() ? bytes_on_disk : bytes_before[index()];
  }

  // Makes bytes before `start` free, then reads some more behind the rest.
  void read_more() {
    if (start > 0 && (start >= pending.size() / 2 || start >= kRead)) {
      pending.erase(0, start);
      scanned -= start;
      start = 0;
    }
    const std::size_t had = pending.size();
    const bool first = !stream && offset == 0 && had == 0;
    try {
      if (!stream) stream = open_byte_stream(files[index()]);
      pending.resize(had + kRead);
      const std::size_t got = stream->read(std::span(pending).subspan(had));
      pending.resize(had + got);
      at_end = got < kRead;
      if (first) check_start(index(), pending);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {
      pending.resize(had);
      broken = std::current_exception();
      at_end = true;
    }
    if (at_end && !broken && stream->consumed() < file_bytes())
      broken = std::make_exception_ptr(
          UserError(fmt::format("{}: it ends at byte {}, earlier than it did; bring it back whole",
                                files[index()].string(), stream->consumed())));
    if (stream) read_so_far = bytes_before[index()] + stream->consumed();
    if (first && std::string_view(pending).starts_with(kByteOrderMark)) {
      start = scanned = kByteOrderMark.size();
      offset = static_cast<std::int64_t>(start);
    }
  }

  // The end of the first document that begins at `from`, or npos when it is not in the buffer. `from` <= scanned.
  std::size_t document_end(std::size_t from) {
    const std::string_view bytes = pending;
    if (json[index()]) {
      for (std::size_t at = from; scanned < bytes.size();) {
        const void* found = std::memchr(bytes.data() + scanned, '\n', bytes.size() - scanned);
        if (!found) break;
        const std::size_t end = static_cast<std::size_t>(static_cast<const char*>(found) - bytes.data()) + 1;
        scanned = end;
        if (!is_blank(bytes.substr(at, end - at))) return end;
        at = end;  // blank lines belong to the document that follows
      }
      scanned = bytes.size();
    } else if (separator) {
      const std::size_t size = format.separator.size();
      const auto found =
          std::search(pending.cbegin() + static_cast<std::ptrdiff_t>(scanned), pending.cend(), *separator);
      if (found != pending.cend()) return scanned = static_cast<std::size_t>(found - pending.cbegin()) + size;
      // What may be the beginning of a separator is looked at again.
      scanned = std::max(scanned, bytes.size() - std::min(bytes.size() - from, size - 1));
    } else {
      scanned = bytes.size();
    }
    if (!at_end || broken) return std::string::npos;
    const std::string_view rest = bytes.substr(from);
    scanned = bytes.size();
    if (rest.empty() || (json[index()] && is_blank(rest))) return std::string::npos;
    return bytes.size();
  }

  // Blank lines that no document has claimed yet: a file of them must not fill the memory.
  void drop_blank_lines() {
    if (!json[index()]) return;
    const std::string_view rest = std::string_view(pending).substr(start, scanned - start);
    const std::size_t text = std::min(rest.find_first_not_of(" \t\r\n"), rest.size());
    const std::size_t newline = rest.substr(0, text).rfind('\n');
    if (newline != rest.npos) advance(newline + 1);
  }
  void advance(std::size_t bytes) {
    const std::string_view gone = std::string_view(pending).substr(start, bytes);
    if (json[index()] && line > 0) line += std::ranges::count(gone, '\n');
    start += bytes;
    offset += static_cast<std::int64_t>(bytes);
  }

  std::string too_long(std::size_t f) const {
    return fmt::format("a document of more than {} bytes{}; {}", format.longest_document,
                       format.longest_is.empty() ? "" : ", " + format.longest_is,
                       json[f]    ? "a line must be shorter"
                       : table[f] ? "a row must be shorter"
                                  : "cut it with " + format.separator_key);
  }
  // A text that is too long ends the file as far as we are concerned.
  void break_off() {
    broken = std::make_exception_ptr(
        TooLong(fmt::format("{}: byte {}: {}", files[index()].string(), offset, too_long(index()))));
    pending.resize(start);
    scanned = start;
    at_end = true;
  }
  // A line that is too long is one malformed document: its beginning stands for it, and the next line is found again.
  void give_beginning(TextBlock& block) {
    constexpr std::size_t kShown = 64;
    block.too_long = passing = true;
    block.file = file;
    block.offset = offset;
    block.line = line;
    block.bytes.assign(pending, start, std::min(kShown, pending.size() - start));
    block.ends = {static_cast<std::int64_t>(block.bytes.size())};
  }
  void pass_over_line() {
    while (passing) {
      const std::size_t newline = pending.find('\n', start);
      advance((newline == pending.npos ? pending.size() : newline + 1) - start);
      scanned = start;
      passing = newline == pending.npos && !at_end;
      if (passing) read_more();
    }
  }

  // The next rows of a table; false at its end.
  bool next_rows(TextBlock& block, std::int64_t target, std::int64_t most) {
    try {
      if (!rows) rows = std::make_unique<ParquetRows>(files[index()], format);
      if (!rows->next(block, target, most)) return false;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {
      leave();
      throw;
    }
    block.file = file;
    const double share = static_cast<double>(rows->row()) / static_cast<double>(rows->rows());
    read_so_far = bytes_before[index()] + static_cast<std::int64_t>(share * static_cast<double>(file_bytes()));
    return true;
  }

  bool next(TextBlock& block, std::int64_t target, std::int64_t most);
  void seek(std::int64_t to_file, std::int64_t to);
  template <class ReadLine>  // of a line of JSON
  void parse(const TextBlock& block, std::int64_t document, std::string& text, const ReadLine& read_line) const;
};

bool TextInput::Impl::next(TextBlock& block, std::int64_t target, std::int64_t most) {
  block.ends.clear();
  block.bytes.clear();
  block.too_long = block.rows = false;
  block.null.clear();
  if (passing) pass_over_line();
  while (!done()) {
    if (table[index()]) {
      if (next_rows(block, target, most)) return true;
      leave();
      continue;
    }
    std::size_t taken = 0;  // bytes from `start` on that are whole documents
    const auto full = [&] { return block.documents() >= most || static_cast<std::int64_t>(scanned - start) >= target; };
    while (block.ends.empty() || !full()) {
      const std::size_t end = document_end(start + taken);
      const bool found = end != std::string::npos;
      if (block.ends.empty()) drop_blank_lines();
      const std::size_t length = (found ? end : pending.size()) - start - taken;
      if (length > static_cast<std::size_t>(format.longest_document)) {
        if (!block.ends.empty()) break;
        if (json[index()]) return give_beginning(block), true;
        break_off();
        break;
      }
      if (found) {
        taken = end - start;
        block.ends.push_back(static_cast<std::int64_t>(taken));
        continue;
      }
      if (at_end) break;
      read_more();
    }
    if (!block.ends.empty()) {
      block.file = file;
      block.offset = offset;
      block.line = json[index()] ? line : 0;
      block.bytes.assign(pending, start, taken);
      advance(taken);
      scanned = start;  // what was looked at beyond it may hold ends that there was no room for
      return true;
    }
    const std::exception_ptr problem = broken;
    leave();
    if (problem) std::rethrow_exception(problem);
  }
  return false;
}

void TextInput::Impl::seek(std::int64_t to_file, std::int64_t to) {
  REDLINE_CHECK(to_file >= 0 && to_file <= static_cast<std::int64_t>(files.size()) && to >= 0, "no place {}:{}",
                to_file, to);
  const bool in_table = to_file == file && rows;
  file = to_file;
  if (!in_table) reset();
  if (to == 0 && !in_table) return;
  REDLINE_CHECK(!done(), "byte {} after the last file", to);
  const bool of_table = table[index()];
  const auto fail_short = [&](std::int64_t size) {
    fail_user("{}: only {}, fewer than the {} that were read before; has the file changed?", files[index()].string(),
              of_table ? counted(size, "row") : fmt::format("{} bytes of text", size), to);
  };
  if (of_table) {
    if (!rows) rows = std::make_unique<ParquetRows>(files[index()], format);
    if (to > rows->rows()) fail_short(rows->rows());
    rows->seek(to);
    return;
  }
  stream = open_byte_stream(files[index()]);
  if (stream->seeks()) {
    const auto size = static_cast<std::int64_t>(real_files().size(files[index()]));
    if (size < to) fail_short(size);
    stream->seek(to);
    line = 0;
  } else {
    std::string passed(kRead, '\0');
    for (std::int64_t at = 0; at < to;) {
      const auto want = static_cast<std::size_t>(std::min<std::int64_t>(to - at, kRead));
      const std::size_t got = stream->read(std::span(passed).first(want));
      line += std::count(passed.data(), passed.data() + got, '\n');
      at += static_cast<std::int64_t>(got);
      if (got < want) fail_short(at);
    }
  }
  offset = to;
  read_so_far = bytes_before[index()] + stream->consumed();
}

template <class ReadLine>
void TextInput::Impl::parse(const TextBlock& block, std::int64_t document, std::string& text,
                            const ReadLine& read_line) const {
  const auto begin = static_cast<std::size_t>(block.begin(document));
  const auto end = static_cast<std::size_t>(block.ends[static_cast<std::size_t>(document)]);
  std::string_view bytes = std::string_view(block.bytes).substr(begin, end - begin);
  const std::string name = files[static_cast<std::size_t>(block.file)].string();
  const auto place = [&](std::size_t at) { return block.offset + static_cast<std::int64_t>(begin + at); };
  const auto where = [&](std::size_t at) {
    if (block.rows) return fmt::format("{}: row {} (from 0)", name, block.place(document));
    if (block.line == 0) return fmt::format("{}: byte {}", name, place(at));
    const std::string_view before = std::string_view(block.bytes).substr(0, begin + at);
    const std::size_t newline = before.rfind('\n');
    const std::size_t column = newline == before.npos ? before.size() : before.size() - newline - 1;
    return fmt::format("{}:{}:{}", name, block.line + std::ranges::count(before, '\n'), column + 1);
  };
  if (block.too_long) throw TooLong(fmt::format("{}: {}", where(0), too_long(static_cast<std::size_t>(block.file))));
  if (json[static_cast<std::size_t>(block.file)]) {
    if (bytes.ends_with('\n')) bytes.remove_suffix(1);
    if (bytes.ends_with('\r')) bytes.remove_suffix(1);
    try {
      read_line(bytes);
    } catch (const JsonProblem& problem) {
      if (problem.no_field)
        throw NoSuchField(fmt::format("{}: {}; name the one that holds the text with {}{}", where(problem.at),
                                      problem.reason, format.text_field_key, chat_hint(bytes)));
      fail_user("{}: {}", where(problem.at), problem.reason);
    }
    return;
  }
  if (block.rows && block.null[static_cast<std::size_t>(document)])
    fail_user("{}: the column {} is null, not a string", where(0), io::in_quotes(format.text_field));
  if (!block.rows && !format.separator.empty() && bytes.ends_with(format.separator))
    bytes.remove_suffix(format.separator.size());
  const std::size_t good = valid_utf8(bytes);
  if (good != bytes.size() && block.rows) fail_user("{}: byte {} of its text: not valid UTF-8", where(0), good);
  if (good != bytes.size()) fail_user("{}: byte {}: not valid UTF-8", name, place(good));
  text.assign(bytes);
}

TextInput::TextInput(const std::vector<std::string>& paths, InputFormat format, std::string key)
    : impl_(std::make_unique<Impl>(paths, std::move(format), key)) {}
TextInput::~TextInput() = default;

void TextInput::check_files() const {
  std::string start;
  for (std::size_t f = 0; f < impl_->files.size(); ++f) {
    if (impl_->table[f]) {
      ParquetRows(impl_->files[f], impl_->format);  // its footer tells
      continue;
    }
    start.resize(kLook);
    try {
      start.resize(open_byte_stream(impl_->files[f])->read(start));
    } catch (const UserError&) {
      continue;  // a broken archive may be passed over: next() tells of it
    }
    impl_->check_start(f, start);
    // A text that is one document, and too long, need not be read to be told.
    const Path& file = impl_->files[f];
    if (!impl_->json[f] && impl_->format.separator.empty() && compression_of(file) == Compression::none &&
        real_files().size(file) > static_cast<std::uint64_t>(impl_->format.longest_document))
      throw TooLong(fmt::format("{}: {}", file.string(), impl_->too_long(f)));
  }
}
const std::vector<Path>& TextInput::files() const { return impl_->files; }
std::int64_t TextInput::bytes_on_disk() const { return impl_->bytes_on_disk; }
std::int64_t TextInput::bytes_read() const { return impl_->read_so_far; }

bool TextInput::next(TextBlock& block, std::int64_t target_bytes, std::int64_t most_documents) {
  return impl_->next(block, target_bytes, std::max<std::int64_t>(most_documents, 1));
}
void TextInput::seek(std::int64_t file, std::int64_t offset) { impl_->seek(file, offset); }
void TextInput::parse(const TextBlock& block, std::int64_t document, std::string& text) const {
  impl_->parse(block, document, text, [&](std::string_view json) { impl_->field.read(json, text); });
}
void TextInput::parse(const TextBlock& block, std::int64_t document, Conversation& conversation) const {
  conversation.kind = Conversation::Kind::text;
  impl_->parse(block, document, conversation.text,
               [&](std::string_view json) { read_conversation(json, impl_->field, conversation); });
}

}  // namespace redline::data
