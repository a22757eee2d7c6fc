// Puts a run into words: the header, the progress line, and when each line is worth keeping.
#include "report/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/clock.h"
#include "base/words.h"
#include "config/ramps.h"
#include "data/utf8.h"
#include "optim/schedule.h"
#include "report/figures.h"
#include "train/memory_advice.h"
#include "train/recipe.h"

namespace redline::report {
namespace {

std::string model_line(const train::RunHeader& h) {
  const config::Model& m = h.config->model;
  const std::string heads =
      m.kv_heads == m.heads ? fmt::format("{}", m.heads) : fmt::format("{} (keys and values {})", m.heads, m.kv_heads);
  const std::string used =
      h.data_vocabulary > 0 && h.data_vocabulary < m.vocab ? fmt::format(" ({} in the data)", h.data_vocabulary) : "";
  std::string mlp = fmt::format("ffn {}", m.ffn);
  std::string active;
  if (m.experts > 0) {
    mlp = fmt::format("{} experts of {}, {} a token", m.experts, m.expert_ffn > 0 ? m.expert_ffn : m.ffn,
                      m.experts_per_token);
    if (!m.dense_layers.empty())
      mlp += fmt::format(", ffn {} in {}", m.ffn, counted(std::ssize(m.dense_layers), "layer"));
    active = fmt::format(", {} of them active", count(static_cast<double>(h.active_parameters)));
  }
  return fmt::format("{}, {}, hidden {}, heads {} of {}, {}, vocabulary {}{}{}: {} parameters{}", m.family,
                     counted(m.layers, "layer"), m.hidden, heads, m.head_dim, mlp, m.vocab, used, m.tied ? " tied" : "",
                     count(static_cast<double>(h.parameters)), active);
}

std::string ranks_line(const train::RunHeader& h) {
  const std::string_view shared = h.sharing.mode == dist::Mode::ddp ? "every rank keeps everything"
                                  : h.sharing.mode == dist::Mode::zero1
                                      ? "moments and master weights are shared out"
                                      : "weights, gradients and moments are shared out";
  const std::string among = h.sharing.shards > 0 ? fmt::format(" among {} at a time", h.sharing.holders()) : "";
  return fmt::format("{}, {}: {}{}; gradients travel in {} by {}", h.sharing.ranks, name_of(h.sharing.mode), shared,
                     among, h.sharing.bf16_wire ? "bf16" : "fp32", h.engine);
}

std::string batch_line(const train::RunHeader& h) {
  const config::Train& t = h.config->train;
  const std::string accumulate = t.accumulate > 1 ? fmt::format(" x {} micro-batches", t.accumulate) : "";
  const std::string ranks = h.sharing.alone()         ? ""
                            : h.sharing.sequence == 1 ? fmt::format(" x {}", counted(h.sharing.ranks, "rank"))
                                                      : fmt::format(" x {} of {}", counted(h.sharing.groups(), "group"),
                                                                    counted(h.sharing.sequence, "rank"));
  return fmt::format("{} x {}{}{} = {} a step, {}; {} recomputed", counted(t.batch_size, "row"),
                     counted(t.seq_len, "token"), accumulate, ranks, counted(h.tokens_per_step, "token"),
                     h.steps > 0 ? counted(h.steps, "step") : "for " + duration(3600 * t.max_hours),
                     train::what_is_recomputed(*h.config)) +
         config::ramps_in_words(t);
}

// "NorMuon, rate 2e-3 after 500 steps of warm-up, straight to 2e-4 over the last 65%". Tokens are told in steps, too.
std::string rate_line(const train::RunHeader& h) {
  const config::Optim& o = h.config->optim;
  const std::string_view name = o.name == "adamw" ? "AdamW" : o.muon_beta2 > 0 ? "NorMuon" : "Muon";
  std::string text = fmt::format("{}, rate {}", name, train::short_rate(o.lr));
  const auto in_tokens = [](std::int64_t tokens) {
    return tokens > 0 ? fmt::format(" ({})", grouped(tokens, "token")) : "";
  };
  if (const std::int64_t warmup = optim::warmup_steps(*h.config, h.steps, h.sharing.groups()); warmup > 0)
    text += fmt::format(" after {}{} of warm-up", counted(warmup, "step"), in_tokens(o.warmup_tokens));
  const std::string low = train::short_rate(o.min_lr);
  if (o.schedule == "constant") {
    text += ", the same to the end";
  } else if (o.schedule == "linear") {
    text += fmt::format(", straight to {} at the end", low);
  } else if (o.schedule == "cosine") {
    text += fmt::format(", by a cosine to {} at the end", low);
  } else {
    const std::string last =
        o.decay_tokens > 0
            ? counted(optim::decay_steps(*h.config, h.steps, h.sharing.groups()), "step") + in_tokens(o.decay_tokens)
            : fmt::format("{:.4g}%", 100 * o.decay_fraction);
    text +=
        fmt::format(", {} {} over the last {}", o.decay_shape == "sqrt" ? "by a root to" : "straight to", low, last);
  }
  if (o.schedule_start > 0) text += fmt::format("; counted from step {} on", o.schedule_start);
  return text;
}

// "3.0e-4": two columns of zeros less than printf's.
std::string short_exponent(double value) {
  std::string text = fmt::format("{:.1e}", value);
  const std::size_t e = text.find('e');
  if (e != text.npos && e + 3 < text.size() && text[e + 2] == '0') text.erase(e + 2, 1);
  return text;
}

// Kinds that are too small to see are one "other".
std::string memory_line(const program::ArenaPlan& memory) {
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

// Why, where there was a choice. On a card "auto" is settled by the first batch, and reported then.
std::string kernels_line(const train::RunHeader& h) {
  const config::Kernels& k = h.config->kernels;
  const bool fp8 = h.config->precision.matmul == "fp8";
  if (!h.card)
    return fmt::format("attention by the CPU kernel, the only one here; node by node, as graphs are for cards; {}",
                       fp8 ? "fp8 and bf16, simulated in fp32" : "fp32");
  const std::string attention = k.attention == "auto" ? "the fastest that can, measured on the first batch"
                                                      : k.attention + ", as kernels.attention says";
  return fmt::format("attention by {}; {}; {} products{}", attention,
                     k.graphs == "auto" ? "CUDA graphs" : "node by node, as kernels.graphs says",
                     h.config->precision.matmul, k.deterministic ? ", bit for bit the same each time" : "");
}

// Lines that end with a word where they would be longer than `columns`.
void wrap(std::vector<std::string>& lines, std::string_view what, std::string_view text, std::size_t columns) {
  constexpr std::size_t kIndent = 8, kLeast = 32;
  const std::size_t room = std::max(columns, kLeast) - kIndent;
  while (true) {
    std::size_t end = text.size();
    if (end > room) end = std::min(end, text.rfind(' ', room));
    if (end > room) end = std::min(text.size(), text.find(' ', room));  // a word that is too long
    lines.push_back(fmt::format("{:<{}}{}", what, kIndent, text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (text.empty()) return;
    what = "";
  }
}

std::string_view packing_in_words(std::string_view packing) {
  if (packing == "pad") return "padded";
  if (packing == "bucket") return "in buckets";
  return packing == "stream" ? "joined" : "packed";
}

std::string size_in_words(const data::EpochSize& size) {
  return fmt::format("{}, {}", grouped(size.documents, "document"), count(static_cast<double>(size.tokens), "token"));
}

// "held-out loss 3.1416", or "held-out loss web 3.1416, code 2.7183". Sets that are trained on as well are marked.
std::string held_out_in_words(double loss, const std::vector<train::HeldOutLoss>& sets,
                              const std::vector<std::string>& trained_on) {
  if (sets.empty()) return fmt::format("{} {}", train::evaluated_loss(!trained_on.empty()), plain(loss, 4));
  std::string words;
  for (const train::HeldOutLoss& of : sets) {
    const bool seen = std::ranges::find(trained_on, of.name) != trained_on.end();
    words +=
        fmt::format("{} {} {}{}", words.empty() ? "" : ",", of.name, plain(of.loss, 4), seen ? " (trained on)" : "");
  }
  return "held-out loss" + words;
}

// "held out: 120 documents, 98.3k tokens, of which a loss covers the first 65,536 tokens"
std::string held_out_line(const train::RunHeader& h) {
  const config::Train& t = h.config->train;
  std::string text = h.loss_trained_on ? "evaluated, and trained on: " : "held out: ";
  if (h.held_out_data) text += size_in_words(*h.held_out_data) + ", of which ";
  if (t.eval_tokens == 0 && t.eval_batches == 0) return text + "nothing is evaluated";
  if (t.eval_tokens == 0)
    return text + fmt::format("a loss covers the first {}, whose tokens change with the batch",
                              counted(t.eval_batches, "batch"));
  if (h.held_out_data && h.held_out_data->tokens <= t.eval_tokens) return text + "a loss covers all";
  // How many tokens a stream holds out is not known before it is read.
  return text +
         fmt::format("a loss covers {} {}", h.held_out_data ? "the first" : "up to", grouped(t.eval_tokens, "token"));
}

std::string data_line(const train::RunHeader& h) {
  std::string text = h.data;
  if (h.training_data) text += fmt::format(": {}", size_in_words(*h.training_data));
  text += fmt::format(", {}", packing_in_words(h.config->data.packing));
  if (h.epochs && *h.epochs < 1) text += fmt::format("; the run reads {} of them", percent(*h.epochs));
  if (h.epochs && *h.epochs >= 1) text += fmt::format("; the run reads them {} times", plain(*h.epochs, 2));
  if (h.epochs && h.config->train.epochs > 1.01 * *h.epochs)
    text += fmt::format(", though train.epochs is {}: train.max_steps or train.max_tokens comes first",
                        plain(h.config->train.epochs, 2));
  return text + "; " + held_out_line(h);
}

// When the first checkpoint comes, so that nobody learns from a kill how much it costs.
std::string saves_line(const train::RunHeader& h) {
  const config::Checkpoint& c = h.config->checkpoint;
  const std::int64_t next = c.every > 0 ? (h.first_step / c.every + 1) * c.every : 0;
  const std::string minutes = c.minutes > 0 ? fmt::format("{:g} min", c.minutes) : "";
  std::string first = next > 0 && (h.steps == 0 || next < h.steps) ? fmt::format("after step {}", next) : "";
  if (!minutes.empty()) first += fmt::format("{}after {}", first.empty() ? "" : " or ", minutes);
  if (first.empty()) return "at the end only: a run that is killed before loses its steps";
  std::string then = c.every > 0 ? counted(c.every, "step") : "";
  if (!minutes.empty()) then += fmt::format("{}{}", then.empty() ? "" : " or ", minutes);
  const bool both = c.every > 0 && c.minutes > 0;
  return fmt::format("the first {}, then every {}{}, and at the end", first, then,
                     both ? ", whichever is due first" : "");
}

}  // namespace

std::vector<std::string> header_lines(const train::RunHeader& h, std::size_t columns) {
  std::vector<std::string> lines;
  const auto line = [&](std::string_view what, const std::string& value) { wrap(lines, what, value, columns); };
  line("model", model_line(h));
  line("device", h.device);
  if (!h.sharing.alone()) line("ranks", ranks_line(h));
  if (!h.restart.empty()) line("start", h.restart);
  line("kernels", kernels_line(h));
  if (!h.fp8.empty()) line("fp8", h.fp8);
  line("batch", batch_line(h));
  line("rate", rate_line(h));
  line("data", data_line(h));
  if (!h.nothing_left()) line("saves", saves_line(h));
  if (h.memory)
    line("memory",
         memory_line(h.memory->device) +
             (h.memory->host.beyond_results() > 0 ? "; in the host's memory " + memory_line(h.memory->host) : "") +
             (h.sharing.alone() ? "" : "; on this rank"));
  if (h.peak_flops > 0) line("peak", fmt::format("{} ({})", flop_rate(h.peak_flops), h.peak_source));
  for (const LeftOut& part : h.left_out) line("without", fmt::format("{}: {}; {}", part.what, part.why, part.cost));
  line("run", h.folder.string());
  return lines;
}

std::string in_words(const train::Account& account) {
  constexpr double kWorthNaming = 0.005;
  std::vector<std::size_t> order(train::kParts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin() + 1, order.end(),  // steps stay the first
                   [&](std::size_t a, std::size_t b) { return account.seconds[a] > account.seconds[b]; });
  std::string words;
  for (const std::size_t p : order)
    if (const double share = account.share(static_cast<train::Part>(p)); p == 0 || share >= kWorthNaming)
      words += fmt::format("{}{} {}", words.empty() ? "" : ", ", percent(share), train::kParts[p].words);
  if (account.joules) words += fmt::format("; {}", energy(*account.joules));
  if (const auto each = account.joules_per_token()) words += fmt::format(", {} a token", joules(*each));
  return words;
}

std::string in_words(const train::Finished& f) {
  if (f.seconds == 0) return f.text;
  const std::string figures =
      fmt::format("{} in {}, {}{}", f.resumed ? fmt::format(", the last {}", f.steps) : "", duration(f.seconds),
                  count(static_cast<double>(f.tokens), "token"), f.resumed ? " in all" : "");
  const std::size_t first_part = std::min(f.text.find_first_of(",;"), f.text.size());
  std::string words = f.text.substr(0, first_part) + figures + f.text.substr(first_part);
  if (f.account) words += fmt::format("; {}{}", f.resumed ? "this session: " : "", in_words(*f.account));
  return words;
}

// Fields have minimal widths, so that lines stand under each other. Fields that do not fit are left out, the least
// important first.
std::string progress_line(const train::StepMetrics& m, std::int64_t steps, double eta_seconds, std::size_t columns) {
  constexpr int kStays = 0, kLast = 6;
  struct Field {
    std::string text;
    int leaves;  // as the first, the second ...
  };
  const std::string of = steps > 0 ? fmt::format("{}", steps) : "";
  std::vector<Field> fields = {
      {fmt::format("step {:>{}}{}{}  loss {}", m.step, of.size(), of.empty() ? "" : "/", of, plain(m.loss, 4)), kStays},
      {m.epoch ? fmt::format("  epoch {}", plain(*m.epoch, 2)) : "", 4},
      {fmt::format("  grad {:>4}", plain(m.grad_norm, 2)), kLast},
      {fmt::format("  lr {}", short_exponent(m.lr)), kLast - 1},
      {fmt::format("  {:>6}  {:>11}", duration(m.step_ms * 1e-3), token_rate(m.tokens_per_s)), kStays},
      {fmt::format("  {:>12}", flop_rate(m.tflops * 1e12)), 1},
      {fmt::format("  mfu {}", plain(100 * m.mfu, 1)), kStays},
      {fmt::format("/{}", plain(100 * m.mfu_palm, 1)), 2},
      {"%", kStays},
      {fmt::format("  pad {:>2}%", plain(100 * m.padding, 0)), 3},
      {m.router ? fmt::format("  load {:>4}", plain(m.router->largest_load.value_or(0), 2)) : "", 4},
      {fmt::format("  eta {:>6}", duration(eta_seconds)), kStays}};
  const auto length = [&] {
    std::size_t sum = 0;
    for (const Field& f : fields) sum += f.text.size();
    return sum;
  };
  for (int next = 1; next <= kLast && length() > columns; ++next)
    std::erase_if(fields, [&](const Field& f) { return f.leaves == next; });
  std::string line;
  for (const Field& f : fields) line += f.text;
  return line.substr(0, columns);
}

void Console::start(const train::RunHeader& header) {
  train_ = header.config->train;
  trained_on_ = header.trained_on;
  steps_ = header.steps;
  seconds_left_ = header.seconds_left;
  first_step_ = header.first_step;
  every_ = std::max<std::int64_t>(header.config->log.every, 1);
  const std::size_t columns = out_.terminal() ? std::min(kConsoleColumns, out_.columns() + 1) : kHeaderColumns;
  for (const std::string& line : header_lines(header, columns)) out_.keep(line);
  started_ = last_kept_ = header_at_ = steady_seconds();
}

bool Console::keeps(const train::StepMetrics& m) const {
  if (m.step == first_step_ + 1 || m.step == steps_ || m.eval_loss) return true;
  if (out_.terminal()) return steps_ > 0 && m.step * 10 / steps_ != (m.step - 1) * 10 / steps_;
  return m.step % every_ == 0 && steady_seconds() - last_kept_ >= 1;
}

void Console::step(const train::StepMetrics& m) {
  const double now = steady_seconds();
  // Work before the first step (memory, a first evaluation) is done once, and does not count in the pace.
  if (m.step == first_step_ + 1) started_ = now - m.step_ms * 1e-3;
  const auto batches = [&](std::int64_t from, std::int64_t to) {
    return static_cast<double>(config::micro_batches_before(train_, to) - config::micro_batches_before(train_, from));
  };
  const double a_batch = (now - started_) / batches(first_step_, std::max(m.step, first_step_ + 1));
  double eta = a_batch * batches(m.step, std::max(steps_, m.step));
  if (seconds_left_) {
    const double of_hours = std::max(0.0, *seconds_left_ - (now - header_at_));
    eta = steps_ > 0 ? std::min(eta, of_hours) : of_hours;
  }
  const std::size_t room = std::min(kLineColumns, out_.columns());
  const std::string line = progress_line(m, steps_, eta, room - std::min(room, failing_.size())) + failing_;
  if (!keeps(m)) {
    if (out_.terminal()) out_.show(line);
    return;
  }
  out_.keep(line);
  last_kept_ = now;
  if (m.eval_loss)
    out_.keep(fmt::format(
        "{}{} after step {}", held_out_in_words(*m.eval_loss, m.eval_sets, trained_on_),
        m.eval_loss_average ? fmt::format(", of the average {},", plain(*m.eval_loss_average, 4)) : "", m.step));
}

void Console::set_failing(const std::vector<std::string>& names) {
  failing_ = names.empty() ? "" : "  cannot write " + (names.size() == 1 ? names[0] : counted(names.size(), "file"));
}

// The first call is not timed: it may wait for data and for programs to be made. Ranks tell of several batches at a
// time.
void Console::evaluating(const train::Evaluating& e) {
  const double now = steady_seconds();
  if (e.batch <= std::exchange(evaluated_, e.batch)) {
    evaluating_since_ = now;
    evaluated_first_ = e.batch;
  }
  std::string line = fmt::format("evaluating, batch {}", e.batch);
  if (e.batches > 0) line += fmt::format("/{}", e.batches);
  if (e.batches > 0)
    line += eta(now - evaluating_since_, static_cast<double>(e.batch - evaluated_first_),
                static_cast<double>(e.batches - evaluated_first_));
  out_.show(line);
}

void Console::on(const train::Event& event) {
  hear(
      event, [&](const train::Started& e) { start(e); },
      [&](const train::Loading& e) { loading_.show(out_, e.bytes, e.of); },
      [&](const train::Counting& e) {
        out_.show(fmt::format("counting data.train for train.epochs: {}{}", size_in_words(e.so_far),
                              e.share ? fmt::format(", {} of it", percent(*e.share)) : ""));
      },
      [&](const train::Evaluating& e) { evaluating(e); },
      // An evaluation after a step stands below that step's own line; the one before the first step has no such line.
      [&](const train::Evaluated& e) {
        evaluated_ = std::numeric_limits<std::int64_t>::max();  // the next one begins anew
        if (e.step == first_step_) out_.keep(held_out_in_words(e.loss, e.sets, trained_on_) + " before the first step");
      },
      [&](const train::Stepped& e) { step(e); },
      [&](const train::Sampled& e) {
        for (const train::SampledText& t : e.texts)
          out_.keep(fmt::format("sample after step {}: {}", e.step, one_line(t.prompt + t.text)));
      },
      [&](const train::Saved& e) {
        const std::string held = e.held < 1e-3 ? "" : fmt::format(", of which training waited {}", duration(e.held));
        out_.keep(fmt::format("saved step {} in {}{}: {}", e.step, duration(e.seconds), held, e.folder.string()));
      },
      [&](const train::Pipeline& e) {
        for (const std::string& line : data::in_words(e)) out_.keep(line);
      },
      [&](const train::Note& e) { out_.keep(e.text); },
      [&](const train::Planned& e) {
        steps_ = e.steps;
        out_.keep(e.text);
      },
      [&](const train::Warning& e) { out_.keep("warning: " + e.text); },
      [&](const train::RolledBack& e) {
        out_.keep("warning: " + e.text);
        first_step_ = e.to;  // the time that is left counts from here
      },
      [&](const train::Finished& e) { out_.keep(in_words(e)); });
}

}  // namespace redline::report
