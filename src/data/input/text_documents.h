// The documents of one text or .jsonl file, found from front to back. A buffer of decompressed bytes slides over the
// file; lines are found by memchr and separators by a search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"
#include "data/input/byte_stream.h"
#include "data/input/text_input.h"

namespace redline::data {

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
  void skip_rest_of_line();

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
  bool skipping_ = false;      // the rest of a line that is too long
  std::exception_ptr broken_;  // the file ends here because of this
};

// A UserError where the beginning of a file is not that of text, or of lines of JSON.
void check_beginning(const Path& path, const InputFormat& format, std::string_view beginning);

// "a document of more than 1048576 bytes; a line must be shorter"
std::string too_long_in_words(const Path& path, const InputFormat& format);

[[noreturn]] void fail_shorter(const Path& path, const std::string& size, std::int64_t wanted);

}  // namespace redline::data
