// Reads documents from front to back: text files and .jsonl, both also as .gz and .zst, and Parquet. One thread finds
// where documents begin and end; any thread may parse a document.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/input/json_text.h"

namespace redline::data {

// The files of paths, folders (all files below) and globs, in the order given and sorted within each. A path that is
// missing, empty or no file is a UserError that starts with `key`, the flag or configuration key that named it; empty
// files inside a folder are passed over.
std::vector<Path> expand_paths(const std::vector<std::string>& paths, const std::string& key);

// The layout of documents in files. A file whose name (less .gz or .zst) ends in .jsonl, .ndjson or .json holds one
// JSON object a line; blank lines are skipped. Each row of a .parquet is a document. Any other file is text, without
// its byte order mark. Other kinds of files (data/input/byte_stream.h), and a .csv without a separator, are an error.
struct InputFormat {
  std::string text_field = "text";  // of each JSON object; "meta.text" is a field of a field; a column of Parquet
  std::string separator;            // between the documents of a text file; empty: a file is one document
  std::int64_t longest_document = std::int64_t{256} << 20;  // bytes, before it is parsed; a longer one is malformed
  // Bytes for which there is memory; a longer one is TooLong. The reason is for people: "a sixteenth of data.ram_mib".
  std::int64_t most_in_memory = std::numeric_limits<std::int64_t>::max();
  std::string most_in_memory_is = {};
  // How they are set.
  std::string text_field_key = "data.text_field", separator_key = "data.separator",
              longest_key = "data.max_document_mib";
  std::string bytes_setting = "data.tokenizer=bytes";  // how bytes of any kind are asked for
  bool any_bytes = false;                              // they were: text files may hold them

  std::int64_t longest_held() const { return std::min(longest_document, most_in_memory); }
};

// A line of JSON or a Parquet file without the field text_field. It is never skipped: all others would be, too.
struct NoSuchField : UserError {
  using UserError::UserError;
};

// A document that takes more memory than it may. It is never skipped: documents must not depend on the memory.
struct TooLong : UserError {
  using UserError::UserError;
};

bool is_json_lines(const Path& path);  // by its name

// A separator as it was typed, with \n, \r, \t, \0 and \\ as in C. `key` leads the UserError.
std::string separator_of(const std::string& typed, std::string_view key);

inline constexpr std::size_t kShownOfTooLong = 64;  // bytes that are kept of a document that is too long

// The bytes of a file, as they were read.
struct FileHash {
  Path path;
  std::int64_t bytes = 0;
  std::uint64_t hash = 0;  // XXH3-64
};

// Some whole documents, as they stand in one file.
struct TextBlock {
  std::int64_t file = 0;    // index into TextInput::files()
  std::int64_t offset = 0;  // of bytes[0] in the file, counted after decompression; of a table, the first row
  std::int64_t line = 0;    // .jsonl: the number of the first line, counted from 1; 0 after a seek in a plain file
  std::string bytes;
  std::int64_t too_long = 0;  // the bytes of its one document, where that is longer than allowed: here is its beginning
  std::vector<std::int64_t> ends;  // document i is bytes [ends[i-1] or 0, ends[i]), its separator or newline included
  bool rows = false;               // documents are rows of a table, and their bytes nothing but the text
  std::vector<bool> null = {};     // of rows: those that have no text

  std::int64_t documents() const { return static_cast<std::int64_t>(ends.size()); }
  std::int64_t begin(std::int64_t i) const { return i == 0 ? 0 : ends[static_cast<std::size_t>(i) - 1]; }
  // The place of document i in its file, as seek() takes it: a byte, or a row. place(documents()) is the end.
  std::int64_t place(std::int64_t i) const { return offset + (rows ? i : begin(i)); }
};

class TextInput {
 public:
  // `paths`: files, folders (all files below, sorted) and globs. A missing one is a UserError that starts with `key`.
  TextInput(const std::vector<std::string>& paths, InputFormat format, std::string key);
  ~TextInput();

  // Looks at the beginning of every file: one that is no text is a UserError now, not when its turn comes.
  void check_files() const;

  const std::vector<Path>& files() const;
  std::int64_t bytes_on_disk() const;  // of all files, for progress
  std::int64_t bytes_read() const;     // of them, as far as next() has come; any thread may ask

  // To be called before the first next(): files are hashed as they are read, each from its first byte to its last.
  void hash_files();
  std::vector<FileHash> hashes() const;  // of the files that were read whole, in their order

  // The next documents, about `target_bytes` of them and at most `most_documents`; never across files, at least one
  // document unless it is the end (false). A truncated archive, a text over the limit or a failing disk is a UserError
  // or MachineError that names file and offset. It comes after all documents before it, and the next call goes on with
  // the next file.
  bool next(TextBlock& block, std::int64_t target_bytes, std::int64_t most_documents);
  // Goes to a place where a document begins: a byte, after decompressing up to it, or a row.
  void seek(std::int64_t file, std::int64_t offset);

  // The text of one document of a block: JSON parsed, separator cut off, checked to be UTF-8. May be empty. Any thread
  // may call it. A UserError "FILE:LINE:COLUMN: ..." or "FILE: byte N: ..." when it is malformed or NoSuchField.
  void parse(const TextBlock& block, std::int64_t document, std::string& text) const;
  // The same where lines of JSON are conversations; other files hold text.
  void parse(const TextBlock& block, std::int64_t document, Conversation& conversation) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline::data
