// The sinks that log.sinks chooses, behind one observer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "config/config.h"
#include "train/observer.h"

namespace redline::report {

class Relay;

class Sinks {
 public:
  // `program` is written into the files ("redline 0.1.0"). A dry run has the console alone.
  Sinks(FileSystem& files, const config::Config& config, const Path& folder, std::string program, bool dry_run);
  ~Sinks();

  train::Observer& observer();

  // Records the error that ended the run. A failure to write it is ignored, since it must not hide that error.
  void record_failure(const std::string& sentence) noexcept;

 private:
  void add(std::unique_ptr<train::Observer> observer, std::string name, bool hears_log = true);

  std::vector<std::unique_ptr<train::Observer>> observers_;
  std::unique_ptr<Relay> relay_;
};

}  // namespace redline::report
