// Rows begin as those of metrics.jsonl do, so that a file is cut back in the same way.
#include "report/samples_file.h"

#include "io/json.h"
#include "report/appended_rows.h"

namespace redline::report {

std::string samples_row(std::int64_t step, const std::vector<train::SampledText>& texts) {
  io::Json samples = io::Json::array();
  for (const train::SampledText& t : texts) samples.push_back({{"prompt", t.prompt}, {"text", t.text}});
  const io::Json row = {{"step", step}, {"samples", std::move(samples)}};
  return row.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n";
}

void SamplesFile::started(const train::RunHeader& header) { cut_back(files_, path_, header.first_step); }

void SamplesFile::sampled(std::int64_t step, const std::vector<train::SampledText>& texts) {
  if (!file_) file_ = files_.append(path_);
  file_->write(samples_row(step, texts));
}

void SamplesFile::before_checkpoint() {
  if (file_) file_->sync();
}

}  // namespace redline::report
