// The real file system, over POSIX calls: every call is retried when a signal interrupts it, and its failure names
// the path and the system's reason.
#include "base/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/sendfile.h>
#endif

#include <algorithm>
#include <cerrno>
#include <forward_list>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace redline {
namespace {

[[noreturn]] void fail_on(const Path& path, std::string_view doing, int error) {
  // std::strerror shares one buffer among threads; the category's message does not.
  fail_machine("{}: cannot {}: {}", path.string(), doing, std::generic_category().message(error));
}

// The user named the file that is read, or put it there: an error is the user's to mend, unless the disk
// fails.
[[noreturn]] void fail_reading(const Path& path, std::string_view doing, int error) {
  const std::string reason = std::generic_category().message(error);
  if (error == EACCES || error == EPERM)
    throw NoPermission(
        fmt::format("{}: cannot {}: {}; give this user the right to read it", path.string(), doing, reason));
  if (error == ELOOP || error == ENAMETOOLONG)
    fail_user("{}: cannot {}: {}; name another path", path.string(), doing, reason);
  fail_on(path, doing, error);
}

// The user named the place that is written to, too.
[[noreturn]] void fail_writing(const Path& path, std::string_view doing, int error) {
  const std::string reason = std::generic_category().message(error);
  if (error == EACCES || error == EPERM || error == EROFS)
    throw NoPermission(fmt::format("{}: cannot {}: {}; give this user the right to write there, or name another path",
                                   path.string(), doing, reason));
  if (error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG)
    fail_user("{}: cannot {}: {}; name another path", path.string(), doing, reason);
  fail_on(path, doing, error);
}

// A POSIX call until no signal interrupts it.
template <class Call>
auto retried(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

int opened(const Path& path, int flags) {
  return retried([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Path& path, int flags, std::string_view doing) : fd_(opened(path, flags)) {
    if (fd_ < 0) fail_writing(path, doing, errno);
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&&) = delete;

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct stat status_of(const Descriptor& file, const Path& path) {
  struct stat status;
  if (::fstat(file.get(), &status) != 0) fail_on(path, "ask for the size", errno);
  return status;
}

// Nothing but a file: a pipe that lies in a folder under a file's name would be waited for without end.
Descriptor open_to_read(const Path& path) {
  Descriptor file(opened(path, O_RDONLY | O_NONBLOCK));
  if (file.get() < 0) fail_reading(path, "open", errno);
  if (!S_ISREG(status_of(file, path).st_mode))
    fail_user("{}: not a file but a folder, a pipe or a device; put a file there, or name another path", path.string());
  return file;
}

// Bytes of a large file that lie in the system's memory before they are sent to the disk: it works while more are made,
// and sync() has little left to wait for.
constexpr off_t kSentAtOnce = off_t{16} << 20;

class RealWriter final : public FileWriter {
 public:
  using FileWriter::write;

  RealWriter(const Path& path, int flags, std::string_view doing) : path_(path), file_(path, flags, doing) {}

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = retried([&] { return ::write(file_.get(), bytes.data(), bytes.size()); });
      if (written < 0) fail_on(path_, "write", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      send_on_their_way(written);
    }
  }

  void sync() override {
    if (retried([&] { return ::fsync(file_.get()); }) != 0) fail_on(path_, "sync", errno);
  }

  void close() override {
    const int fd = file_.release();
    // Not retried: Linux has freed the descriptor even when close() says EINTR.
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail_on(path_, "close", errno);
  }

 private:
  // A wish: where the system knows no such thing, or the disk fails, sync() does all of it and says so.
  void send_on_their_way([[maybe_unused]] ssize_t written) {
#ifdef __linux__
    written_ += written;
    if (written_ - sent_ < kSentAtOnce) return;
    ::sync_file_range(file_.get(), sent_, written_ - sent_, SYNC_FILE_RANGE_WRITE);
    sent_ = written_;
#endif
  }

  Path path_;
  Descriptor file_;
  off_t written_ = 0, sent_ = 0;  // by this writer; of a file that is appended to, an earlier range is sent: no harm
};

class RealStretchWriter final : public StretchWriter {
 public:
  explicit RealStretchWriter(const Path& path) : path_(path), file_(path, O_WRONLY | O_NOFOLLOW, "open to write") {}

  void write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    auto at = static_cast<off_t>(offset);
    while (!bytes.empty()) {
      const ssize_t written = retried([&] { return ::pwrite(file_.get(), bytes.data(), bytes.size(), at); });
      if (written < 0) fail_on(path_, "write", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      at += written;
    }
  }
  void sync() override {
    if (retried([&] { return ::fsync(file_.get()); }) != 0) fail_on(path_, "sync", errno);
  }
  void close() override {
    const int fd = file_.release();
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail_on(path_, "close", errno);  // as RealWriter::close()
  }

 private:
  Path path_;
  Descriptor file_;
};

class RealFiles final : public FileSystem {
 public:
  std::unique_ptr<FileWriter> create(const Path& path) override {
    // Names of what is being written can be foreseen: a link that somebody put there must not lead to another file.
    struct stat status;
    if (::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode))
      fail_user("{}: a symbolic link is in the way, and is not followed; remove it", path.string());
    return std::make_unique<RealWriter>(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, "create");
  }

  std::unique_ptr<FileWriter> append(const Path& path) override {
    return std::make_unique<RealWriter>(path, O_WRONLY | O_CREAT | O_APPEND, "open to append");
  }

  std::string read(const Path& path) override {
    constexpr std::uint64_t kMost = std::uint64_t{4} << 30;  // metrics.jsonl of some million steps
    const auto bytes = static_cast<std::uint64_t>(status_of(open_to_read(path), path).st_size);
    if (bytes > kMost)
      fail_user("{}: {} bytes are more than such a file has; it is damaged, or not what its name says", path.string(),
                bytes);
    std::string text;
    read_pieces(path, [&](std::span<const std::byte> piece) {
      text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    return text;
  }

  void read_pieces(const Path& path, const std::function<void(std::span<const std::byte>)>& take) override {
    constexpr std::size_t kPiece = std::size_t{1} << 20;
    const Descriptor file = open_to_read(path);
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kPiece);
    for (;;) {
      const ssize_t got = retried([&] { return ::read(file.get(), buffer.get(), kPiece); });
      if (got < 0) fail_reading(path, "read", errno);
      if (got == 0) return;
      take({buffer.get(), static_cast<std::size_t>(got)});
    }
  }

  bool exists(const Path& path) override {
    struct stat status;
    if (::stat(path.c_str(), &status) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    fail_reading(path, "look", errno);
  }

  std::uint64_t size(const Path& path) override {
    struct stat status;
    if (::stat(path.c_str(), &status) != 0) fail_reading(path, "ask for the size", errno);
    return static_cast<std::uint64_t>(status.st_size);
  }

  void create_folders(const Path& path) override {
    std::vector<Path> missing;
    for (Path folder = path.lexically_normal(); !folder.empty() && !exists(folder); folder = folder.parent_path()) {
      if (folder.has_filename()) missing.push_back(folder);  // "a/b/" has an empty last name
    }
    std::reverse(missing.begin(), missing.end());
    for (const Path& folder : missing) {
      if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) fail_writing(folder, "create the folder", errno);
      sync_folder(parent_of(folder));
    }
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) fail_writing(path, "create the folder", ENOTDIR);
  }

  void rename(const Path& from, const Path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail_writing(from, "rename to " + to.string(), errno);
  }

  void remove_all(const Path& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) fail_writing(path, "remove", error.value());
  }

  void truncate(const Path& path, std::uint64_t size) override {
    if (retried([&] { return ::truncate(path.c_str(), static_cast<off_t>(size)); }) != 0) {
      fail_writing(path, "truncate", errno);
    }
  }

  void sync_folder(const Path& path) override {
    const Descriptor folder(path, O_RDONLY | O_DIRECTORY, "open the folder");
    // Some network file systems have nothing to sync for a folder and say EINVAL.
    if (retried([&] { return ::fsync(folder.get()); }) != 0 && errno != EINVAL) fail_on(path, "sync the folder", errno);
  }

  std::vector<std::string> list(const Path& folder) override {
    std::vector<std::string> names;
    if (!exists(folder)) return names;
    std::error_code error;
    for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) fail_reading(folder, "list the folder", error.value());
    std::sort(names.begin(), names.end());
    return names;
  }
};

}  // namespace

