// events.jsonl has the events of a run beside its steps, one object each: start, choices, resumes, checkpoints,
// warnings, end. It is a history: a resume adds to it and removes nothing.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"
#include "io/json.h"
#include "report/log_file.h"
#include "train/observer.h"

namespace redline::report {

inline constexpr int kEventsVersion = 1;

class EventsFile final : public train::Observer {
 public:
  EventsFile(FileSystem& files, Path path, std::string program)
      : files_(files), path_(std::move(path)), program_(std::move(program)), file_(files) {}

  void on(const train::Event& event) override;

 private:
  void start(const train::RunHeader& header);
  void add(double time, const char* kind, io::Json fields);
  void write(const io::Json& row);

  FileSystem& files_;
  Path path_;
  std::string program_;  // "redline 0.1.0"
  std::int64_t step_ = 0;
  LogFile file_;
  std::vector<io::Json> early_;  // rows told before the run had a folder
};

}  // namespace redline::report
