// One row an interval, appended: a run that goes on adds to what it had.
#include "report/pipeline_file.h"

#include "base/clock.h"
#include "io/json.h"
#include "report/appended_rows.h"

namespace redline::report {

std::string pipeline_row(const data::PipelineFigures& figures, double time, std::int64_t step) {
  io::Json stages = io::Json::array();
  for (const data::StageFigures& s : figures.stages)
    stages.push_back({{"name", s.name},
                      {"threads", s.threads},
                      {"items_per_s", s.items_per_s},
                      {"tokens_per_s", s.tokens_per_s},
                      {"busy", s.busy},
                      {"waiting", s.waiting}});
  const io::Json row = {{"time", time},
                        {"step", step},
                        {"seconds", figures.seconds},
                        {"slowest", figures.slowest},
                        {"stages", std::move(stages)},
                        {"chunks_ready", figures.chunks_ready},
                        {"batches_ready", figures.batches_ready},
                        {"batches_room", figures.batches_room},
                        {"held_mib", figures.held_mib}};
  return row.dump() + "\n";
}

void PipelineFile::pipeline(const data::PipelineFigures& figures) {
  if (!file_) file_ = append_rows(files_, path_);
  file_->write(pipeline_row(figures, unix_seconds(), step_));
}

}  // namespace redline::report
