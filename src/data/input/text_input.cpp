// The files one after another, the documents of each text file, and the text of each document.
#include "data/input/text_input.h"

#include <glob.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/words.h"
#include "data/input/byte_stream.h"
#include "data/input/json_text.h"
#include "data/input/parquet.h"
#include "data/utf8.h"
#include "io/json.h"

namespace redline::data {
namespace {

namespace fs = std::filesystem;

// Folder by folder, so that the one that cannot be read is named. Links to folders are not followed.
std::vector<Path> files_below(const Path& folder, const std::string& key) {
  std::vector<Path> files, folders = {folder};
  while (!folders.empty()) {
    const Path here = std::move(folders.back());
    folders.pop_back();
    std::error_code error;
    for (fs::directory_iterator it(here, error), end; !error && it != end; it.increment(error)) {
      // An empty or hidden file in a folder (.DS_Store) is no mistake; one that is named is.
      if (it->path().filename().string().starts_with('.')) continue;
      std::error_code ignored;
      if (it->is_directory(ignored) && !it->is_symlink(ignored))
        folders.push_back(it->path());
      else if (it->is_regular_file(ignored) && it->file_size(ignored) > 0)
        files.push_back(it->path());
    }
    if (error) fail_user("{}: the folder {} cannot be read: {}", key, here.string(), error.message());
  }
  if (files.empty()) fail_user("{}: the folder {} holds no text", key, folder.string());
  std::ranges::sort(files);
  return files;
}

std::vector<Path> matching(const std::string& pattern) {
  glob_t found{};
  std::vector<Path> paths;
  if (glob(pattern.c_str(), GLOB_TILDE, nullptr, &found) == 0) {  // sorted
    for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  }
  globfree(&found);
  return paths;
}

// The files of one word of the list.
std::vector<Path> expand(const Path& path, const std::string& key) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return files_below(path, key);
  if (!fs::exists(status)) {
    const std::string pattern = path.string();
    if (pattern.find_first_of("*?[") == std::string::npos) fail_user("{}: there is no file or folder {}", key, pattern);
    std::vector<Path> files;
    for (const Path& match : matching(pattern)) {
      std::error_code ignored;
      if (fs::is_regular_file(match, ignored) && fs::file_size(match, ignored) == 0) continue;  // as in a folder
      const std::vector<Path> more = expand(match, key);
      files.insert(files.end(), more.begin(), more.end());
    }
    if (files.empty()) fail_user("{}: no file with text in it matches {}", key, pattern);
    return files;
  }
  if (!fs::is_regular_file(status)) fail_user("{}: {} is not a file", key, path.string());
  if (fs::file_size(path, error) == 0) fail_user("{}: {} is empty; leave it out", key, path.string());
  return {path};
}

constexpr std::size_t kRead = std::size_t{1} << 18, kLarge = std::size_t{1} << 22;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == line.npos; }

// A UserError where the beginning of a file is not that of text, or of lines of JSON.
void check_beginning(const Path& path, const InputFormat& format, std::string_view beginning) {
  const bool json = is_json_lines(path);
  std::string why;
  if (format.separator.empty()) why = why_not_one_document(path, format.separator_key);
  // The parser of JSON tells better what is wrong with JSON.
  const std::string_view look = json ? beginning.substr(0, std::min(beginning.find('{'), beginning.size())) : beginning;
  if (why.empty()) why = why_not_text(look, {}, format.separator, format.any_bytes && !json, format.bytes_setting);
  const std::size_t first = beginning.find_first_not_of(" \t\r\n");
  if (why.empty() && json && first != beginning.npos && beginning[first] == '[')
    why =
        "this is one JSON array, and must be objects, { ... }, a line each; jq -c '.[]' FILE > NEW.jsonl writes them "
        "so";
  if (!why.empty()) fail_user("{}: {}", path.string(), why);
}

