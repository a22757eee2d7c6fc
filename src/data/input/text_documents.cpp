// Blocks are cut where they suit the reader, which changes no document.
#include "data/input/text_documents.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "data/input/file_kind.h"
#include "data/input/parquet_library.h"

namespace redline::data {
namespace {

constexpr std::size_t kRead = std::size_t{1} << 18;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == line.npos; }

}  // namespace

void check_beginning(const Path& path, const InputFormat& format, std::string_view beginning) {
  const bool json = is_json_lines(path);
  std::string why;
  if (format.separator.empty()) why = why_not_one_document(path, format.separator_key);
  // The parser of JSON tells better what is wrong with JSON.
  const std::string_view look = json ? beginning.substr(0, std::min(beginning.find('{'), beginning.size())) : beginning;
  if (why.empty()) why = why_not_text(look, {}, format.separator, false);
  const std::size_t first = beginning.find_first_not_of(" \t\r\n");
  if (why.empty() && json && first != beginning.npos && beginning[first] == '[')
    why =
        "this is one JSON array, and must be objects, { ... }, a line each; jq -c '.[]' FILE > NEW.jsonl writes them "
        "so";
  if (!why.empty()) fail_user("{}: {}", path.string(), why);
}

std::string too_long_in_words(const Path& path, const InputFormat& format) {
  return fmt::format("a document of more than {} bytes{}; {}", format.longest_document,
                     format.longest_is.empty() ? "" : ", " + format.longest_is,
                     is_json_lines(path) ? "a line must be shorter"
                     : is_parquet(path)  ? "a row must be shorter"
                                         : "cut it with " + format.separator_key);
}

void fail_shorter(const Path& path, const std::string& size, std::int64_t wanted) {
  fail_user("{}: only {}, fewer than the {} that were read before; has the file changed?", path.string(), size, wanted);
}

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
  if (skipping_) skip_rest_of_line();
  std::size_t taken = 0;  // bytes from `start_` on that are whole documents
  const auto full = [&] { return block.documents() >= most || static_cast<std::int64_t>(scanned_ - start_) >= target; };
  while (block.ends.empty() || !full()) {
    const std::size_t end = document_end(start_ + taken);
    const bool found = end != std::string::npos;
    if (block.ends.empty()) drop_blank_lines();
    const std::size_t length = (found ? end : pending_.size()) - start_ - taken;
    if (length > static_cast<std::size_t>(format_.longest_document)) {
      if (!block.ends.empty()) break;
      if (json_) return give_beginning(block), true;
      throw TooLong(fmt::format("{}: byte {}: {}", path_.string(), offset_, too_long_in_words(path_, format_)));
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
  block.bytes.assign(pending_, start_, taken);
  advance(taken);
  scanned_ = start_;  // the bytes behind may hold ends that there was no room for
  return true;
}

// Makes bytes before `start_` free, then reads some more behind the rest.
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

// A line that is too long is one malformed document: its beginning stands for it, and the next line is found again.
void TextDocuments::give_beginning(TextBlock& block) {
  constexpr std::size_t kShown = 64;
  block.too_long = skipping_ = true;
  block.offset = offset_;
  block.line = line_;
  block.bytes.assign(pending_, start_, std::min(kShown, pending_.size() - start_));
  block.ends = {static_cast<std::int64_t>(block.bytes.size())};
}

void TextDocuments::skip_rest_of_line() {
  while (skipping_) {
    const std::size_t newline = pending_.find('\n', start_);
    advance((newline == pending_.npos ? pending_.size() : newline + 1) - start_);
    scanned_ = start_;
    skipping_ = newline == pending_.npos && !at_end_;
    if (skipping_) read_more();
  }
}

}  // namespace redline::data
