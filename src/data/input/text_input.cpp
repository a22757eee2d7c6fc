// The files one after another, and the text of each document.
#include "data/input/text_input.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/words.h"
#include "data/input/byte_stream.h"
#include "data/input/json_text.h"
#include "data/input/parquet_library.h"
#include "data/input/parquet_rows.h"
#include "data/input/paths.h"
#include "data/input/text_documents.h"
#include "data/utf8.h"
#include "io/json.h"

namespace redline::data {
namespace {

constexpr std::size_t kLook = std::size_t{1} << 14;

// For whoever has a file of conversations and does not know how they are read.
std::string_view chat_hint(std::string_view json) {
  const bool likely = json.find("\"messages\"") != json.npos || json.find("\"completion\"") != json.npos;
  return likely ? "; conversations are learned with data.chat (docs/data.md#conversations)" : "";
}

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
  std::vector<bool> json;                  // by file
  std::vector<std::int64_t> bytes_before;  // each file, and in all, when they were found
  InputFormat format;
  JsonTextField field;

  std::int64_t file = 0;  // that next() reads, as a table or as text
  std::unique_ptr<ParquetRows> rows;
  std::unique_ptr<TextDocuments> documents;
  std::atomic<std::int64_t> read_so_far{0};

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
    read_so_far = bytes_before[index()];
  }
  void open() {
    if (is_parquet(path()) && !rows) rows = std::make_unique<ParquetRows>(path(), format);
    if (!is_parquet(path()) && !documents) documents = std::make_unique<TextDocuments>(path(), format, file_bytes());
  }
  void count_read() {
    const double share =
        rows ? static_cast<double>(rows->row()) / static_cast<double>(std::max<std::int64_t>(rows->rows(), 1)) : 0;
    const std::int64_t of_file =
        rows ? static_cast<std::int64_t>(share * static_cast<double>(file_bytes())) : documents->consumed();
    read_so_far = bytes_before[index()] + of_file;
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
  for (; !done(); go_to(file + 1)) {
    try {
      open();
      if (rows ? !rows->next(block, target, most) : !documents->next(block, target, most)) continue;
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
  if (block.too_long) throw TooLong(fmt::format("{}: {}", where(0), too_long_in_words(path, format)));
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
    // A text that is one document, and too long, need not be read to be told.
    if (!is_json_lines(file) && format.separator.empty() && compression_of(file) == Compression::none &&
        real_files().size(file) > static_cast<std::uint64_t>(format.longest_document))
      throw TooLong(fmt::format("{}: {}", file.string(), too_long_in_words(file, format)));
  }
}
const std::vector<Path>& TextInput::files() const { return impl_->files; }
std::int64_t TextInput::bytes_on_disk() const { return impl_->bytes_before.back(); }
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
