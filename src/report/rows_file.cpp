// Cuts a torn end, or the steps that a run goes back on, and turns events into rows.
#include "report/rows_file.h"

#include <charconv>
#include <utility>

#include "base/log.h"
#include "base/words.h"
#include "io/json.h"
#include "report/metrics.h"

namespace redline::report {
namespace {

constexpr std::string_view kStepRowStart = "{\"step\":";  // of a row that belongs to a step

// The step of one line without its newline; -1 when it is not a whole row of ours.
std::int64_t step_of(std::string_view line) {
  if (!line.starts_with(kStepRowStart) || !io::Json::accept(line)) return -1;
  line.remove_prefix(kStepRowStart.size());
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  return error == std::errc() && end != line.data() + line.size() && *end == ',' ? step : -1;
}

// The part of a file of steps that stays when a run goes on.
struct Kept {
  std::size_t bytes = 0;
  std::int64_t odd = 0, first_odd = 0;  // lines among them that cannot be read; the number of the first
};

// Up to the row after which all are of later steps. One later row between earlier ones is a damaged number, no end.
Kept rows_up_to(std::string_view text, std::int64_t last_step) {
  Kept kept, seen;
  std::int64_t line = 0;
  bool later = false;  // the last row that could be read is of a later step
  for (std::size_t end; (end = text.find('\n', seen.bytes)) != text.npos;) {
    const std::int64_t step = step_of(text.substr(seen.bytes, end - seen.bytes));
    seen.bytes = end + 1;
    ++line;
    if (step > last_step && std::exchange(later, true)) break;
    if ((step < 0 || step > last_step) && seen.odd++ == 0) seen.first_odd = line;
    if (step < 0 || step > last_step) continue;
    later = false;
    kept = seen;
  }
  return kept;
}

// Keeps the rows of steps up to `last_step` and removes all behind them, whole or torn.
void cut_back(FileSystem& files, const Path& path, std::int64_t last_step) {
  if (!files.exists(path)) return;
  const std::string text = files.read(path);
  const Kept kept = last_step > 0 ? rows_up_to(text, last_step) : Kept{};
  if (kept.bytes < text.size()) files.truncate(path, kept.bytes);
  if (kept.odd > 0)
    log::warn("{}: {} cannot be read, the first is line {}; the others are kept", path.string(),
              counted(kept.odd, "row"), kept.first_odd);
}

// Removes a last line that a kill left incomplete, so that the next row begins a new line.
void cut_torn_line(FileSystem& files, const Path& path) {
  if (!files.exists(path)) return;
  const std::string text = files.read(path);
  const std::size_t newline = text.rfind('\n'), kept = newline == text.npos ? 0 : newline + 1;
  if (kept < text.size()) files.truncate(path, kept);
}

// A number that is not finite is null.
std::string fp8_row(const train::Stepped& m) {
  if (!m.fp8) return {};
  io::Json tensors = io::Json::array();
  for (const model::Fp8Seen& t : m.fp8->tensors)
    tensors.push_back({{"name", t.name},
                       {"format", name_of(t.format)},
                       {"scale", t.scale},
                       {"amax", t.amax},
                       {"saturated", t.saturated},
                       {"zero", t.zero}});
  return io::Json{{"step", m.step}, {"tensors", std::move(tensors)}}.dump() + "\n";
}

std::string norms_row(const train::Stepped& m) {
  if (!m.norms) return {};
  io::Json tensors = io::Json::array();
  for (const model::TensorNorm& t : m.norms->tensors)
    tensors.push_back({{"name", t.name}, {"gradient", t.gradient}, {"weight", t.weight}, {"update", t.update}});
  return io::Json{{"step", m.step}, {"tensors", std::move(tensors)}}.dump() + "\n";
}

std::string samples_row(const train::Sampled& sampled) {
  io::Json samples = io::Json::array();
  for (const train::SampledText& t : sampled.texts) samples.push_back({{"prompt", t.prompt}, {"text", t.text}});
  const io::Json row = {{"step", sampled.step}, {"samples", std::move(samples)}};
  return row.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n";
}

std::string pipeline_row(const train::Pipeline& figures, std::int64_t step) {
  io::Json stages = io::Json::array();
  for (const data::StageStats& s : figures.stages)
    stages.push_back({{"name", s.name},
                      {"threads", s.threads},
                      {"items_per_s", s.items_per_s},
                      {"tokens_per_s", s.tokens_per_s},
                      {"busy", s.busy},
                      {"waiting", s.waiting}});
  const io::Json row = {{"time", figures.time},
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

}  // namespace

void RowsFile::open() {
  if (file_.opened()) return;
  if (kind_ == history) cut_torn_line(files_, path_);
  file_.open(path_);
}

void RowsFile::on(const train::Event& event) {
  if (const auto* run = std::get_if<train::Started>(&event)) {
    if (kind_ != history) cut_back(files_, path_, run->first_step);
    if (kind_ == every_step) open();
  }
  if (const auto* back = std::get_if<train::RolledBack>(&event); back && kind_ != history) {
    cut_back(files_, path_, back->to);
    if (file_.opened()) file_.open(path_);
  }
  if (const std::string row = row_(event); !row.empty()) {
    open();
    file_.write(row);
  }
  const bool sync = std::holds_alternative<train::BeforeCheckpoint>(event) ||
                    std::holds_alternative<train::RolledBack>(event) ||
                    std::holds_alternative<train::Finished>(event) || std::holds_alternative<train::Failed>(event);
  if (sync && file_.opened()) file_.sync();
}

RowsFile metrics_file(FileSystem& files, Path path) {
  return {files, std::move(path), RowsFile::every_step, [](const train::Event& event) {
            std::string row;
            hear(
                event, [&](const train::Stepped& m) { row = metrics_row(m); },
                // Evaluations after a step come with the step's row; the one before the first has none.
                [&](const train::Evaluated& e) {
                  if (e.step == 0) row = evaluation_row(e);
                });
            return row;
          }};
}

// A file of some steps: `row_of` makes a row of the events of one kind.
template <class Kind>
RowsFile some_steps(FileSystem& files, Path path, std::string (*row_of)(const Kind&)) {
  return {files, std::move(path), RowsFile::some_steps, [row_of](const train::Event& event) {
            const auto* of_kind = std::get_if<Kind>(&event);
            return of_kind ? row_of(*of_kind) : std::string();
          }};
}
RowsFile fp8_file(FileSystem& files, Path path) { return some_steps(files, std::move(path), fp8_row); }
RowsFile norms_file(FileSystem& files, Path path) { return some_steps(files, std::move(path), norms_row); }
RowsFile samples_file(FileSystem& files, Path path) { return some_steps(files, std::move(path), samples_row); }

RowsFile pipeline_file(FileSystem& files, Path path) {
  return {files, std::move(path), RowsFile::history, [step = std::int64_t{0}](const train::Event& event) mutable {
            std::string row;
            hear(
                event, [&](const train::Started& run) { step = run.first_step; },
                [&](const train::Stepped& m) { step = m.step; },
                [&](const train::Pipeline& figures) { row = pipeline_row(figures, step); });
            return row;
          }};
}

}  // namespace redline::report