// A document longer than any may be is malformed, and one for which there is no memory is TooLong.
[[noreturn]] void fail_too_long(const std::string& where, const Path& path, const InputFormat& format,
                                std::int64_t bytes) {
  const std::string shorter = is_json_lines(path) ? "write a shorter line"
                              : is_parquet(path)  ? "write a shorter row"
                                                  : "cut it with " + format.separator_key;
  if (bytes > format.longest_document)
    fail_user("{}: a document of {} bytes is longer than the {} bytes that {} allows; raise it, or {}", where, bytes,
              format.longest_document, format.longest_key, shorter);
  throw TooLong(fmt::format("{}: a document of {} bytes is longer than {} bytes, {}, or {}", where, bytes,
                            format.most_in_memory, format.most_in_memory_is, shorter));
}

[[noreturn]] void fail_shorter(const Path& path, const std::string& size, std::int64_t wanted) {
  fail_user("{}: only {}, fewer than the {} that were read before; has the file changed?", path.string(), size, wanted);
}

// The documents of one text or .jsonl file, found from front to back. A buffer of decompressed bytes slides over the
// file; lines are found by memchr and separators by a search. Blocks are cut where they suit the reader, which changes
// no document.
class TextDocuments {
 public:
  // Opens nothing yet. `format` and `path` must outlive it. A file that ends before `bytes` was cut short.
  TextDocuments(const Path& path, const InputFormat& format, std::int64_t bytes);

  // Goes to a byte (after decompression) at which a document begins. To be called before the first next().
  void seek(std::int64_t offset);

  // Fills an empty `block`, all but its file, as TextInput::next() does; false at the end. A file that breaks off
  // throws once all documents before the break were given.
  bool next(TextBlock& block, std::int64_t target_bytes, std::int64_t most_documents);

  std::int64_t consumed() const { return stream_ ? stream_->consumed() : 0; }  // bytes of the file itself

 private:
  void read_more();
  std::size_t document_end(std::size_t from);
  void drop_blank_lines();
  void advance(std::size_t bytes);
  void give_beginning(TextBlock& block);
  std::int64_t pass_over();
  void release();

  const Path& path_;
  const InputFormat& format_;
  const bool json_;
  const std::int64_t file_bytes_;
  std::optional<std::boyer_moore_horspool_searcher<std::string::const_iterator>> separator_;

  // `pending_` holds bytes from `start_` on; those before `scanned_` hold no end of a document.
  std::unique_ptr<ByteStream> stream_;
  std::string pending_;
  std::size_t start_ = 0, scanned_ = 0;
  std::int64_t offset_ = 0;    // of pending_[start_] in the file
  std::int64_t line_ = 1;      // there; 0: not known
  bool at_end_ = false;        // of the file: nothing more to read
  std::exception_ptr broken_;  // the file ends here because of this
};

TextDocuments::TextDocuments(const Path& path, const InputFormat& format, std::int64_t bytes)
    : path_(path), format_(format), json_(is_json_lines(path)), file_bytes_(bytes) {
  if (!format.separator.empty()) separator_.emplace(format.separator.cbegin(), format.separator.cend());
}

void TextDocuments::seek(std::int64_t to) {
  const auto require = [&](std::int64_t size) {
    if (size < to) fail_shorter(path_, fmt::format("{} bytes of text", size), to);
  };
  stream_ = open_byte_stream(path_);
  if (stream_->seeks()) {
    require(static_cast<std::int64_t>(real_files().size(path_)));
    stream_->seek(to);
    line_ = 0;
  } else {
    std::string passed(kRead, '\0');
    for (std::int64_t at = 0; at < to;) {
      const auto want = static_cast<std::size_t>(std::min<std::int64_t>(to - at, kRead));
      const std::size_t got = stream_->read(std::span(passed).first(want));
      line_ += std::count(passed.data(), passed.data() + got, '\n');
      at += static_cast<std::int64_t>(got);
      if (got < want) require(at);
    }
  }
  offset_ = to;
}

