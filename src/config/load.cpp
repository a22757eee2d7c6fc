// Layers of settings: defaults, preset, file, command line. Each later one wins, and each remembers where it came from.
// Then the values that follow from others are filled in, and the rules over several keys are checked.
#include "config/load.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/words.h"
#include "config/keys.h"
#include "config/toml.h"

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
  if (m.rope_scaling == "yarn")
    rules.require(m.rope_beta_fast > m.rope_beta_slow, {"model.rope_beta_fast", "model.rope_beta_slow"},
                  "model.rope_beta_fast ({}) must be greater than model.rope_beta_slow ({})", m.rope_beta_fast,
                  m.rope_beta_slow);
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
  rules.require(
      t.average != "last" || by_steps || t.fit_hours, {"train.average", "train.max_hours"},
      "train.average = \"last\" counts back from the last step, and train.max_hours ({}) alone ends training: "
      "set train.max_steps or train.fit_hours = true, or train.average = \"ema\"",
      t.max_hours);
  rules.require(o.warmup_fraction == 0 || by_steps, {"optim.warmup_fraction", "train.max_hours"},
                "optim.warmup_fraction ({}) is a share of steps, and train.max_hours ({}) alone ends training, so that "
                "they are not known: give optim.warmup_steps instead",
                o.warmup_fraction, t.max_hours);
  rules.require(o.min_lr <= o.lr, {"optim.min_lr", "optim.lr"},
                "optim.min_lr ({}) must not be above optim.lr ({}): set both, optim.min_lr={:.3g} for example",
                o.min_lr, o.lr, o.lr / 10);
  rules.require(o.schedule_start == 0 || t.max_steps == 0 || o.schedule_start < t.max_steps,
                {"optim.schedule_start", "train.max_steps"},
                "optim.schedule_start ({}) must be below train.max_steps ({}), so that the schedule has steps",
                o.schedule_start, t.max_steps);
  rules.require(o.clip == 0 || o.clip >= kSmallestFactor, {"optim.clip"},
                "optim.clip ({}) must be 0 (no clipping) or at least {}: updates are computed in fp32", o.clip,
                kSmallestFactor);
}

void check_schedule(const Optim& o, const Rules& rules) {
  rules.require((o.warmup_steps > 0) + (o.warmup_tokens > 0) + (o.warmup_fraction > 0) <= 1,
                {"optim.warmup_tokens", "optim.warmup_steps", "optim.warmup_fraction"},
                "optim.warmup_steps ({}), optim.warmup_tokens ({}) and optim.warmup_fraction ({}) all say how long the "
                "warm-up is: set one of them, and the others to 0",
                o.warmup_steps, o.warmup_tokens, o.warmup_fraction);
  const bool wsd = o.schedule == "wsd";
  rules.require(
      wsd || o.decay_tokens == 0, {"optim.decay_tokens", "optim.schedule"},
      "optim.decay_tokens ({}) is of optim.schedule = \"wsd\", and the schedule is \"{}\": set it to 0, or the "
      "schedule to \"wsd\"",
      o.decay_tokens, o.schedule);
  rules.require(
      wsd || o.decay_shape == "linear", {"optim.decay_shape", "optim.schedule"},
      "optim.decay_shape = \"{}\" is of optim.schedule = \"wsd\", and the schedule is \"{}\": leave it out, or "
      "set the schedule to \"wsd\"",
      o.decay_shape, o.schedule);
}

// Tokens or batches say how much an evaluation covers. What the user wrote goes before what a preset or an old run has,
// and the command line before a file.
void settle_evaluation(Config& c, const Rules& rules) {
  constexpr std::string_view kTokens = "train.eval_tokens", kBatches = "train.eval_batches";
  Train& t = c.train;
  rules.require(
      t.eval_tokens > 0 || t.eval_batches > 0 || t.eval_every == 0, {kTokens, kBatches},
      "train.eval_tokens and train.eval_batches are both 0, and train.eval_every is {}: set train.eval_tokens "
      "to the held-out tokens of an evaluation, or train.eval_every to 0 where there is to be none",
      t.eval_every);
  if (t.eval_tokens == 0 || t.eval_batches == 0) return;
  const auto weight = [&](std::string_view key) {
    return c.origins.on_command_line(key) ? 2 : c.origins.written(key) ? 1 : 0;
  };
  const int tokens = weight(kTokens), batches = weight(kBatches);
  rules.require(tokens == 0 || tokens != batches, {kTokens, kBatches},
                "train.eval_tokens ({}) and train.eval_batches ({}) both say how much an evaluation covers: leave "
                "train.eval_batches out",
                t.eval_tokens, t.eval_batches);
  (batches > tokens ? t.eval_tokens : t.eval_batches) = 0;
}

