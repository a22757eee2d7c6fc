// The rules that involve several keys, and the values that follow from others.
#include <limits>

#include "base/error.h"
#include "config/load.h"

namespace redline::config {
namespace {

// One sentence about some keys, led by where the last of them was set.
class Rules {
 public:
  explicit Rules(const Origins& origins) : origins_(origins) {}

  template <class... Args>
  void require(bool holds, std::initializer_list<std::string_view> keys, fmt::format_string<Args...> format,
               Args&&... args) const {
    if (!holds) throw UserError(origins_.prefix(keys) + fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const Origins& origins_;
};

void resolve_model(Model& m, const Rules& rules) {
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  rules.require(m.heads % m.kv_heads == 0, {"model.heads", "model.kv_heads"},
                "model.heads ({}) must be a multiple of model.kv_heads ({})", m.heads, m.kv_heads);
  if (m.head_dim == 0) {
    rules.require(m.hidden % m.heads == 0, {"model.hidden", "model.heads", "model.head_dim"},
                  "model.hidden ({}) must be a multiple of model.heads ({}) unless model.head_dim is set", m.hidden,
                  m.heads);
    m.head_dim = m.hidden / m.heads;
  }
  rules.require(m.head_dim <= kMaxHeadDim, {"model.head_dim", "model.hidden", "model.heads"},
                "model.head_dim ({}) must not be above {}", m.head_dim, kMaxHeadDim);
  rules.require(m.head_dim % 2 == 0, {"model.head_dim", "model.hidden", "model.heads"},
                "model.head_dim ({}) must be even: rotary positions turn pairs of elements", m.head_dim);

  rules.require(m.pad_token < m.vocab, {"model.pad_token", "model.vocab"},
                "model.pad_token ({}) must be below model.vocab ({})", m.pad_token, m.vocab);
  if (m.rope_scaling == "llama3") {
    rules.require(m.rope_high_freq_factor > m.rope_low_freq_factor,
                  {"model.rope_high_freq_factor", "model.rope_low_freq_factor"},
                  "model.rope_high_freq_factor ({}) must be greater than model.rope_low_freq_factor ({})",
                  m.rope_high_freq_factor, m.rope_low_freq_factor);
  }
}

void check_steps(const Config& c, const Rules& rules) {
  const Train& t = c.train;
  const Optim& o = c.optim;
  const bool by_steps = t.max_steps > 0 || t.max_tokens > 0 || t.epochs > 0;
  rules.require(by_steps || t.max_hours > 0, {"train.max_steps", "train.max_tokens", "train.epochs", "train.max_hours"},
                "train.max_steps, train.max_tokens, train.epochs and train.max_hours are all 0: set one of them, so "
                "that training ends");
  rules.require(by_steps || t.fit_hours || o.schedule == "constant", {"train.max_hours", "optim.schedule"},
                "train.max_hours ({}) alone ends training, and optim.schedule (\"{}\") counts to the last step: set "
                "train.fit_hours = true, so that the steps follow the hours, or train.max_steps, or optim.schedule = "
                "\"constant\"",
                t.max_hours, o.schedule);
  rules.require(!t.fit_hours || t.max_hours > 0, {"train.fit_hours", "train.max_hours"},
                "train.fit_hours is on and train.max_hours is 0: set the hours that the steps are to fit");
  rules.require(t.patience == 0 || t.eval_every > 0, {"train.patience", "train.eval_every"},
                "train.patience ({}) counts evaluations, and train.eval_every is 0: set the steps between them",
                t.patience);
  rules.require(t.target_loss == 0 || t.eval_every > 0, {"train.target_loss", "train.eval_every"},
                "train.target_loss ({}) needs evaluations, and train.eval_every is 0: set the steps between them",
                t.target_loss);
  rules.require(o.min_lr <= o.lr, {"optim.min_lr", "optim.lr"}, "optim.min_lr ({}) must not be above optim.lr ({})",
                o.min_lr, o.lr);
  rules.require(o.schedule_start == 0 || t.max_steps == 0 || o.schedule_start < t.max_steps,
                {"optim.schedule_start", "train.max_steps"},
                "optim.schedule_start ({}) must be below train.max_steps ({}), so that the schedule has steps",
                o.schedule_start, t.max_steps);
  rules.require(o.clip == 0 || o.clip >= kSmallestFactor, {"optim.clip"},
                "optim.clip ({}) must be 0 (no clipping) or at least {}: updates are computed in fp32", o.clip,
                kSmallestFactor);
}

void check_batch(const Config& c, const Rules& rules) {
  // Token offsets and document counts are 32-bit on the device. The table bounds each factor by 2^24, so products fit.
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  rules.require(
      c.train.batch_size * c.train.seq_len <= kLimit, {"train.batch_size", "train.seq_len"},
      "train.batch_size ({}) times train.seq_len ({}) must be below 2^31 tokens; raise train.accumulate instead",
      c.train.batch_size, c.train.seq_len);
  rules.require(c.train.batch_size * c.data.max_segments <= kLimit, {"train.batch_size", "data.max_segments"},
                "train.batch_size ({}) times data.max_segments ({}) must be below 2^31 documents", c.train.batch_size,
                c.data.max_segments);
  rules.require(
      c.data.documents == 0 || c.data.train == std::vector<std::string>{"ping"}, {"data.documents", "data.train"},
      "data.documents ({}) counts generated documents; it must be 0 for other data than \"ping\"", c.data.documents);
  rules.require(!c.data.train.empty(), {"data.train"}, "data.train is empty: name text files, a folder, or \"ping\"");
}

}  // namespace

std::string Origins::prefix(std::initializer_list<std::string_view> keys) const {
  const Place* last = nullptr;
  for (const std::string_view key : keys) {
    const auto it = places_.find(key);
    if (it != places_.end() && (!last || it->second.order > last->order)) last = &it->second;
  }
  return last ? last->text + ": " : "";
}

void resolve(Config& config) {
  const Rules rules(config.origins);
  resolve_model(config.model, rules);
  check_steps(config, rules);
  check_batch(config, rules);
  const Optim& o = config.optim;
  rules.require(
      !o.cautious_decay || o.name == "muon", {"optim.cautious_decay", "optim.name"},
      "optim.cautious_decay is for the matrices that Muon updates, and optim.name is \"{}\"; set it to \"muon\", or "
      "optim.cautious_decay to false",
      o.name);
  rules.require(config.guard.spike == 0 || config.guard.spike > 1, {"guard.spike"},
                "guard.spike ({}) must be 0 (no limit) or above 1: it counts usual norms", config.guard.spike);
  rules.require(
      o.moments != "8bit" || o.name == "adamw", {"optim.moments", "optim.name"},
      "optim.moments = \"8bit\" is for the matrices of the layers, and optim.name = \"{}\" leaves AdamW none of "
      "them: use \"fp32\" or \"bf16\"",
      o.name);
}

}  // namespace redline::config