bool TextDocuments::next(TextBlock& block, std::int64_t target, std::int64_t most) {
  std::size_t taken = 0;  // bytes from `start_` on that are whole documents
  const auto full = [&] { return block.documents() >= most || static_cast<std::int64_t>(scanned_ - start_) >= target; };
  while (block.ends.empty() || !full()) {
    const std::size_t end = document_end(start_ + taken);
    const bool found = end != std::string::npos;
    if (block.ends.empty()) drop_blank_lines();
    const std::size_t length = (found ? end : pending_.size()) - start_ - taken;
    if (length > static_cast<std::size_t>(format_.longest_held())) {
      if (!block.ends.empty()) break;
      return give_beginning(block), true;
    }
    if (found) {
      taken = end - start_;
      block.ends.push_back(static_cast<std::int64_t>(taken));
      continue;
    }
    if (at_end_) break;
    read_more();
  }
  if (block.ends.empty()) {
    if (broken_) std::rethrow_exception(broken_);
    return false;
  }
  block.offset = offset_;
  block.line = json_ ? line_ : 0;
  if (taken < kLarge) {
    block.bytes.assign(pending_, start_, taken);
    advance(taken);
  } else {  // a second copy of it would take its memory again
    std::string rest(pending_, start_ + taken);
    const std::size_t from = start_;
    advance(taken);
    pending_.resize(from + taken);
    pending_.erase(0, from);
    block.bytes = std::exchange(pending_, std::move(rest));
    start_ = 0;
  }
  scanned_ = start_;  // the bytes after it may hold ends that there was no room for
  return true;
}

// Makes bytes before `start_` free, then reads some more after the rest.
void TextDocuments::read_more() {
  if (start_ > 0 && (start_ >= pending_.size() / 2 || start_ >= kRead)) {
    pending_.erase(0, start_);
    scanned_ -= start_;
    start_ = 0;
  }
  const std::size_t had = pending_.size();
  const bool first = !stream_;
  try {
    if (!stream_) stream_ = open_byte_stream(path_);
    pending_.resize(had + kRead);
    const std::size_t got = stream_->read(std::span(pending_).subspan(had));
    pending_.resize(had + got);
    at_end_ = got < kRead;
    if (first) check_beginning(path_, format_, pending_);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    pending_.resize(had);
    broken_ = std::current_exception();
    at_end_ = true;
  }
  if (at_end_ && !broken_ && stream_->consumed() < file_bytes_)
    broken_ = std::make_exception_ptr(UserError(fmt::format(
        "{}: it ends at byte {}, earlier than it did; bring it back whole", path_.string(), stream_->consumed())));
  if (first && std::string_view(pending_).starts_with(kByteOrderMark)) {
    start_ = scanned_ = kByteOrderMark.size();
    offset_ = static_cast<std::int64_t>(start_);
  }
}

// The end of the first document that begins at `from`, or npos when it is not in the buffer. `from` <= scanned_.
std::size_t TextDocuments::document_end(std::size_t from) {
  const std::string_view bytes = pending_;
  if (json_) {
    for (std::size_t at = from; scanned_ < bytes.size();) {
      const void* found = std::memchr(bytes.data() + scanned_, '\n', bytes.size() - scanned_);
      if (!found) break;
      const std::size_t end = static_cast<std::size_t>(static_cast<const char*>(found) - bytes.data()) + 1;
      scanned_ = end;
      if (!is_blank(bytes.substr(at, end - at))) return end;
      at = end;  // blank lines belong to the document that follows
    }
    scanned_ = bytes.size();
  } else if (separator_) {
    const std::size_t size = format_.separator.size();
    const auto found =
        std::search(pending_.cbegin() + static_cast<std::ptrdiff_t>(scanned_), pending_.cend(), *separator_);
    if (found != pending_.cend()) return scanned_ = static_cast<std::size_t>(found - pending_.cbegin()) + size;
    // The last bytes may be the beginning of a separator, and are looked at again.
    scanned_ = std::max(scanned_, bytes.size() - std::min(bytes.size() - from, size - 1));
  } else {
    scanned_ = bytes.size();
  }
  if (!at_end_ || broken_) return std::string::npos;
  const std::string_view rest = bytes.substr(from);
  scanned_ = bytes.size();
  if (rest.empty() || (json_ && is_blank(rest))) return std::string::npos;
  return bytes.size();
}

