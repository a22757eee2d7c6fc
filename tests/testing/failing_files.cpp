// The counting and the failing; all real work is the wrapped file system's. Syncs are counted and may fail, but none
// reaches the disk: no test looks behind a power cut, and they were most of the wall time of those that save often.
#include "testing/failing_files.h"

#include <utility>

#include "base/error.h"

namespace redline::testing {
namespace {

[[noreturn]] void fail_no_space(const Path& path, const char* doing) {
  fail_machine("{}: cannot {}: no space left on device", path.string(), doing);
}

}  // namespace

class FailingWriter final : public FileWriter {
 public:
  using FileWriter::write;

  FailingWriter(FailingFiles& files, Path path, std::unique_ptr<FileWriter> real)
      : files_(files), path_(std::move(path)), real_(std::move(real)) {}

  void write(std::span<const std::byte> bytes) override {
    const bool failed_before = files_.failed_;
    if (files_.fails(FailingFiles::Needs::room, path_)) {
      if (!failed_before) real_->write(bytes.first(bytes.size() / 2));
      fail_no_space(path_, "write");
    }
    real_->write(bytes);
  }
  void sync() override { files_.change(FailingFiles::Needs::room, path_, "sync"); }
  void close() override {
    files_.change(FailingFiles::Needs::nothing, path_, "close");
    real_->close();
  }

 private:
  FailingFiles& files_;
  Path path_;
  std::unique_ptr<FileWriter> real_;
};

class FailingStretchWriter final : public StretchWriter {
 public:
  FailingStretchWriter(FailingFiles& files, const Path& path)
      : files_(files), path_(path), real_(redline::open_stretches(path)) {}

  void write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const bool failed_before = files_.failed_;
    if (files_.fails(FailingFiles::Needs::room, path_)) {
      if (!failed_before) real_->write(offset, bytes.first(bytes.size() / 2));
      fail_no_space(path_, "write");
    }
    real_->write(offset, bytes);
  }
  void sync() override { files_.change(FailingFiles::Needs::room, path_, "sync"); }
  void close() override {
    files_.change(FailingFiles::Needs::nothing, path_, "close");
    real_->close();
  }

 private:
  FailingFiles& files_;
  Path path_;
  std::unique_ptr<StretchWriter> real_;
};

void FailingFiles::fail_at(std::int64_t nth, Failure failure) {
  changes_ = 0;
  failed_ = false;
  nth_ = nth;
  failure_ = failure;
}

bool FailingFiles::fails(Needs needs, const Path& path) {
  before_change(path);
  if (changes_++ == nth_) return failed_ = true;
  if (!failed_) return false;
  return failure_ == Failure::death || (failure_ == Failure::full_disk && needs == Needs::room);
}

void FailingFiles::change(Needs needs, const Path& path, const char* doing) {
  if (fails(needs, path)) fail_no_space(path, doing);
}

std::unique_ptr<FileWriter> FailingFiles::create(const Path& path) {
  change(Needs::room, path, "create");
  return std::make_unique<FailingWriter>(*this, path, real_.create(path));
}

std::unique_ptr<FileWriter> FailingFiles::append(const Path& path) {
  change(Needs::room, path, "open to append");
  return std::make_unique<FailingWriter>(*this, path, real_.append(path));
}

std::unique_ptr<StretchWriter> FailingFiles::open_stretches(const Path& path) {
  change(Needs::nothing, path, "open to write");
  return std::make_unique<FailingStretchWriter>(*this, path);
}

void FailingFiles::create_folders(const Path& path) {
  change(Needs::room, path, "create the folder");
  real_.create_folders(path);
}

void FailingFiles::rename(const Path& from, const Path& to) {
  change(Needs::nothing, from, "rename");
  real_.rename(from, to);
}

void FailingFiles::remove_all(const Path& path) {
  const bool failed_before = failed_;
  if (fails(Needs::nothing, path)) {
    if (!failed_before && std::filesystem::is_directory(path)) {
      const std::vector<std::string> names = real_.list(path);
      for (std::size_t i = 0; i < (names.size() + 1) / 2; ++i) real_.remove_all(path / names[i]);
    }
    fail_no_space(path, "remove");
  }
  real_.remove_all(path);
}

void FailingFiles::truncate(const Path& path, std::uint64_t size) {
  change(Needs::nothing, path, "truncate");
  real_.truncate(path, size);
}

void FailingFiles::sync_folder(const Path& path) {
  change(Needs::room, path, "sync the folder");
  if (!real_.exists(path)) real_.sync_folder(path);  // says what is missing
}

}  // namespace redline::testing
