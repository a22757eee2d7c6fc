// Documents as people keep them (text files, .jsonl, both also .gz and .zst; Parquet) read from front to back. Reading
// finds where documents begin and end and is done by one thread; parsing a document is left to whoever has a core free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/input/conversation.h"

namespace redline::data {

// How documents stand in the files. A file whose name (less .gz or .zst) ends in .jsonl, .ndjson or .json holds one
// JSON object a line (blank lines are passed over); any other is text. A byte order mark at the start of a file is no
// text. What is neither (data/input/file_kind.h) is an error, and so is a .csv without a separator. Each row of a
// .parquet is a document.
struct InputFormat {
  std::string text_field = "text";  // of each JSON object; "meta.text" is a field of a field; a column of Parquet
  std::string separator;            // between the documents of a text file; empty: a file is one document
  std::int64_t longest_document = std::int64_t{1} << 30;  // bytes; a longer one is an error, not more memory
  std::string longest_is = {};                            // where that limit comes from: "a sixteenth of data.ram_mib"
  std::string text_field_key = "data.text_field", separator_key = "data.separator";  // how both are set
};

// A line of JSON or a Parquet file that has no such field as text_field. To pass over it would be to pass over all of
// them.
struct NoSuchField : UserError {
  using UserError::UserError;
};

// A document that takes more memory than there is for it. Which documents there are must not follow from that.
struct TooLong : UserError {
  using UserError::UserError;
};

bool is_json_lines(const Path& path);  // by its name

// A separator as it is typed or stands in a configuration: \n, \r, \t, \0 and \\ are what they are in C. `key` leads
// the UserError.
std::string separator_of(const std::string& typed, std::string_view key);

// Some whole documents, as they stand in one file.
struct TextBlock {
  std::int64_t file = 0;    // index into TextInput::files()
  std::int64_t offset = 0;  // of bytes[0] in the file, counted after decompression; of a table, the first row
  std::int64_t line = 0;    // .jsonl: the number of the first line, counted from 1; 0 after a seek in a plain file
  std::string bytes;
  bool too_long = false;  // its one document is over InputFormat::longest_document, and only the beginning is here
  std::vector<std::int64_t> ends;  // document i is bytes [ends[i-1] or 0, ends[i]), its separator or newline included
  bool rows = false;               // documents are rows of a table, and their bytes nothing but the text
  std::vector<bool> null = {};     // of rows: those that have no text

  std::int64_t documents() const { return static_cast<std::int64_t>(ends.size()); }
  std::int64_t begin(std::int64_t i) const { return i == 0 ? 0 : ends[static_cast<std::size_t>(i) - 1]; }
  // Where document i stands in its file, as seek() takes it: a byte, or a row. That of documents() is the end.
  std::int64_t place(std::int64_t i) const { return offset + (rows ? i : begin(i)); }
};

class TextInput {
 public:
  // `paths`: files, folders (all files below, sorted) and globs. What is missing is a UserError that starts with `key`.
  TextInput(const std::vector<std::string>& paths, InputFormat format, std::string key);
  ~TextInput();

  // Looks at the beginning of every file: what is no text is a UserError now, not when its turn comes.
  void check_files() const;

  const std::vector<Path>& files() const;
  std::int64_t bytes_on_disk() const;  // of all files: what progress is counted against
  std::int64_t bytes_read() const;     // of them, as far as next() has come; any thread may ask

  // The next documents, about `target_bytes` of them and at most `most_documents`; never across files, at least one
  // document unless it is the end (false). A truncated archive, a text over the limit or a failing disk is a
  // UserError or MachineError that names file and offset; what stood before it has been given, and the next call goes
  // on with the next file.
  bool next(TextBlock& block, std::int64_t target_bytes, std::int64_t most_documents);
  // Goes to a place where a document begins (a byte, after decompressing up to it, or a row), so that next() goes on
  // from there.
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
