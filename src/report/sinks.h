// The places a run tells of itself, as log.sinks chooses them, behind one observer.
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
  // `program` is what wrote the files ("redline 0.1.0"). A dry run has the console alone.
  Sinks(FileSystem& files, const config::Config& config, const Path& folder, std::string program, bool dry_run);
  ~Sinks();

  train::Observer& observer();

  // Writes down what ended the run. What goes wrong with that does not hide the reason.
  void record_failure(const std::string& sentence) noexcept;

 private:
  void add(std::unique_ptr<train::Observer> observer, std::string name, bool hears_log = true);

  std::vector<std::unique_ptr<train::Observer>> observers_;
  std::unique_ptr<Relay> relay_;
};

}  // namespace redline::report
