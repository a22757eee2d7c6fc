// The bytes of a file from front to back, decompressed when its name ends in .gz or .zst, and the kind of a file by its
// name and its bytes, so that nothing but text passes for text. Memory is bounded whatever the file says: fixed
// buffers, and a window for zstd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/files.h"

namespace redline::data {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills `to` from its front and returns how many bytes came; fewer than asked for only at the end. A damaged or
  // truncated archive is a UserError that names the file and the byte; a disk that fails is a MachineError.
  virtual std::size_t read(std::span<char> to) = 0;
  virtual std::int64_t consumed() const = 0;  // bytes of the file itself so far
  virtual bool seeks() const { return false; }
  virtual void seek(std::int64_t offset);  // only where seeks()
};

enum class Compression { none, gzip, zstd };
std::string ending_of(const Path& path);       // ".jsonl" of "a.jsonl" and of "A.JSONL"
Compression compression_of(const Path& path);  // by the end of its name

// The largest window that a zstd frame may ask for: 128 MiB, or eight times the file and at most 2 GiB.
std::int64_t zstd_window_limit(std::int64_t file_bytes);

// A .gz that is not gzip is a UserError at the first read(). A .txt that is gzip comes as its bytes, and the reader
// refuses them (why_not_text).
std::unique_ptr<ByteStream> open_byte_stream(const Path& path);
// The same over bytes in memory; `name` decides the compression and stands in the errors.
std::unique_ptr<ByteStream> stream_of(std::span<const char> bytes, const Path& name);

// The reason why bytes are no text, and what to do: "this is a Parquet file, not text; ...". Empty where they may be
// text. `start`: the first bytes of a file, some kilobytes where it has them; `middle`: others of it, or none;
// `separator`: control characters that belong there. Bytes of any kind pass with `any_bytes`, but for formats that wrap
// text, such as archives: they are never meant.
std::string why_not_text(std::string_view start, std::string_view middle, std::string_view separator, bool any_bytes,
                         std::string_view bytes_setting = "data.tokenizer=bytes");

// "an ELF program", from a magic number that is too long to begin a file of tokens by chance; empty: none was found.
std::string_view known_format(std::string_view start);

// The same for a .csv or .tsv, by its name (less .gz or .zst): its rows would be one long document. `separator_key`
// sets a separator, which makes documents of them.
std::string why_not_one_document(const Path& path, std::string_view separator_key);

}  // namespace redline::data
