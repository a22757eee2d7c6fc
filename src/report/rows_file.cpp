// Whole rows, cut back where a run goes on from an earlier step; and what the rows of each file hold.
#include "report/rows_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/words.h"
#include "io/json.h"
#include "report/console.h"
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

// Keeps the rows of steps up to `last_step` and removes all that follow, whole or torn.
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

std::string router_row(const train::Stepped& m) {
  if (!m.router || !m.router->by_layer) return {};
  const model::RouterFigures& f = *m.router->by_layer;
  io::Json layers = io::Json::array();
  for (std::size_t i = 0; i < f.layers.size(); ++i)
    layers.push_back({{"layer", f.layers[i]}, {"entropy", f.entropy[i]}, {"loads", f.loads[i]}});
  return io::Json{{"step", m.step}, {"layers", std::move(layers)}}.dump() + "\n";
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

// Between two rows: a second while a session is young, then 2% of its age, at most a minute. A kill hides no more than
// that, and the file of a run of days is small.
double until_next(double wall) { return std::clamp(0.02 * wall, 1.0, 60.0); }

double in_milliseconds(double seconds) { return std::round(seconds * 1e3) / 1e3; }

// Any event is a sign of life. A row after each checkpoint says what a resume from there keeps.
class GoodputRows {
 public:
  std::string row_of(const train::Event& event) {
    bool due = false, last = false;
    hear(
        event,
        [&](const train::Started& run) {
          if (run.first_step >= run.steps) return;  // nothing is left to do
          session_ = run.goodput;
          first_step_ = step_ = run.first_step;
          due = true;
        },
        [&](const train::Stepped& m) { step_ = m.step; }, [&](const train::BeforeCheckpoint&) { due = true; },
        [&](const train::Saved&) { due = true; }, [&](const train::Finished&) { due = last = true; },
        [&](const train::Failed&) { due = last = true; });
    if (!session_) return "";
    const train::Account account = session_->account();
    std::string row;
    if (due || account.wall() >= next_) row = write(account);
    if (last) session_.reset();
    return row;
  }

 private:
  std::string write(const train::Account& account) {
    next_ = account.wall() + until_next(account.wall());
    io::Json seconds = io::Json::object();
    for (std::size_t p = 0; p < train::kParts.size(); ++p)
      seconds[std::string(train::kParts[p].key)] = in_milliseconds(account.seconds[p]);
    io::Json row = {{"time", in_milliseconds(unix_seconds())},
                    {"step", step_},
                    {"began", in_milliseconds(session_->began())},
                    {"first_step", first_step_},
                    {"seconds", std::move(seconds)},
                    {"tokens", account.tokens}};
    if (account.joules) row["joules"] = in_milliseconds(*account.joules);
    return row.dump() + "\n";
  }

  std::shared_ptr<const train::Goodput> session_;
  std::int64_t first_step_ = 0, step_ = 0;
  double next_ = 0;  // when a row is due, in seconds of the session
};

// Events that come before the start wait for it.
class EventRows {
 public:
  explicit EventRows(std::string program) : program_(std::move(program)) {}

  std::string rows_of(const train::Event& event) {
    rows_.clear();
    take(event);
    return rows_;
  }

 private:
  void add(double time, const char* kind, io::Json fields) {
    io::Json row = {{"time", time}, {"step", step_}, {"kind", kind}};
    row.update(fields);
    if (started_)
      write(row);
    else
      early_.push_back(std::move(row));
  }

  // A path may hold bytes that are no UTF-8; they are replaced rather than costing the run.
  void write(const io::Json& row) { rows_ += row.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n"; }

  void start(const train::RunHeader& h) {
    step_ = h.first_step;
    if (h.nothing_left()) return;  // nothing left to do: the history stays as it is
    started_ = true;
    io::Json memory = io::Json::object();
    if (h.memory) {
      for (int role = 0; role < program::kRoles; ++role)
        if (h.memory->device.by_role[role] > 0)
          memory[std::string(program::name_of(static_cast<program::Role>(role)))] = h.memory->device.by_role[role];
      memory["total"] = h.memory->device.total;
      if (h.memory->host.beyond_results() > 0) memory["host"] = h.memory->host.total;
    }
    io::Json started = {{"version", kEventsVersion},
                        {"program", program_},
                        {"first_step", h.first_step},
                        {"steps", h.steps},
                        {"tokens_per_step", h.tokens_per_step},
                        {"ranks", h.sharing.ranks},
                        {"parameters", h.parameters},
                        {"device", h.device},
                        {"card", h.card},
                        {"device_memory", h.device_memory},
                        {"data", h.data},
                        {"trained_on", h.trained_on},
                        {"loss_trained_on", h.loss_trained_on},
                        {"peak_flops", h.peak_flops},
                        {"peak_source", h.peak_source},
                        {"memory", std::move(memory)},
                        {"header", header_lines(h)}};
    if (!h.restart.empty()) started["restart"] = h.restart;
    add(unix_seconds(), "started", std::move(started));
    for (io::Json& row : early_) {
      row["step"] = step_;  // which was not known yet
      write(row);
    }
    early_.clear();
  }

  void take(const train::Event& event) {
    const auto say = [&](const train::Sentence& e, const char* kind, const std::string& text) {
      add(e.time, kind, {{"text", text}});
    };
    hear(
        event, [&](const train::Started& e) { start(e); }, [&](const train::Stepped& e) { step_ = e.step; },
        [&](const train::Saved& e) {
          add(e.time, "checkpoint",
              {{"step", e.step},  // steps may have been made since
               {"folder", e.folder.filename().string()},
               {"seconds", e.seconds},
               {"held_seconds", e.held}});
        },
        [&](const train::Note& e) { say(e, "note", e.text); },
        [&](const train::Planned& e) {
          add(e.time, "note", {{"text", e.text}, {"steps", e.steps}});
        },
        [&](const train::Warning& e) { say(e, "warning", e.text); },
        [&](const train::Skipped& e) {
          add(e.time, "skipped",
              {{"step", e.step},
               {"text", e.text},
               {"reason", e.reason},
               {"loss", e.loss},
               {"grad_norm", e.norm},
               {"limit", e.limit},
               {"documents", e.documents}});
        },
        [&](const train::RolledBack& e) {
          io::Json passed = io::Json::array();
          for (const train::PassedBatch& p : e.passed_over)
            passed.push_back({{"draw", p.draw}, {"documents", p.documents}});
          step_ = e.to;
          add(e.time, "rolled_back",
              {{"text", e.text}, {"from", e.from}, {"to", e.to}, {"passed_over", std::move(passed)}});
        },
        [&](const train::Finished& e) { say(e, e.stopped ? "stopped" : "finished", in_words(e)); },
        [&](const train::Failed& e) { say(e, "failed", e.text); });
  }

  std::string program_;  // "redline 0.1.0"
  std::string rows_;     // of the event at hand
  bool started_ = false;
  std::int64_t step_ = 0;
  std::vector<io::Json> early_;  // from before the run had a folder
};

}  // namespace

void LogFile::open(const Path& path) {
  if (path.has_parent_path()) files_.create_folders(path.parent_path());
  file_ = files_.append(path);
  size_ = files_.size(path);
  path_ = path;
}

// Needs no room, so that it mostly works where writing did not.
void LogFile::cut_back() {
  if (files_.exists(path_) && files_.size(path_) > size_) files_.truncate(path_, size_);
}

template <class Do>
void LogFile::attempt(Do work) {
  if (!file_) {
    cut_back();
    open(path_);
  }
  try {
    work();
  } catch (...) {
    file_.reset();
    try {
      cut_back();
    } catch (const std::exception&) {  // the next attempt says it
    }
    throw;
  }
}

void LogFile::write(std::string_view piece) {
  attempt([&] { file_->write(piece); });
  size_ += piece.size();
}

// A file that is deleted while it is open takes all that is written, and no reader will ever see it.
void LogFile::sync() {
  attempt([&] {
    if (!files_.exists(path_))
      fail_machine("{} was deleted or moved under the run, with what was in it", path_.string());
    file_->sync();
  });
}

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
RowsFile router_file(FileSystem& files, Path path) { return some_steps(files, std::move(path), router_row); }
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

RowsFile goodput_file(FileSystem& files, Path path) {
  return {files, std::move(path), RowsFile::history,
          [rows = GoodputRows()](const train::Event& event) mutable { return rows.row_of(event); }};
}

RowsFile events_file(FileSystem& files, Path path, std::string program) {
  return {files, std::move(path), RowsFile::history,
          [rows = EventRows(std::move(program))](const train::Event& event) mutable { return rows.rows_of(event); }};
}

}  // namespace redline::report
