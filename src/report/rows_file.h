// Files of one JSON object a line that a run adds to over its whole life, resumes included.
#pragma once

#include <functional>
#include <string>

#include "base/files.h"
#include "report/log_file.h"
#include "train/observer.h"

namespace redline::report {

// Such a file as the sink of a run. Rows are written whole, so a reader that follows the file never sees a part of one.
// On a resume or a rollback, files of steps are cut back to the step the run goes on from; a history is not. Rows that
// cannot be read are reported and stay in the file: the rest of the history is worth keeping.
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