// Drops blank lines that no document has claimed yet: a file of them must not fill the memory.
void TextDocuments::drop_blank_lines() {
  if (!json_) return;
  const std::string_view rest = std::string_view(pending_).substr(start_, scanned_ - start_);
  const std::size_t text = std::min(rest.find_first_not_of(" \t\r\n"), rest.size());
  const std::size_t newline = rest.substr(0, text).rfind('\n');
  if (newline != rest.npos) advance(newline + 1);
}

void TextDocuments::advance(std::size_t bytes) {
  const std::string_view gone = std::string_view(pending_).substr(start_, bytes);
  if (json_ && line_ > 0) line_ += std::ranges::count(gone, '\n');
  start_ += bytes;
  offset_ += static_cast<std::int64_t>(bytes);
}

// A document that is too long is one malformed document: its beginning stands for it, and the next one is found again.
void TextDocuments::give_beginning(TextBlock& block) {
  block.offset = offset_;
  block.line = json_ ? line_ : 0;
  block.bytes.assign(pending_, start_, std::min(kShownOfTooLong, pending_.size() - start_));
  block.ends = {static_cast<std::int64_t>(block.bytes.size())};
  block.too_long = pass_over();
}

// Reads on to the end of the document without holding it. Returns its bytes.
std::int64_t TextDocuments::pass_over() {
  const std::int64_t from = offset_;
  const std::string end = json_ ? "\n" : format_.separator;
  for (;;) {
    const std::size_t found = end.empty() ? pending_.npos : pending_.find(end, start_);
    const bool ended = found != pending_.npos;
    std::size_t to = ended ? found + end.size() : pending_.size();
    if (!ended && !at_end_ && !end.empty())  // the last bytes may be the beginning of a separator
      to -= std::min(end.size() - 1, to - start_);
    advance(to - start_);
    scanned_ = start_;
    release();
    if (ended || at_end_) return offset_ - from;
    read_more();
  }
}

// Gives back the memory of what was much and is gone.
void TextDocuments::release() {
  if (pending_.capacity() < kLarge || pending_.size() - start_ > kRead) return;
  pending_ = std::string(pending_, start_);
  start_ = scanned_ = 0;
}

constexpr std::size_t kLook = std::size_t{1} << 14;

// For whoever has a file of conversations and does not know how they are read.
std::string_view chat_hint(std::string_view json) {
  const auto has = [&](std::string_view name) { return json.find(name) != json.npos; };
  const bool likely = has("\"messages\"") || has("\"conversations\"") || has("\"completion\"") ||
                      (has("\"instruction\"") && has("\"output\""));
  return likely ? "; this looks like a conversation, whose answers are learned with data.chat=auto, or prepared with "
                  "--chat auto (docs/data.md#conversations)"
                : "";
}

}  // namespace

std::vector<Path> expand_paths(const std::vector<std::string>& paths, const std::string& key) {
  std::vector<Path> files;
  for (const std::string& path : paths) {
    const std::vector<Path> more = expand(path, key);
    files.insert(files.end(), more.begin(), more.end());
  }
  return files;
}

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
  const std::string end = ending_of(name);  // corpora such as C4 call their lines of JSON .json
  return end == ".jsonl" || end == ".ndjson" || end == ".json";
}

// A hash of a file that follows its reader.
struct HashedFile {
  explicit HashedFile(const Path& path) : file(path) {}