void check_ramps(const Config& c, const Rules& rules) {
  const Train& t = c.train;
  rules.require((t.accumulate_from > 0) == (t.accumulate_ramp_steps > 0),
                {"train.accumulate_from", "train.accumulate_ramp_steps"},
                "train.accumulate_from ({}) and train.accumulate_ramp_steps ({}) make the ramp of the batch together: "
                "set both, or neither",
                t.accumulate_from, t.accumulate_ramp_steps);
  rules.require(t.accumulate_from == 0 || !t.automatic_batch_size, {"train.accumulate_from", "train.batch_size"},
                "train.accumulate_from ({}) counts micro-batches, and train.batch_size = \"auto\" chooses how large "
                "they are: give train.batch_size as a number",
                t.accumulate_from);
  rules.require(t.accumulate_from <= t.accumulate, {"train.accumulate_from", "train.accumulate"},
                "train.accumulate_from ({}) must not be above train.accumulate ({}), to which a step grows",
                t.accumulate_from, t.accumulate);
  rules.require((t.seq_len_from > 0) == (t.seq_len_ramp_steps > 0), {"train.seq_len_from", "train.seq_len_ramp_steps"},
                "train.seq_len_from ({}) and train.seq_len_ramp_steps ({}) make the ramp of lengths together: set "
                "both, or neither",
                t.seq_len_from, t.seq_len_ramp_steps);
  if (t.seq_len_from == 0) return;
  rules.require(t.seq_len_from < t.seq_len, {"train.seq_len_from", "train.seq_len"},
                "train.seq_len_from ({}) must be below train.seq_len ({}), to which documents grow", t.seq_len_from,
                t.seq_len);
  const std::int64_t cuts = (t.seq_len + t.seq_len_from - 1) / t.seq_len_from;  // of a row
  rules.require(cuts < c.data.max_segments, {"train.seq_len_from", "data.max_segments"},
                "train.seq_len_from ({}) cuts a row of {} tokens into {} documents, and data.max_segments ({}) has no "
                "room for them beside the documents that are shorter: raise it to {} or more, or train.seq_len_from",
                t.seq_len_from, t.seq_len, cuts, c.data.max_segments, 2 * cuts);
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
  const std::size_t weights = c.data.weights.size(), paths = c.data.train.size();
  rules.require(weights == 0 || weights == paths, {"data.weights", "data.train"},
                "data.weights has {} and data.train {}: give one weight for each, in their order",
                counted(weights, "weight"), counted(paths, "path"));
  rules.require(weights == 0 || c.train.epochs == 0, {"data.weights", "train.epochs"},
                "train.epochs ({}) counts how often all of the data are read, and with data.weights each entry of "
                "data.train is read as often as its share asks for: set train.max_steps or train.max_tokens instead",
                c.train.epochs);
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

void require_data(const Config& config) {
  const std::string whose = config.preset.empty() ? "" : fmt::format(" (preset {} leaves that to you)", config.preset);
  Rules(config.origins)
      .require(!config.data.train.empty(), {"data.train"},
               "data.train names nothing to train on{}: give text, .jsonl, .parquet or token files, or a folder of "
               "them, as in data.train=texts/, or data.train=ping for made-up network measurements",
               whose);
}

bool stand_in_for_data(Config& config) {
  if (!config.data.train.empty()) return false;
  config.train.epochs = 0;  // random tokens have no end
  config.data.train = {fmt::format("random:{}", config.model.vocab)};
  config.data.tokenizer.clear();
  config.data.chat = "none";
  config.data.eval.clear();
  return true;
}

std::int64_t bytes_of_amount(std::string_view text) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  if (text.empty()) return kNone;
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return 0;
  std::string_view unit(at, static_cast<std::size_t>(end - at));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  const auto* const found = std::ranges::find(kUnits, unit);
  if (found == std::end(kUnits)) return 0;
  const double bytes = number * std::exp2(10.0 * static_cast<double>(found - kUnits + 1));
  return bytes >= 1 && bytes < 0x1p62 ? static_cast<std::int64_t>(bytes) : 0;
}

