// Rows of events.jsonl as they happen; those that come before the start wait for it.
#include "base/clock.h"
#include "io/json.h"
#include "report/console.h"
#include "report/rows_file.h"

namespace redline::report {
namespace {

class Rows {
 public:
  explicit Rows(std::string program) : program_(std::move(program)) {}

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
        if (h.memory->by_role[role] > 0)
          memory[std::string(program::name_of(static_cast<program::Role>(role)))] = h.memory->by_role[role];
      memory["total"] = h.memory->total;
    }
    add(unix_seconds(), "started",
        {{"version", kEventsVersion},
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
         {"peak_flops", h.peak_flops},
         {"peak_source", h.peak_source},
         {"memory", std::move(memory)},
         {"header", header_lines(h)}});
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
  std::vector<io::Json> early_;  // told before the run had a folder
};

}  // namespace

RowsFile events_file(FileSystem& files, Path path, std::string program) {
  return {files, std::move(path), RowsFile::history,
          [rows = Rows(std::move(program))](const train::Event& event) mutable { return rows.rows_of(event); }};
}

}  // namespace redline::report