  void up_to(std::int64_t end) {
    std::vector<std::byte> bytes(kRead);
    while (at < end) {
      const auto some = std::span(bytes).first(std::min(bytes.size(), static_cast<std::size_t>(end - at)));
      file.read(static_cast<std::uint64_t>(at), some);
      hasher.update(some);
      at += std::ssize(some);
    }
  }

  InputFile file;
  Hasher hasher;
  std::int64_t at = 0;
};

struct TextInput::Impl {
  std::vector<Path> files;
  std::vector<bool> json;                  // by file
  std::vector<std::int64_t> bytes_before;  // each file, and in all, when they were found
  InputFormat format;
  JsonTextField field;

  std::int64_t file = 0;  // that next() reads, as a table or as text
  std::unique_ptr<ParquetRows> rows;
  std::unique_ptr<TextDocuments> documents;
  std::atomic<std::int64_t> read_so_far{0};
  bool hashing = false;
  std::unique_ptr<HashedFile> hashed;  // the file that is read
  std::vector<FileHash> hashes;

  Impl(const std::vector<std::string>& paths, InputFormat f, const std::string& key)
      : files(expand_paths(paths, key)), bytes_before{0}, format(std::move(f)), field(format.text_field) {
    if (files.empty()) fail_user("{}: name text files, .jsonl or .parquet files, folders or patterns", key);
    for (const Path& path : files) {
      json.push_back(is_json_lines(path));
      if (is_parquet(path)) require_parquet_library(path, format.text_field);  // which no file is to blame for
      bytes_before.push_back(bytes_before.back() + static_cast<std::int64_t>(real_files().size(path)));
    }
  }

  std::size_t index() const { return static_cast<std::size_t>(file); }
  const Path& path() const { return files[index()]; }
  bool done() const { return index() == files.size(); }
  std::int64_t file_bytes() const { return bytes_before[index() + 1] - bytes_before[index()]; }

  void go_to(std::int64_t to_file) {
    file = to_file;
    rows.reset();
    documents.reset();
    hashed.reset();
    read_so_far = bytes_before[index()];
  }
  void open() {
    if (is_parquet(path()) && !rows) rows = std::make_unique<ParquetRows>(path(), format);
    if (!is_parquet(path()) && !documents) documents = std::make_unique<TextDocuments>(path(), format, file_bytes());
  }
  // Hashes what was read of the file, which is still in the system's cache.
  void hash_up_to(std::int64_t bytes) {
    if (!hashing) return;
    if (!hashed) hashed = std::make_unique<HashedFile>(path());
    hashed->up_to(bytes);
  }
  void end_hash() {
    if (!hashing) return;
    hash_up_to(file_bytes());
    hashes.push_back({path(), file_bytes(), hashed->hasher.digest()});
    hashed.reset();
  }
  void count_read() {
    const double share =
        rows ? static_cast<double>(rows->row()) / static_cast<double>(std::max<std::int64_t>(rows->rows(), 1)) : 0;
    const std::int64_t of_file =
        rows ? static_cast<std::int64_t>(share * static_cast<double>(file_bytes())) : documents->consumed();
    read_so_far = bytes_before[index()] + of_file;
    hash_up_to(of_file);
  }

  bool next(TextBlock& block, std::int64_t target, std::int64_t most);
  void seek(std::int64_t to_file, std::int64_t to);
  template <class ReadLine>  // of a line of JSON
  void parse(const TextBlock& block, std::int64_t document, std::string& text, const ReadLine& read_line) const;
};

