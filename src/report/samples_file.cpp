// Rows begin as those of metrics.jsonl do, so that a file is cut back in the same way.
#include "report/samples_file.h"

#include "io/json.h"
#include "report/metrics_file.h"

namespace redline::report {

std::string samples_row(std::int64_t step, const std::vector<train::SampledText>& texts) {
  io::Json samples = io::Json::array();
  for (const train::SampledText& t : texts) samples.push_back({{"prompt", t.prompt}, {"text", t.text}});
  const io::Json row = {{"step", step}, {"samples", std::move(samples)}};
  return row.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n";
}

void SamplesFile::started(const train::RunHeader& header) {
  if (!files_.exists(path_)) return;
  const std::string text = files_.read(path_);
  if (const std::size_t kept = whole_rows(text, header.first_step); kept < text.size()) files_.truncate(path_, kept);
}

void SamplesFile::sampled(std::int64_t step, const std::vector<train::SampledText>& texts) {
  if (!file_) file_ = files_.append(path_);
  file_->write(samples_row(step, texts));
}

void SamplesFile::before_checkpoint() {
  if (file_) file_->sync();
}

}  // namespace redline::report
