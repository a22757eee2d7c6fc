// The folder that prepared data goes to: what may be written over, what is ours to remove, and what makes it whole.
#pragma once

#include <string>
#include <string_view>

#include "base/files.h"

namespace redline::data {

class OutputFolder {
 public:
  // Takes a folder that is not there, is empty, or holds what an interrupted run left, which is then removed. Anything
  // else is a UserError, and nothing is touched: prepared data, files we did not make, a run that is still going on.
  OutputFolder(FileSystem& files, Path folder);
  // What is not whole goes, as far as it can: then the folder is as it was before.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const Path& path() const { return folder_; }
  bool started_over() const { return started_over_; }
  // Writes the manifest: from here on the folder is whole.
  void complete(std::string_view manifest);

 private:
  void remove_ours();
  void clean_up() noexcept;

  FileSystem& files_;
  Path folder_;
  bool created_ = false, started_over_ = false, whole_ = false;
};

}  // namespace redline::data
