// Puts a run into words: the header, the progress line, and when each line is worth keeping.
#include "report/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "data/utf8.h"
#include "report/figures.h"

namespace redline::report {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string model_line(const train::RunHeader& h) {
  const config::Model& m = h.config->model;
  const std::string heads =
      m.kv_heads == m.heads ? fmt::format("{}", m.heads) : fmt::format("{} (keys and values {})", m.heads, m.kv_heads);
  return fmt::format("{}, {} layers, hidden {}, heads {} of {}, ffn {}, vocabulary {}{}: {} parameters", m.family,
                     m.layers, m.hidden, heads, m.head_dim, m.ffn, m.vocab, m.tied ? " tied" : "",
                     count(static_cast<double>(h.parameters)));
}

std::string batch_line(const train::RunHeader& h) {
  const config::Train& t = h.config->train;
  const std::string accumulate = t.accumulate > 1 ? fmt::format(" x {} micro-batches", t.accumulate) : "";
  return fmt::format("{} rows x {} tokens{} = {} tokens a step, {} steps", t.batch_size, t.seq_len, accumulate,
                     h.tokens_per_step, h.steps);
}

// Kinds that are too small to see are one "other".
std::string memory_line(const program::MemoryPlan& memory) {
  std::string kinds;
  std::int64_t other = 0;
  for (int role = 0; role < program::kRoles; ++role) {
    const std::int64_t size = memory.by_role[role];
    if (size * 100 < memory.total)
      other += size;
    else
      kinds +=
          fmt::format(", {} {}", program::name_of(static_cast<program::Role>(role)), bytes(static_cast<double>(size)));
  }
  if (other > 0) kinds += fmt::format(", other {}", bytes(static_cast<double>(other)));
  return bytes(static_cast<double>(memory.total)) + (kinds.empty() ? "" : ": " + kinds.substr(2));
}

// Text that a model wrote may hold anything; a line of the log holds a line.
std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : data::replace_bad_utf8(text)) {
    if (c == '\n')
      line += "\\n";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      line += c;
  }
  return line;
}

std::string_view packing_in_words(std::string_view packing) {
  if (packing == "pad") return "padded";
  if (packing == "bucket") return "in buckets";
  return packing == "stream" ? "joined" : "packed";
}

}  // namespace

std::vector<std::string> header_lines(const train::RunHeader& h) {
  std::vector<std::string> lines;
  const auto line = [&](std::string_view what, const std::string& value) {
    lines.push_back(fmt::format("{:<8}{}", what, value));
  };
  const bool cpu = h.device.starts_with("CPU");
  line("model", model_line(h));
  line("device", fmt::format("{}, {}", h.device, cpu ? "fp32" : h.config->precision.matmul));
  line("batch", batch_line(h));
  line("data", fmt::format("{}, {}", h.data, packing_in_words(h.config->data.packing)));
  if (h.memory) line("memory", memory_line(*h.memory));
  if (h.peak_flops > 0) line("peak", fmt::format("{} ({})", flop_rate(h.peak_flops), h.peak_source));
  line("run", h.folder.string());
  return lines;
}

std::string progress_line(const train::StepMetrics& m, std::int64_t steps, double eta_seconds) {
  const std::string of = fmt::format("{}", steps);
  std::string line =
      fmt::format("step {:>{}}/{}  loss {}  grad {}  lr {:.2e}  {}  {}  mfu {}  eta {}", m.step, of.size(), of,
                  plain(m.loss, 4), plain(m.grad_norm, 3), m.lr, duration(m.step_ms * 1e-3), token_rate(m.tokens_per_s),
                  percent(m.mfu), duration(eta_seconds));
  if (line.size() > kConsoleColumns) line.resize(kConsoleColumns);
  return line;
}

void Console::started(const train::RunHeader& header) {
  steps_ = header.steps;
  first_step_ = header.first_step;
  every_ = std::max<std::int64_t>(header.config->log.every, 1);
  for (const std::string& line : header_lines(header)) out_.keep(line);
  started_ = last_kept_ = Clock::now();
}

void Console::evaluating(std::int64_t batch, std::int64_t batches) {
  out_.show(fmt::format("evaluating, batch {}/{}", batch, batches));
}

// An evaluation after a step is told below that step's own line; the one before the first step has no such line.
void Console::evaluated(std::int64_t step, double loss) {
  if (step == first_step_) out_.keep(fmt::format("held-out loss {} before the first step", plain(loss, 4)));
}

bool Console::keeps(const train::StepMetrics& m) const {
  if (m.step == first_step_ + 1 || m.step == steps_ || m.eval_loss) return true;
  if (out_.terminal()) return m.step * 10 / steps_ != (m.step - 1) * 10 / steps_;
  return m.step % every_ == 0 && seconds_between(last_kept_, Clock::now()) >= 1;
}

void Console::stepped(const train::StepMetrics& m) {
  const Clock::time_point now = Clock::now();
  const double a_step =
      seconds_between(started_, now) / static_cast<double>(std::max<std::int64_t>(m.step - first_step_, 1));
  const std::string line = progress_line(m, steps_, a_step * static_cast<double>(steps_ - m.step));
  if (!keeps(m)) {
    if (out_.terminal()) out_.show(line);
    return;
  }
  out_.keep(line);
  last_kept_ = now;
  if (m.eval_loss) out_.keep(fmt::format("held-out loss {} after step {}", plain(*m.eval_loss, 4), m.step));
}

void Console::sampled(std::int64_t step, const std::vector<train::SampledText>& texts) {
  for (const train::SampledText& t : texts)
    out_.keep(fmt::format("sample after step {}: {}", step, one_line(t.prompt + t.text)));
}

void Console::pipeline(const data::PipelineFigures& figures) {
  for (const std::string& line : data::in_words(figures)) out_.keep(line);
}

void Console::saved(std::int64_t step, const Path& folder, double seconds) {
  out_.keep(fmt::format("saved step {} in {}: {}", step, duration(seconds), folder.string()));
}

}  // namespace redline::report