void resolve(Config& config) {
  const Rules rules(config.origins);
  const auto check_amount = [&](std::string_view key, const std::string& amount) {
    rules.require(bytes_of_amount(amount) > 0, {key},
                  "{} (\"{}\") is no amount of memory: give a number and KiB, MiB, GiB or TiB, such as \"24GiB\"", key,
                  amount);
  };
  check_amount("memory.limit", config.memory.limit);
  check_amount("memory.host_limit", config.memory.host_limit);
  resolve_model(config.model, rules);
  settle_evaluation(config, rules);
  check_steps(config, rules);
  check_schedule(config.optim, rules);
  check_batch(config, rules);
  check_ramps(config, rules);
  const std::int64_t sequence = config.parallel.sequence;
  rules.require((sequence & (sequence - 1)) == 0, {"parallel.sequence"},
                "parallel.sequence ({}) must be a power of two", sequence);
  rules.require(config.parallel.shards != 1, {"parallel.shards"},
                "parallel.shards (1) leaves all of the state on every rank; set parallel.mode = \"ddp\" for that, or "
                "give 2 or more, or 0 for all ranks");
  // dlogits in eight bits have a scale that leaves them room up to 1.75, which logits of 35 reach with this much.
  constexpr double kMostZLossInFp8 = 0.01;
  const bool fp8_head = config.precision.matmul == "fp8" && config.precision.head == "fp8";
  rules.require(!fp8_head || config.train.z_loss <= kMostZLossInFp8, {"train.z_loss", "precision.head"},
                "train.z_loss ({}) must not be above {} where precision.head = \"fp8\": gradients of logits would not "
                "fit into eight bits",
                config.train.z_loss, kMostZLossInFp8);
  rules.require(config.precision.gradients == "fp32" || config.log.norms_every == 0,
                {"log.norms_every", "precision.gradients"},
                "log.norms_every looks at gradients in fp32, and precision.gradients is \"{}\"; set one of them back",
                config.precision.gradients);
  const bool fp32_masters = config.precision.masters == "fp32";
  rules.require(fp32_masters || config.log.norms_every == 0, {"log.norms_every", "precision.masters"},
                "log.norms_every looks at weights in fp32, and precision.masters is \"{}\"; set one of them back",
                config.precision.masters);
  rules.require(fp32_masters || config.train.average == "none", {"train.average", "precision.masters"},
                "train.average averages masters in fp32, and precision.masters is \"{}\"; set one of them back",
                config.precision.masters);
  const Optim& o = config.optim;
  rules.require(
      !o.cautious_decay || o.name == "muon", {"optim.cautious_decay", "optim.name"},
      "optim.cautious_decay is for the matrices that Muon updates, and optim.name is \"{}\"; set it to \"muon\", or "
      "optim.cautious_decay to false",
      o.name);
  rules.require(config.guard.spike == 0 || config.guard.spike > 1, {"guard.spike"},
                "guard.spike ({}) must be 0 (no limit) or above 1: it counts usual norms", config.guard.spike);
  const std::string twin = config.preset + "-adamw";  // the preset with the settings of its original
  const bool has_twin = std::ranges::find(embedded_configs(), twin, &EmbeddedFile::name) != embedded_configs().end();
  rules.require(
      o.moments != "8bit" || o.name == "adamw", {"optim.moments", "optim.name"},
      "optim.moments = \"8bit\" is for the matrices of the layers, and optim.name = \"{}\" leaves AdamW none of "
      "them: use \"fp32\" or \"bf16\", or {}",
      o.name, has_twin ? fmt::format("the preset {}", twin) : "optim.name = \"adamw\" with a rate of its own");
}

namespace {

struct Loading {
  Config config;

  bool shipped = false;  // what is being applied is a preset

