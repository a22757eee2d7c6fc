// Cuts a torn end, or the steps that a run goes back on, and turns events into rows.
#include "report/rows_file.h"

#include <charconv>

#include "base/clock.h"
#include "io/json.h"
#include "report/metrics.h"

namespace redline::report {
namespace {

constexpr std::string_view kStepRowStart = "{\"step\":";  // of a row that belongs to a step

// The step of one line without its newline; -1 when it is not a whole row of ours.
std::int64_t step_of(std::string_view line) {
  if (!line.starts_with(kStepRowStart) || !line.ends_with('}')) return -1;
  line.remove_prefix(kStepRowStart.size());
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  return error == std::errc() && end != line.data() + line.size() && *end == ',' ? step : -1;
}

// How many bytes are whole rows of steps up to `last_step`.
std::size_t whole_rows(std::string_view text, std::int64_t last_step) {
  std::size_t kept = 0;
  for (std::size_t end; (end = text.find('\n', kept)) != text.npos; kept = end + 1) {
    const std::int64_t step = step_of(text.substr(kept, end - kept));
    if (step < 0 || step > last_step) break;
  }
  return kept;
}

// Leaves the whole rows of steps up to `last_step`, where there is a file. A row that a crash tore goes, and all that
// follows it.
void cut_back(FileSystem& files, const Path& path, std::int64_t last_step) {
  if (!files.exists(path)) return;
  const std::string text = files.read(path);
  if (const std::size_t kept = whole_rows(text, last_step); kept < text.size()) files.truncate(path, kept);
}

std::string samples_row(const train::Sampled& sampled) {
  io::Json samples = io::Json::array();
  for (const train::SampledText& t : sampled.texts) samples.push_back({{"prompt", t.prompt}, {"text", t.text}});
  const io::Json row = {{"step", sampled.step}, {"samples", std::move(samples)}};
  return row.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n";
}

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

// The rows that events of one kind give.
template <class E, class Write>
RowsFile::Row rows_of(Write write) {
  return [write](const train::Event& event) {
    const E* e = std::get_if<E>(&event);
    return e ? write(*e) : std::string();
  };
}

}  // namespace

std::unique_ptr<FileWriter> append_rows(FileSystem& files, const Path& path) {
  if (files.exists(path)) {
    const std::string text = files.read(path);
    const std::size_t newline = text.rfind('\n'), kept = newline == text.npos ? 0 : newline + 1;
    if (kept < text.size()) files.truncate(path, kept);
  }
  return files.append(path);
}

void RowsFile::open() {
  if (file_) return;
  if (path_.has_parent_path()) files_.create_folders(path_.parent_path());
  file_ = kind_ == history ? append_rows(files_, path_) : files_.append(path_);
}

void RowsFile::on(const train::Event& event) {
  if (const auto* run = std::get_if<train::Started>(&event)) {
    if (kind_ != history) cut_back(files_, path_, run->first_step);
    if (kind_ == every_step) open();
  }
  if (const std::string row = row_(event); !row.empty()) {
    open();
    file_->write(row);
  }
  const bool sync = std::holds_alternative<train::BeforeCheckpoint>(event) ||
                    std::holds_alternative<train::Finished>(event) || std::holds_alternative<train::Failed>(event);
  if (sync && file_) file_->sync();
}

RowsFile metrics_file(FileSystem& files, Path path) {
  return {files, std::move(path), RowsFile::every_step, rows_of<train::Stepped>(metrics_row)};
}

RowsFile samples_file(FileSystem& files, Path path) {
  return {files, std::move(path), RowsFile::some_steps, rows_of<train::Sampled>(samples_row)};
}

RowsFile pipeline_file(FileSystem& files, Path path) {
  return {files, std::move(path), RowsFile::history, [step = std::int64_t{0}](const train::Event& event) mutable {
            std::string row;
            hear(
                event, [&](const train::Started& run) { step = run.first_step; },
                [&](const train::Stepped& m) { step = m.step; },
                [&](const train::Pipeline& figures) { row = pipeline_row(figures, unix_seconds(), step); });
            return row;
          }};
}

}  // namespace redline::report
