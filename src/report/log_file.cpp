// After a failure the file is cut back and opened anew: half a row would spoil the next one, and half a record all that
// follow.
#include "report/log_file.h"

namespace redline::report {

void LogFile::open(const Path& path) {
  if (path.has_parent_path()) files_.create_folders(path.parent_path());
  file_ = files_.append(path);
  size_ = files_.size(path);
  path_ = path;
}

// Needs no room, so that it mostly works where writing did not.
void LogFile::cut_back() {
  if (files_.exists(path_) && files_.size(path_) > size_) files_.truncate(path_, size_);
}

template <class Do>
void LogFile::attempt(Do work) {
  if (!file_) {
    cut_back();
    open(path_);
  }
  try {
    work();
  } catch (...) {
    file_.reset();
    try {
      cut_back();
    } catch (const std::exception&) {  // the next attempt says it
    }
    throw;
  }
}

void LogFile::write(std::string_view piece) {
  attempt([&] { file_->write(piece); });
  size_ += piece.size();
}

// A file that is deleted while it is open takes all that is written, and nobody will ever read it.
void LogFile::sync() {
  attempt([&] {
    if (!files_.exists(path_))
      fail_machine("{} was deleted or moved under the run, with what was in it", path_.string());
    file_->sync();
  });
}

}  // namespace redline::report