  void set(const Key& key, const Value& value, const std::string& place) {
    assign(key, value, place, config);
    config.origins.set(key.name, place, shipped);
  }
};

void apply(const std::vector<Setting>& settings, std::string_view file_name, Loading& loading) {
  for (const Setting& s : settings) {
    const std::string place = fmt::format("{}:{}", file_name, s.line);
    const Key* key = find_key(s.name);
    if (key && !s.table) {
      loading.set(*key, s.value, place);
    } else if (key) {
      fail_user("{}: {} is a key ({}), not a section", place, s.name, expected(*key));
    } else if (is_section(s.name)) {
      if (!s.table)
        fail_user("{}: {} is a section, not a key: its keys are written as {}.NAME = VALUE", place, s.name, s.name);
    } else if (s.table) {
      std::vector<std::string> sections;
      for (const Key& k : keys()) sections.emplace_back(k.name.substr(0, k.name.find('.')));
      std::string guess = section_in_other_trainers(s.name);
      if (guess.empty()) guess = nearest(s.name, sections);
      const auto last = std::ranges::unique(sections).begin();
      fail_user("{}: unknown section '{}'; {}", place, s.name,
                guess.empty() ? fmt::format("the sections are {}", fmt::join(std::next(sections.begin()), last, ", "))
                              : fmt::format("did you mean '{}'?", guess));
    } else {
      fail_user("{}: {}", place, unknown_key(s.name, literal(s.value)));
    }
  }
}

// The reasons that dump() wrote above keys. They are where their keys come from.
void take_reasons(std::string_view text, Origins& origins) {
  std::string section, reason;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.starts_with(fmt::format("# {}", kChosen))) {
      reason = line.substr(2);
    } else if (line.starts_with('[')) {
      section = std::string(line.substr(1, line.find(']') - 1)) + ".";
    } else if (!reason.empty()) {
      const std::string key = section + std::string(line.substr(0, line.find(' ')));
      if (find_key(key)) origins.set(key, std::exchange(reason, {}));
    }
  }
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    if (const std::string_view part = trimmed(text.substr(0, comma)); !part.empty()) parts.emplace_back(part);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

struct Override {
  const Key* key;
  Value value;
};

// "key=value": the value as TOML where it is, else the word itself; a key that holds words takes any value as one.
Override read_override(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos) fail_user("{}: '{}' is not of the form key=value", kCommandLine, word);
  const std::string_view name = trimmed(std::string_view(word).substr(0, equals));
  const std::string_view text = trimmed(std::string_view(word).substr(equals + 1));
  const Key* key = find_key(name);
  if (!key) fail_user("{}: {}", kCommandLine, unknown_key(name, text));

  const bool numbers = std::holds_alternative<Field<std::vector<std::int64_t>>>(key->field) ||
                       std::holds_alternative<Field<std::vector<double>>>(key->field);
  if (numbers && !text.starts_with('[')) {  // 64,128
    if (const std::optional<Value> several = read_toml_value(fmt::format("[{}]", text))) return {key, *several};
  }
  const bool list = std::holds_alternative<Field<std::vector<std::string>>>(key->field);
  const bool words = list || std::holds_alternative<Field<std::string>>(key->field);
  if (text.empty() && !list)
    fail_user("{}: {} needs a value ({}{})", kCommandLine, name, expected(*key),
              words ? fmt::format("; an empty one is {}='\"\"'", name) : "");

  const std::optional<Value> value = read_toml_value(text);
  const bool quoted = value && (std::holds_alternative<std::string>(*value) ||
                                std::holds_alternative<std::vector<std::string>>(*value));
  if (value && (quoted || !words)) return {key, *value};
  // A value that goes into the run's config.toml must come back out of it.
  if (!read_toml_value(literal(std::string(text))))
    fail_user("{}: the value of {} is not valid UTF-8", kCommandLine, name);
  if (list) return {key, split_at_commas(text)};
  return {key, std::string(text)};
}

// Whose settings are not those of a small model from scratch.
bool starts_from_weights(const std::vector<Override>& overrides) {
  std::string folder;
  for (const Override& o : overrides)
    if (const auto* name = std::get_if<std::string>(&o.value); name && o.key->name == "model.init_from") folder = *name;
  return !folder.empty();
}

std::string_view preset_text(const std::string& name, std::string_view place) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded_configs()) {
    if (file.name == name) return file.text;
    names.emplace_back(file.name);
  }
  fail_user("{}: unknown preset '{}'; {}", place, name, names_known(name, "presets", names));
}