Path parent_of(const Path& path) {
  const Path named = path.has_filename() ? path : path.parent_path();
  return named.has_parent_path() ? named.parent_path() : Path(".");
}

namespace {
// The mappings of now, to tell which file's byte could not be read. A handler reads it without the lock: the
// process ends there, and a list that changes at that moment costs the sentence, no more.
struct Mapping {
  std::span<const std::byte> bytes;
  Path path;
};
std::forward_list<Mapping> g_mappings;
std::mutex g_mappings_change;
}  // namespace

std::unique_ptr<StretchWriter> open_stretches(const Path& path) { return std::make_unique<RealStretchWriter>(path); }

MappedFile::MappedFile(const Path& path) {
  const Descriptor file = open_to_read(path);
  const auto size = static_cast<std::size_t>(status_of(file, path).st_size);
  if (size == 0) return;  // mmap refuses a length of zero
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) fail_on(path, "map", errno);
  bytes_ = {static_cast<const std::byte*>(address), size};
  const std::lock_guard lock(g_mappings_change);
  g_mappings.push_front({bytes_, path});
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  const std::lock_guard lock(g_mappings_change);
  std::erase_if(g_mappings, [&](const Mapping& m) { return m.bytes.data() == bytes_.data(); });
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedByte mapped_at(const void* address) {
  const auto* const byte = static_cast<const std::byte*>(address);
  for (const auto& [bytes, path] : g_mappings)
    if (byte >= bytes.data() && byte < bytes.data() + bytes.size())
      return {path.c_str(), static_cast<std::uint64_t>(byte - bytes.data())};
  return {};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

InputFile::InputFile(const Path& path) : path_(path), fd_(open_to_read(path).release()) {}

InputFile::~InputFile() { ::close(fd_); }

void InputFile::read(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = retried([&] { return ::pread(fd_, into.data(), into.size(), static_cast<off_t>(offset)); });
    if (got < 0) fail_reading(path_, "read", errno);
    if (got == 0)
      fail_user("{}: cannot read: it ends at byte {}, earlier than it did; bring it back whole", path_.string(),
                offset);
    offset += static_cast<std::uint64_t>(got);
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

void InputFile::fetch(std::uint64_t offset, std::uint64_t bytes) const {
  const std::uint64_t end = offset + bytes;
#ifdef __linux__
  // Pages that are sent nowhere are not copied: 41 ms of a core for 3.4 GB from the disk, and 175 where they are read.
  static const Descriptor nowhere("/dev/null", O_WRONLY, "open");
  while (offset < end) {
    auto at = static_cast<off_t>(offset);
    const ssize_t sent = retried([&] { return ::sendfile(nowhere.get(), fd_, &at, end - offset); });
    if (sent <= 0) break;  // not every file can be sent
    offset = static_cast<std::uint64_t>(at);
  }
#endif
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 18;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(kPiece, end - offset)));
  for (; offset < end; offset += piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min(kPiece, end - offset)));
    read(offset, piece);
  }
}

void FileSystem::replace(const Path& path, std::string_view text) {
  Path beside = path;
  beside += ".partial";
  const std::unique_ptr<FileWriter> writer = create(beside);  // what cannot be made is not ours to remove
  try {
    writer->write(text);
    writer->sync();
    writer->close();
    rename(beside, path);
  } catch (...) {
    try {
      remove_all(beside);
    } catch (const std::exception&) {  // the first failure is the one to tell
    }
    throw;
  }
  sync_folder(parent_of(path));
}

FileSystem& real_files() {
  static RealFiles files;
  return files;
}

std::string read_at_most(FileSystem& files, const Path& path, std::uint64_t most) {
  // The size first: a sparse file of gigabytes costs nothing to make.
  if (const std::uint64_t size = files.size(path); size > most)
    fail_user("{}: it has {} bytes, and such a file at most {}; it is damaged, or not what its name says",
              path.string(), size, most);
  return files.read(path);
}

}  // namespace redline
