// The file system as an interface, so that tests can make every write fail in turn. An error is a MachineError with
// the path and the system's reason; a path without permission, or that is no file, is a UserError. Callers look with
// exists() first, since they know what to say of a missing file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace redline {

using Path = std::filesystem::path;

Path parent_of(const Path& path);  // "a" for "a/b" and "a/b/", "." for "b"

// A file being written. Bytes are safe only after sync() has returned.
class FileWriter {
 public:
  virtual ~FileWriter() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  virtual void sync() = 0;   // to the disk
  virtual void close() = 0;  // reports errors, which a destructor cannot
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
};

// A whole file mapped read-only. An empty file has no bytes.
class MappedFile {
 public:
  explicit MappedFile(const Path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// The mapped file that a byte of memory belongs to; its path is empty where there is none. Safe in a signal handler.
struct MappedByte {
  const char* path = "";
  std::uint64_t offset = 0;
};
MappedByte mapped_at(const void* address);

// A file that threads read parts of. It is the faster way to all of a large file: a mapping costs a page fault every
// few pages, which takes longer than the copy.
class InputFile {
 public:
  explicit InputFile(const Path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  void read(std::uint64_t offset, std::span<std::byte> into) const;  // UserError where the file ends before
  // Brings bytes from the disk into the system's memory, from where read() copies them, and returns when they are
  // there.
  void fetch(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  Path path_;
  int fd_;
};

// The user may not read or write the path. Nothing more is known of it: it is neither missing nor damaged.
struct NoPermission : UserError {
  using UserError::UserError;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<FileWriter> create(const Path& path) = 0;  // truncates; follows no link
  virtual std::unique_ptr<FileWriter> append(const Path& path) = 0;
  virtual std::string read(const Path& path) = 0;  // all of it; over 4 GiB is a UserError
  // Gives the bytes of the file in order, a piece at a time: for files that need not fit in memory.
  virtual void read_pieces(const Path& path, const std::function<void(std::span<const std::byte>)>& take) = 0;
  virtual bool exists(const Path& path) = 0;
  virtual std::uint64_t size(const Path& path) = 0;
  virtual void create_folders(const Path& path) = 0;          // durable when it returns
  virtual void rename(const Path& from, const Path& to) = 0;  // atomic within a file system
  virtual void remove_all(const Path& path) = 0;
  virtual void truncate(const Path& path, std::uint64_t size) = 0;
  virtual void sync_folder(const Path& path) = 0;                 // makes creations and renames in it durable
  virtual std::vector<std::string> list(const Path& folder) = 0;  // names, sorted; empty when there is no such folder

  // Writes beside, syncs, renames over `path`, syncs the folder: readers see the old or the new text, never a part.
  void replace(const Path& path, std::string_view text);
};

FileSystem& real_files();

// All of a small file. A file that is too large (damaged, or a trap) is refused before its bytes fill the memory: a
// UserError where it has more than `most` bytes.
std::string read_at_most(FileSystem& files, const Path& path, std::uint64_t most);

// Writes at any offset of an existing file, while other ranks may write elsewhere in it: one rank's part of a
// checkpoint.
class StretchWriter {
 public:
  virtual ~StretchWriter() = default;
  virtual void write(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void sync() = 0;   // to the disk
  virtual void close() = 0;  // reports errors, which a destructor cannot
};

// Tests have one that fails (tests/testing/failing_files.h).
using OpenStretches = std::function<std::unique_ptr<StretchWriter>(const Path& path)>;
std::unique_ptr<StretchWriter> open_stretches(const Path& path);  // of the real file system; follows no link

}  // namespace redline