std::string read_file(const std::string& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) {
    std::vector<std::string> names;
    for (const EmbeddedFile& preset : embedded_configs()) names.emplace_back(preset.name);
    const std::string guess = nearest(Path(file).stem().string(), names);
    fail_user("{}: no such file{}", file,
              guess.empty() ? "; give a TOML file or one of the presets that `redline config --presets` lists"
                            : fmt::format("; there is a preset '{}'", guess));
  }
  if (std::filesystem::is_directory(status)) {
    const Path folder = file;
    if (std::filesystem::exists(folder / "config.toml", error))
      fail_user(
          "{}: a folder, not a TOML file; the configuration of its run is {}, and --resume --out {} goes on with it",
          file, (folder / "config.toml").string(), file);
    if (std::filesystem::exists(folder / "config.json", error))
      fail_user("{}: a folder, not a TOML file; model.init_from={} takes the model in it", file, file);
    fail_user("{}: a folder, not a TOML file; `redline train {}` trains on the text in it", file, file);
  }
  if (!std::filesystem::is_regular_file(status) && !std::filesystem::is_fifo(status))
    fail_user("{}: not a file that can be read to its end", file);
  if (std::filesystem::is_fifo(status)) {  // what a shell makes of <(...)
    std::ifstream pipe(file, std::ios::binary);
    if (!pipe) fail_user("{}: the pipe cannot be read; give a file", file);
    std::string text(kMostTomlBytes + 1, '\0');  // read_toml() refuses what fills it
    pipe.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(pipe.gcount()));
    return text;
  }
  try {
    return read_at_most(real_files(), file, kMostTomlBytes);
  } catch (const MachineError& e) {
    throw UserError(e.what());  // a configuration that cannot be read is the user's to mend
  }
}

}  // namespace

Config load(const Sources& sources, const Complete& complete) {
  std::vector<Setting> settings;
  std::string text;
  if (!sources.file.empty()) settings = read_toml(text = read_file(sources.file), sources.file);
  std::vector<Override> overrides;
  for (const std::string& word : sources.overrides) overrides.push_back(read_override(word));

  // The preset is named by --preset, then the command line's last preset=, then the file.
  std::string preset = sources.preset;
  std::string place(kCommandLine);
  for (const Override& o : overrides) {
    if (const auto* name = std::get_if<std::string>(&o.value);
        name && o.key->name == "preset" && sources.preset.empty())
      preset = *name;
  }
  for (const Setting& s : settings) {
    if (const auto* name = std::get_if<std::string>(&s.value); name && s.name == "preset" && preset.empty()) {
      preset = *name;
      place = fmt::format("{}:{}", sources.file, s.line);
    }
  }
  if (preset.empty() && sources.file.empty() && !starts_from_weights(overrides)) preset = "quick";
  if (preset == "none") preset.clear();

  Loading loading;
  if (sources.of_run) {
    assign_old_meanings(loading.config);
  } else if (!preset.empty()) {
    const std::string label = fmt::format("preset {}", preset);
    loading.shipped = true;
    apply(read_toml(preset_text(preset, place), label), label, loading);
    loading.shipped = false;
  }
  apply(settings, sources.file, loading);
  if (sources.of_run) take_reasons(text, loading.config.origins);
  for (const Override& o : overrides) loading.set(*o.key, o.value, std::string(kCommandLine));
  loading.config.preset = preset;
  if (complete) complete(loading.config);
  resolve(loading.config);
  return loading.config;
}

Config parse(std::string_view text, std::string_view file_name, const Complete& complete) {
  Loading loading;
  assign_old_meanings(loading.config);
  apply(read_toml(text, file_name), file_name, loading);
  take_reasons(text, loading.config.origins);
  if (complete) complete(loading.config);
  resolve(loading.config);
  return loading.config;
}

std::vector<std::string> keep_old_meanings(const Config& run, Config& config) {
  constexpr std::string_view kBatches = "train.eval_batches";
  std::vector<std::string> kept;
  Config old;
  assign_old_meanings(old);
  for (const Key& key : keys()) {
    const Value value = read(key, run);
    if (key.before.empty() || value != read(key, old) || value == read(key, config)) continue;
    if (config.origins.written(key.name) || key.name == kBatches) continue;
    assign(key, value, key.name, config);
    kept.emplace_back(key.name);
  }
  // The batches of an evaluation go with its tokens: a run that counts batches keeps its own number of them.
  Train& t = config.train;
  if (t.eval_tokens == 0 && run.train.eval_batches > 0 && !config.origins.written(kBatches)) {
    t.eval_batches = run.train.eval_batches;
    kept.emplace_back(kBatches);
  }
  return kept;
}

std::vector<std::string> differing_keys(const Config& a, const Config& b) {
  std::vector<std::string> names;
  for (const Key& key : keys()) {
    if (read(key, a) != read(key, b)) names.emplace_back(key.name);
  }
  return names;
}

}  // namespace redline::config
