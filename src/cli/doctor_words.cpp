// Bars, a list of what to mend, JSON, and the page.
#include "cli/doctor_words.h"

#include <algorithm>

#include "base/words.h"
#include "io/json.h"
#include "report/bars.h"
#include "report/figures.h"
#include "report/page.h"

namespace redline::cli {
namespace {

constexpr double kBarColumns = 30;
constexpr double kMuchSlower = 1.3;  // than the plan, which is within a few percent on cards that it knows

using report::paragraph;

std::string ms(double value) {
  return value < 9.95   ? fmt::format("{:.2f}", value)
         : value < 99.5 ? fmt::format("{:.1f}", value)
                        : fmt::format("{:.0f}", value);
}

std::string table(const perf::Diagnosis& d, bool blocks) {
  std::string out = fmt::format("\n{:<14} {:>8} {:>8} {:>8} {:>8} {:>8}  {}\n", "part", "ms", "floor", "loss",
                                "of step", "mfu", blocks ? "█ floor ░ loss" : "# floor - loss");
  double longest = 0;
  for (const perf::PartTime& part : d.parts.of) longest = std::max(longest, part.ms);
  perf::PartTime sum;
  const auto line = [&](std::string_view name, const perf::PartTime& part, const std::string& bar) {
    out += fmt::format("{:<14} {:>8} {:>8} {:>8} {:>8} {:>8}  {}\n", name, ms(part.ms), ms(part.floor_ms),
                       ms(part.loss_ms()), report::percent(part.ms / d.step_ms),
                       fmt::format("{:+.1f}", d.mfu_points(std::min(part.loss_ms(), 0.99 * d.step_ms))), bar);
  };
  for (std::size_t i = 0; i < d.parts.of.size(); ++i) {
    const perf::PartTime& part = d.parts.of[i];
    if (part.ms <= 0) continue;
    sum.ms += part.ms;
    sum.floor_ms += part.floor_ms;
    const double columns = kBarColumns / longest;
    line(perf::kStepParts[i], part, report::bar_of_two(columns * part.floor_ms, columns * part.loss_ms(), blocks));
  }
  out += fmt::format("{:<14} {:>8} {:>8} {:>8}\n", "the step", ms(sum.ms), ms(sum.floor_ms), ms(sum.loss_ms()));
  return out;
}

std::string slower_than_planned(const perf::Diagnosis& d) {
  return fmt::format(
      "the device takes {:.1f} times what the plan expects, which no illness here explains: look for other "
      "programs on the same cores or card (top, nvidia-smi)",
      d.of_plan);
}

std::string price(const perf::Finding& f, double step_ms) {
  return fmt::format("{} ms a step ({}), {:.1f} points of MFU; {}", ms(f.loss_ms), report::percent(f.loss_ms / step_ms),
                     f.mfu_points, f.basis);
}

std::string gain_of(const perf::Finding& f) {
  std::string text = fmt::format("{:.2f} times the tokens a second expected", f.gain);
  if (f.measured) text += fmt::format(", {:.2f} times measured", *f.measured);
  if (!f.not_measured.empty()) text += fmt::format("; not measured: {}", f.not_measured);
  return text;
}

std::string set_of(const perf::Finding& f) { return fmt::format("{}", fmt::join(f.changes, " ")); }

std::string entry(const std::string& number, const perf::Finding& f, double step_ms) {
  std::string out = "\n" + paragraph(fmt::format("{:<3}", number), fmt::format("{}: {}", f.row().name, f.found));
  out += paragraph("   costs   ", price(f, step_ms));
  out += paragraph("   mend    ", f.mend);
  if (!f.changes.empty()) out += paragraph("   set     ", set_of(f));
  out += paragraph("   gain    ", gain_of(f));
  if (!f.caution.empty()) out += paragraph("   but     ", f.caution);
  return out + paragraph("   see     ", f.row().section);
}

io::Json to_json(const perf::Finding& f, double step_ms) {
  return {{"illness", f.row().key},
          {"name", f.row().name},
          {"found", f.found},
          {"mend", f.mend},
          {"set", f.changes},
          {"caution", f.caution},
          {"basis", f.basis},
          {"loss_ms", f.loss_ms},
          {"share", f.loss_ms / step_ms},
          {"mfu_points", f.mfu_points},
          {"gain", f.gain},
          {"gain_measured", f.measured ? io::Json(*f.measured) : io::Json(nullptr)},
          {"not_measured", f.not_measured},
          {"see", f.row().section}};
}

}  // namespace

std::string in_words(const Consultation& c, bool blocks) {
  const perf::Diagnosis& d = c.diagnosis;
  std::string out = paragraph("doctor   ", fmt::format("{} on {}: {} a step with its share of all else, {}, mfu {}",
                                                       c.name, c.device, report::duration(1e-3 * d.step_ms),
                                                       report::token_rate(d.tokens_per_s), report::percent(d.mfu)));
  out += paragraph("from     ", c.basis);
  out += table(d, blocks);
  out += "mfu: points that would come back if the part took no longer than its floor\n";
  if (d.of_plan > kMuchSlower) out += "\n" + paragraph("note     ", slower_than_planned(d));
  if (d.findings.empty()) {
    out += d.refuted.empty()
               ? fmt::format("\nnothing to mend: none of the {} that doctor knows costs {:.0f}% of the step\n",
                             counted(train::kIllnesses.size(), "illness"), 100 * perf::kWorthMending)
               : "\nnothing to mend\n";
  } else {
    out += fmt::format("\n{} to mend{}\n", counted(d.findings.size(), "thing"),
                       d.findings.size() > 1 ? ", the dearest first" : "");
    for (std::size_t i = 0; i < std::min(d.findings.size(), kShownFindings); ++i)
      out += entry(fmt::format("{}.", i + 1), d.findings[i], d.step_ms);
    if (d.findings.size() > kShownFindings)
      out += fmt::format("\n{} more in --json\n", counted(d.findings.size() - kShownFindings, "thing"));
  }
  if (!d.options.empty()) out += "\nfaster, for another result\n";
  for (const perf::Finding& f : d.options) out += entry("-", f, d.step_ms);
  if (!d.refuted.empty()) out += "\ntried, and does not help here: leave it as it is\n";
  for (const perf::Finding& f : d.refuted) out += entry("-", f, d.step_ms);
  return out;
}

io::Json to_json(const Consultation& c) {
  const perf::Diagnosis& d = c.diagnosis;
  io::Json parts = io::Json::array(), findings = io::Json::array(), options = io::Json::array(),
           refuted = io::Json::array();
  for (std::size_t i = 0; i < d.parts.of.size(); ++i) {
    const perf::PartTime& part = d.parts.of[i];
    parts.push_back({{"part", perf::kStepParts[i]},
                     {"ms", part.ms},
                     {"floor_ms", part.floor_ms},
                     {"loss_ms", part.loss_ms()},
                     {"share", part.ms / d.step_ms},
                     {"mfu_points", d.mfu_points(std::min(part.loss_ms(), 0.99 * d.step_ms))}});
  }
  for (const perf::Finding& f : d.findings) findings.push_back(to_json(f, d.step_ms));
  for (const perf::Finding& f : d.options) options.push_back(to_json(f, d.step_ms));
  for (const perf::Finding& f : d.refuted) refuted.push_back(to_json(f, d.step_ms));
  return {{c.run ? "run" : "config", c.name},
          {"device", c.device},
          {"basis", c.basis},
          {"step_ms", d.step_ms},
          {"tokens_per_s", d.tokens_per_s},
          {"mfu", d.mfu},
          {"of_plan", d.of_plan > 0 ? io::Json(d.of_plan) : io::Json(nullptr)},
          {"note", d.of_plan > kMuchSlower ? slower_than_planned(d) : ""},
          {"parts", std::move(parts)},
          {"healthy", d.findings.empty()},
          {"findings", std::move(findings)},
          {"options", std::move(options)},
          {"refuted", std::move(refuted)}};
}

std::string doctor_page(const Consultation& c) {
  return report::page(c.name + " – redline doctor", {{"page", "doctor"}, {"title", c.name}}, to_json(c));
}

}  // namespace redline::cli
