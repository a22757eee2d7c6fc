// When what is written; report/metrics.h has the tags.
#include "report/tensorboard_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>

#include "base/clock.h"
#include "config/load.h"
#include "data/utf8.h"
#include "report/console.h"
#include "report/metrics.h"
#include "report/tensorboard_events.h"

namespace redline::report {
namespace {

constexpr std::size_t kStepsAHistogram = 100;
constexpr std::string_view kPrefix = "events.out.tfevents.";

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "localhost";
}

// TensorBoard reads the files of a folder in the order of their names, so a later session must have a later second.
std::int64_t second_after_all(FileSystem& files, const Path& folder) {
  auto second = static_cast<std::int64_t>(unix_seconds());
  for (const std::string& name : files.list(folder)) {
    std::int64_t other = 0;
    if (!name.starts_with(kPrefix)) continue;
    const char* digits = name.data() + kPrefix.size();
    if (std::from_chars(digits, name.data() + name.size(), other).ec == std::errc())
      second = std::max(second, other + 1);
  }
  return second;
}

// The fence is longer than any within: what a model wrote may hold one.
std::string fenced(std::string_view kind, std::string_view text) {
  std::string fence = "```";
  while (text.find(fence) != text.npos) fence += '`';
  return fmt::format("{}{}\n{}\n{}\n", fence, kind, text, fence);
}

using tensorboard::record;

using Named = std::pair<std::string, double>;

std::vector<Named> named_of(const train::StepMetrics& m) {
  std::vector<Named> all;
  for (const NamedMetric& metric : kNamedMetrics)
    for (const auto& [name, value] : metric.read(m))
      all.emplace_back(fmt::format("{}/{}", metric.tag, data::replace_bad_utf8(name)), value);
  return all;
}

}  // namespace

void TensorboardFile::start(const train::RunHeader& h) {
  if (h.nothing_left()) return;  // nothing left to do: no file of nothing
  step_ = h.first_step;
  step_times_.clear();
  file_.open(folder_ /
             fmt::format("{}{:010}.{}.{}", kPrefix, second_after_all(files_, folder_), host_name(), ::getpid()));
  const double now = unix_seconds();
  std::string lines;
  for (const std::string& line : header_lines(h)) lines += (lines.empty() ? "" : "\n") + line;
  // Void from step 0 on too: a run that starts over voids all of what was there.
  file_.write(record(tensorboard::version_event(now)) +
              record(tensorboard::restart_event(now, h.first_step == 0 ? 0 : h.first_step + 1)) +
              record(tensorboard::text_event(now, h.first_step, "run", fenced("", lines))) +
              record(tensorboard::text_event(now, h.first_step, "config", fenced("toml", config::dump(*h.config)))));
}

// An event is one piece of the file: it may be told again when that fails.
void TensorboardFile::step(const train::StepMetrics& m) {
  if (m.step > step_) step_times_.push_back(m.step_ms);
  step_ = m.step;
  std::vector<tensorboard::Scalar> scalars;
  for (const Metric& metric : kMetrics)
    if (const auto value = number_of(metric, m); value && !metric.tag.empty()) scalars.emplace_back(metric.tag, *value);
  const std::vector<Named> named = named_of(m);
  for (const auto& [tag, value] : named) scalars.emplace_back(tag, value);
  const bool spread = step_times_.size() >= kStepsAHistogram;
  file_.write(record(tensorboard::scalars_event(m.time, m.step, scalars)) + (spread ? histogram(m.time) : ""));
  if (spread) step_times_.clear();
}

// A tag a prompt, so that one can be followed over the steps.
void TensorboardFile::samples(const train::Sampled& sampled) {
  std::string records;
  int number = 0;
  for (const auto& [prompt, text] : sampled.texts) {
    const std::string markdown =
        fenced("", data::replace_bad_utf8(prompt)) + "\n" + fenced("", data::replace_bad_utf8(text));
    records +=
        record(tensorboard::text_event(sampled.time, sampled.step, fmt::format("samples/{}", ++number), markdown));
  }
  file_.write(records);
}

std::string TensorboardFile::histogram(double time) {
  if (step_times_.empty()) return "";
  return record(tensorboard::histogram_event(time, step_, "speed/step_ms_spread", step_times_));
}

void TensorboardFile::on(const train::Event& event) {
  if (const auto* started = std::get_if<train::Started>(&event)) return start(*started);
  if (!file_.opened()) return;
  const auto close = [&] {
    file_.write(histogram(unix_seconds()));
    step_times_.clear();
    file_.sync();
  };
  hear(
      event, [&](const train::Stepped& e) { step(e); }, [&](const train::Sampled& e) { samples(e); },
      // Evaluations after a step come with the step's row; the one before the first has none.
      [&](const train::Evaluated& e) {
        if (e.step != 0) return;
        const train::StepMetrics m = as_step(e);
        const std::vector<Named> named = named_of(m);
        std::vector<tensorboard::Scalar> scalars;
        for (const Column c : {Column("eval_loss"), Column("eval_bits_per_byte")})
          if (const auto value = number_of(kMetrics[c.index], m)) scalars.emplace_back(kMetrics[c.index].tag, *value);
        for (const auto& [tag, value] : named) scalars.emplace_back(tag, value);
        file_.write(record(tensorboard::scalars_event(e.time, e.step, scalars)));
      },
      [&](const train::Skipped& e) {
        file_.write(record(tensorboard::text_event(e.time, e.step, "guard", fenced("", e.text))));
      },
      [&](const train::RolledBack& e) {
        step_ = e.to;
        step_times_.clear();
        file_.write(record(tensorboard::restart_event(e.time, e.to + 1)) +
                    record(tensorboard::text_event(e.time, e.to, "guard", fenced("", e.text))));
      },
      [&](const train::BeforeCheckpoint&) { file_.sync(); }, [&](const train::Finished&) { close(); },
      [&](const train::Failed&) { close(); });
}

}  // namespace redline::report
