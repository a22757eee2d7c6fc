// Files of one JSON object a line that a run adds to over its whole life, resumes included.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/files.h"
#include "train/observer.h"

namespace redline::report {

// A file that a run appends to, one row or record at a time. After a failed append the file is cut back and opened
// anew: half a row would spoil the next one, and half a record all that follow.
class LogFile {
 public:
  explicit LogFile(FileSystem& files) : files_(files) {}

  void open(const Path& path);  // appends to an existing file
  bool opened() const { return !path_.empty(); }

  void write(std::string_view piece);
  void sync();

 private:
  void cut_back();
  template <class Do>
  void attempt(Do work);

  FileSystem& files_;
  Path path_;
  std::unique_ptr<FileWriter> file_;  // none: not opened yet, or it failed
  std::uint64_t size_ = 0;            // of all complete appends
};

// A file of rows as the sink of a run. Rows are written whole, so a reader that follows the file never sees a part of
// one. On a resume or a rollback, files of steps are cut back to the step the run goes on from; a history is not. Rows
// that cannot be read are reported and stay in the file: the rest of the history is worth keeping.
class RowsFile final : public train::Observer {
 public:
  enum Kind { every_step, some_steps, history };  // every_step: the file exists from the start; else from its first row
  using Row = std::function<std::string(const train::Event&)>;  // with its newline; empty: the event has none
  RowsFile(FileSystem& files, Path path, Kind kind, Row row)
      : files_(files), path_(std::move(path)), kind_(kind), row_(std::move(row)), file_(files) {}

  void on(const train::Event& event) override;

 private:
  void open();

  FileSystem& files_;
  Path path_;
  Kind kind_;
  Row row_;
  LogFile file_;
};

RowsFile metrics_file(FileSystem& files, Path path);   // metrics.jsonl
RowsFile fp8_file(FileSystem& files, Path path);       // fp8.jsonl, where products are in eight bits
RowsFile norms_file(FileSystem& files, Path path);     // norms.jsonl, where log.norms_every is set
RowsFile router_file(FileSystem& files, Path path);    // router.jsonl, where layers have experts
RowsFile samples_file(FileSystem& files, Path path);   // samples.jsonl, where train.sample_every is set
RowsFile pipeline_file(FileSystem& files, Path path);  // data_pipeline.jsonl, where data.debug is on

// goodput.jsonl: where the time of each session went so far, one object every few seconds. A history: a resume adds to
// it and takes nothing back, so that what a crash cost is known.
RowsFile goodput_file(FileSystem& files, Path path);

// events.jsonl: what happened in a run besides its steps, one object an event: where it started and with what, what was
// chosen, resumes, checkpoints, warnings, and how it ended. A history as well.
inline constexpr int kEventsVersion = 1;
RowsFile events_file(FileSystem& files, Path path, std::string program);  // program: "redline 0.1.0"

}  // namespace redline::report