bool TextInput::Impl::next(TextBlock& block, std::int64_t target, std::int64_t most) {
  block.ends.clear();
  block.bytes.clear();
  block.too_long = 0;
  block.rows = false;
  block.null.clear();
  for (; !done(); go_to(file + 1)) {
    try {
      open();
      if (rows ? !rows->next(block, target, most) : !documents->next(block, target, most)) {
        end_hash();
        continue;
      }
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {
      go_to(file + 1);
      throw;
    }
    block.file = file;
    count_read();
    return true;
  }
  return false;
}

void TextInput::Impl::seek(std::int64_t to_file, std::int64_t to) {
  REDLINE_CHECK(to_file >= 0 && to_file <= static_cast<std::int64_t>(files.size()) && to >= 0, "no place {}:{}",
                to_file, to);
  const bool same_table = to_file == file && rows;  // its footer need not be read again
  if (!same_table) go_to(to_file);
  if (to == 0 && !same_table) return;
  REDLINE_CHECK(!done(), "byte {} after the last file", to);
  open();
  if (!rows) {
    documents->seek(to);
  } else {
    if (to > rows->rows()) fail_shorter(path(), counted(rows->rows(), "row"), to);
    rows->seek(to);
  }
  count_read();
}

template <class ReadLine>
void TextInput::Impl::parse(const TextBlock& block, std::int64_t document, std::string& text,
                            const ReadLine& read_line) const {
  const auto begin = static_cast<std::size_t>(block.begin(document));
  const auto end = static_cast<std::size_t>(block.ends[static_cast<std::size_t>(document)]);
  std::string_view bytes = std::string_view(block.bytes).substr(begin, end - begin);
  const Path& path = files[static_cast<std::size_t>(block.file)];
  const std::string name = path.string();
  const auto place = [&](std::size_t at) { return block.offset + static_cast<std::int64_t>(begin + at); };
  const auto where = [&](std::size_t at) {
    if (block.rows) return fmt::format("{}: row {} (from 0)", name, block.place(document));
    if (block.line == 0) return fmt::format("{}: byte {}", name, place(at));
    const std::string_view before = std::string_view(block.bytes).substr(0, begin + at);
    const std::size_t newline = before.rfind('\n');
    const std::size_t column = newline == before.npos ? before.size() : before.size() - newline - 1;
    return fmt::format("{}:{}:{}", name, block.line + std::ranges::count(before, '\n'), column + 1);
  };
  if (block.too_long > 0) fail_too_long(where(0), path, format, block.too_long);
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
  const std::size_t good = format.any_bytes && !block.rows ? bytes.size() : valid_utf8(bytes);
  if (good != bytes.size() && block.rows) fail_user("{}: byte {} of its text: not valid UTF-8", where(0), good);
  if (good != bytes.size()) fail_user("{}: byte {}: not valid UTF-8", name, place(good));
  text.assign(bytes);
}

TextInput::TextInput(const std::vector<std::string>& paths, InputFormat format, std::string key)
    : impl_(std::make_unique<Impl>(paths, std::move(format), key)) {}
TextInput::~TextInput() = default;

void TextInput::check_files() const {
  const InputFormat& format = impl_->format;
  std::string beginning;
  for (const Path& file : impl_->files) {
    if (is_parquet(file)) {
      ParquetRows(file, format);  // its footer tells
      continue;
    }
    beginning.resize(kLook);
    try {
      beginning.resize(open_byte_stream(file)->read(beginning));
    } catch (const UserError&) {
      continue;  // a broken archive may be skipped: next() tells of it
    }
    check_beginning(file, format, beginning);
    // A text that is one document, and too long, need not be read to be refused.
    if (!is_json_lines(file) && format.separator.empty() && compression_of(file) == Compression::none &&
        real_files().size(file) > static_cast<std::uint64_t>(format.longest_held()))
      fail_too_long(file.string(), file, format, static_cast<std::int64_t>(real_files().size(file)));
  }
}
const std::vector<Path>& TextInput::files() const { return impl_->files; }
std::int64_t TextInput::bytes_on_disk() const { return impl_->bytes_before.back(); }
std::int64_t TextInput::bytes_read() const { return impl_->read_so_far; }

void TextInput::hash_files() { impl_->hashing = true; }
std::vector<FileHash> TextInput::hashes() const { return impl_->hashes; }

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
