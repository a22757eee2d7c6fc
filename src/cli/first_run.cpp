// Looks at a folder, reads its text once for a tokenizer, and measures a few models. The rules of thumb: twenty tokens
// a parameter is what compute-optimal training takes (Hoffmann et al., 2022); text that is read up to four times is
// about as good as new text, and adds little beyond some sixteen (Muennighoff et al., 2023). Below a few million tokens
// of text a model needs more parameters than that to write words at all, so the bound by text is looser than both.
#include "cli/first_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "base/words.h"
#include "cli/measuring.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/tokenizer.h"
#include "config/keys.h"
#include "data/from_config.h"
#include "data/input/byte_stream.h"
#include "data/input/text_input.h"
#include "data/open_corpus.h"
#include "data/roles.h"
#include "data/shards/shards.h"
#include "data/tokenizer/tokenizer.h"
#include "data/utf8.h"
#include "perf/measure.h"
#include "perf/peak.h"
#include "report/figures.h"
#include "report/live_line.h"
#include "report/page.h"
#include "report/run_record.h"
#include "report/run_summary.h"
#include "train/run_folder.h"

namespace redline::cli {
namespace {

constexpr double kTokensAParameter = 20, kParametersAToken = 3;  // by the time; by the text
constexpr double kMostEpochs = 20, kManyEpochs = 4;
constexpr double kLeastForTokenizer = 256e3;  // bytes
constexpr double kSteps = 4000;               // about so many: small steps learn most from little text
constexpr std::int64_t kLeastStep = 512, kMostStep = 1 << 18;
constexpr std::int64_t kCpuMicroBatch = 4096, kCardMicroBatch = 1 << 15;  // tokens
constexpr double kReached = 0.35;                                         // of a device's peak, for the first guess

constexpr auto kModels = std::to_array<FirstModel>({{4, 128, 4, 384, 256},
                                                    {6, 192, 6, 512, 256},
                                                    {6, 256, 4, 704, 256},
                                                    {8, 384, 6, 1024, 512},
                                                    {12, 512, 8, 1408, 1024},
                                                    {12, 768, 12, 2048, 1024},
                                                    {16, 1024, 16, 2816, 1024},
                                                    {24, 1280, 20, 3456, 1024}});

std::int64_t step_for(double tokens, std::int64_t row) {
  const double wanted = std::clamp(tokens / kSteps, static_cast<double>(kLeastStep), static_cast<double>(kMostStep));
  return std::max(row, static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(wanted))));
}

// The rows of a micro-batch, and micro-batches a step.
struct Batch {
  std::int64_t rows, accumulate, tokens;
};
Batch batch_of(const FirstPlan& plan, device::Kind device) {
  const std::int64_t row = plan.model.seq_len, step = step_for(plan.tokens, row);
  const std::int64_t most = device == device::Kind::cpu ? kCpuMicroBatch : kCardMicroBatch;
  const std::int64_t rows = plan.rows > 0 ? plan.rows : std::max<std::int64_t>(1, std::min(step, most) / row);
  const std::int64_t accumulate =
      plan.accumulate > 0 ? plan.accumulate : std::max<std::int64_t>(1, step / (rows * row));
  return {rows, accumulate, rows * row * accumulate};
}

double two_digits(double x) { return std::stod(fmt::format("{:.1e}", x)); }

std::string millions(double x) { return fmt::format("{:.3g} million", 1e-6 * x); }

}  // namespace

std::int64_t first_vocabulary(double text_bytes) {
  if (text_bytes < kLeastForTokenizer) return 0;
  constexpr double kMostBytes[] = {2e6, 16e6, 64e6, 512e6, 4e9};
  std::int64_t vocabulary = 1024;
  for (const double most : kMostBytes)
    if (text_bytes > most) vocabulary *= 2;
  return vocabulary;
}

double FirstModel::parameters(std::int64_t vocabulary) const {
  const std::int64_t layer = 4 * hidden * hidden + 3 * hidden * ffn;
  return static_cast<double>(layers * layer + vocabulary * hidden);
}

std::span<const FirstModel> first_models() { return kModels; }

FirstPlan plan_first_run(std::span<const FirstModel> models, const FirstText& text, double seconds, double flops,
                         const MeasureModel& measure) {
  const auto parameters = [&](std::size_t i) { return models[i].parameters(text.vocabulary); };
  const auto suits_text = [&](std::size_t i) { return i == 0 || parameters(i) <= kParametersAToken * text.tokens; };
  const auto suits_time = [&](std::size_t i, double rate) {
    return kTokensAParameter * parameters(i) <= rate * seconds;
  };
  std::vector<double> rates(models.size(), -1);
  const auto rate_of = [&](std::size_t i) {
    const double tokens = std::min(kTokensAParameter * parameters(i), kMostEpochs * text.tokens);
    if (rates[i] < 0) rates[i] = measure(models[i], step_for(tokens, models[i].seq_len));
    return rates[i];
  };

  std::size_t at = 0;  // by the peak
  while (at + 1 < models.size() && suits_text(at + 1) &&
         suits_time(at + 1, kReached * flops / (6 * parameters(at + 1))))
    ++at;
  while (at > 0 && !suits_time(at, rate_of(at))) --at;
  while (at + 1 < models.size() && suits_text(at + 1) && rates[at + 1] < 0 && suits_time(at + 1, rate_of(at + 1))) ++at;

  FirstPlan plan{models[at], rate_of(at)};
  plan.by_text = at + 1 < models.size() && !suits_text(at + 1);
  plan.tokens = std::min(plan.tokens_per_s * seconds, kMostEpochs * text.tokens);
  plan.epochs = plan.tokens / std::max(text.tokens, 1.0);
  return plan;
}

FirstPlan end_as_asked(FirstPlan plan, const FirstText& text, const FirstEnd& end, device::Kind device) {
  if (end.steps == 0 && end.tokens == 0 && end.epochs == 0) return plan;
  double tokens = INFINITY;
  if (end.tokens > 0) tokens = end.tokens;
  if (end.epochs > 0) tokens = std::min(tokens, end.epochs * text.tokens);
  if (end.timed || std::isinf(tokens)) tokens = std::min(tokens, plan.tokens);
  plan.tokens = tokens;
  if (end.steps > 0) {
    const double read = end.steps * static_cast<double>(batch_of(plan, device).tokens);
    if ((end.tokens == 0 && end.epochs == 0 && !end.timed) || read < tokens) {
      plan.steps = end.steps;
      plan.epochs = read / std::max(text.tokens, 1.0);
      return plan;
    }
  }
  plan.epochs = plan.tokens / std::max(text.tokens, 1.0);
  return plan;
}

std::vector<FirstSetting> first_settings(const FirstPlan& plan, const FirstText& text, double hours,
                                         device::Kind device) {
  const FirstModel& m = plan.model;
  const double parameters = m.parameters(text.vocabulary), seconds = 3600 * hours;
  const Batch batch = batch_of(plan, device);
  const auto step_tokens = static_cast<double>(batch.tokens);
  const double steps = plan.steps > 0 ? plan.steps : std::max(1.0, plan.tokens / step_tokens);
  const double read = plan.steps > 0 ? plan.steps * step_tokens : plan.tokens;
  const auto part_of_steps = [&](double parts) { return std::max<std::int64_t>(1, std::llround(steps / parts)); };
  const double rate = two_digits(3e-3 * std::pow(std::max(parameters, 1e6) / 1e6, -0.27));
  const bool text_ends = plan.tokens_per_s * seconds > kMostEpochs * text.tokens;

  std::vector<FirstSetting> all;
  const auto set = [&](std::string_view key, config::Value value, std::string reason) {
    all.push_back({key, std::move(value), std::move(reason)});
  };
  const std::string of_model = fmt::format("{} parameters compute, {:.3g} tokens a second here, as measured",
                                           millions(parameters), plan.tokens_per_s);
  set("model.layers", m.layers,
      plan.by_text
          ? fmt::format("{}; a larger model would learn {} tokens of text by heart", of_model, millions(text.tokens))
          : fmt::format("{}; a larger model would see fewer than {:.0f} tokens for each of its parameters", of_model,
                        kTokensAParameter));
  set("model.hidden", m.hidden, "as model.layers");
  set("model.heads", m.heads, "as model.layers");
  set("model.ffn", m.ffn, "as model.layers");
  set("model.tied", true, "small models have much of their parameters in an embedding, and a second one as the head");
  if (plan.epochs > kManyEpochs)
    set("model.dropout", 0.1,
        fmt::format("the text is read about {:.0f} times, and would be learned by heart", plan.epochs));
  set("train.seq_len", m.seq_len, "longer rows cost small models more than they learn from them");
  set("train.batch_size", batch.rows,
      fmt::format("with train.accumulate some {:.0f} steps: many small ones learn most from "
                  "little text",
                  steps));
  set("train.accumulate", batch.accumulate, "as train.batch_size");
  if (text_ends)
    set("train.epochs", kMostEpochs,
        fmt::format("the time has room for {:.0f} passes over the text, and later ones teach little",
                    plan.tokens_per_s * seconds / std::max(text.tokens, 1.0)));
  set("optim.lr", rate, "3e-3 suits a million parameters, and larger models less: by the power -0.27");
  constexpr std::int64_t kMostWarmup = 500;
  set("optim.warmup_steps", std::min(part_of_steps(50), kMostWarmup),
      part_of_steps(50) > kMostWarmup ? "a fiftieth of the steps, and at most 500" : "a fiftieth of the steps");
  set("train.eval_every", part_of_steps(20), "about twenty times in the run");
  constexpr double kForEvaluations = 0.04, kForwardAlone = 3;  // of the time; times as fast as training
  const double looked_at = std::clamp(kForEvaluations * kForwardAlone * read / 20, 1024.0, 65'536.0);
  set("train.eval_tokens", static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(looked_at))),
      "evaluations take about a twenty-fifth of the time");
  set("train.sample_every", 4 * part_of_steps(20), "about five times in the run, and at its end");
  set("train.sample_tokens", std::int64_t{128}, "some lines of text");
  set("log.every", part_of_steps(200), "about two hundred lines");
  if (hours > 0) {
    const double minutes = std::round(read / std::max(plan.tokens_per_s, 1.0) / 60 / 5);
    set("checkpoint.minutes", std::max(1.0, minutes),
        minutes >= 1 ? "about five times in the run" : "no more often than each minute");
  }
  return all;
}

namespace {

constexpr const char* kKey = "redline train";  // leads errors about the folder
constexpr double kUsualHours = 1. / 6;

bool is_run(FileSystem& files, const Path& folder) {
  return files.exists(folder / "metrics.jsonl") || files.exists(folder / "events.jsonl") ||
         (files.exists(folder / train::kRunConfig) && files.exists(train::checkpoints_of(folder)));
}

bool is_model(FileSystem& files, const Path& folder) {
  const std::vector<std::string> names = files.list(folder);
  return files.exists(folder / "config.json") &&
         std::ranges::any_of(names, [](const std::string& name) { return name.ends_with(".safetensors"); });
}

// The folders from the named one down to that of a file.
std::vector<Path> folders_to(const Path& file, const std::string& given) {
  std::vector<Path> folders;
  const auto depth = [](const Path& path) { return std::distance(path.begin(), path.end()); };
  const auto least = depth(Path(given + "/").parent_path());
  for (Path folder = file.parent_path(); depth(folder) >= least && !folder.empty(); folder = folder.parent_path()) {
    folders.insert(folders.begin(), folder);
    if (folder == folder.parent_path()) break;  // the root
  }
  return folders;
}

// What to do with a run or a model that stands in a folder's place; empty: it is neither.
std::string why_other(FileSystem& files, const Path& folder) {
  const std::string name = folder.string(), word = shell_word(name);
  if (is_run(files, folder))
    return fmt::format(
        "{} is a run; `redline train --resume --out {}` goes on with it, `redline train {} --out NEW` makes another "
        "like it, and `redline report {}` shows it",
        name, word, shell_word((folder / train::kRunConfig).string()), word);
  if (is_model(files, folder))
    return fmt::format("{} is a model; `redline train DIR model.init_from={}` trains it on a folder of text", name,
                       word);
  return {};
}

// Both may be missing.
bool is_below(const Path& path, const Path& folder) {
  std::error_code error;
  const auto whole = [&](const Path& p) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(p, error), error);
  };
  const Path below = whole(path).lexically_relative(whole(folder));
  return !below.empty() && *below.begin() != "..";
}
bool is_same(const Path& a, const Path& b) { return is_below(a, b) && is_below(b, a); }

// Without runs and models below the named folder, and without what lies where the new run will: their .json files are
// no text of anybody's. Outer folders tell first: a run's checkpoints have manifests, as shards do.
struct TextFiles {
  std::vector<Path> files;
  std::vector<Path> passed;  // folders
  std::string why_passed;    // the first
};
TextFiles without_others(FileSystem& files, const std::string& given, const std::vector<Path>& all, const Path& run) {
  TextFiles found;
  std::map<Path, bool> seen;  // and passed over
  const auto look_at = [&](const Path& folder, bool named) {
    const std::string other = why_other(files, folder);
    if (named && !other.empty()) throw UserError(other);
    if (!other.empty() || (!named && is_same(folder, run))) {
      if (found.passed.empty()) found.why_passed = other;
      found.passed.push_back(folder);
      return true;
    }
    const std::string word = shell_word("data.train=" + folder.string());
    if (data::is_prepared_folder(folder))
      fail_user("{}{} holds token shards; give them to a configuration: redline train quick {}",
                named ? "" : given + ": ", folder.string(), word);
    return false;
  };
  for (const Path& file : all) {
    bool named = true, passed = false;
    for (const Path& folder : folders_to(file, given)) {
      const auto known = seen.find(folder);
      passed = known != seen.end() ? known->second : (seen[folder] = look_at(folder, named));
      named = false;
      if (passed) break;
    }
    if (passed) continue;
    if (file.extension() == ".bin" || file.extension() == ".idx")
      fail_user("{}: {} is a file of tokens; give them to a configuration: redline train quick {}", given,
                file.string(), shell_word("data.train=" + given));
    found.files.push_back(file);
  }
  if (found.files.empty() && !found.why_passed.empty()) fail_user("{}: {}", given, found.why_passed);
  if (found.files.empty())
    fail_user("{}: the folder holds no text but in {}, the folder of the run", given, run.string());
  return found;
}

// Links to folders, which are not followed.
std::vector<Path> links_below(const Path& folder) {
  std::vector<Path> links;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename().string().starts_with('.')) {
      it.disable_recursion_pending();
      continue;
    }
    if (it->is_symlink(ignored) && it->is_directory(ignored)) links.push_back(it->path());
  }
  std::ranges::sort(links);
  return links;
}

// How training will read the text.
data::InputFormat format_of(const config::Data& data) {
  data::InputFormat format = data::corpus_options(data).read.input;
  format.any_bytes = data.tokenizer == "bytes";
  return format;
}

// Why a file is not trained on; empty: it is. The first document is read, where a file is not one long document.
std::string why_aside(const Path& file, const data::InputFormat& format) {
  constexpr std::uint64_t kReadWhole = 16 << 20;  // bytes
  try {
    data::TextInput input({file.string()}, format, kKey);
    input.check_files();
    if (!data::is_json_lines(file) && real_files().size(file) > kReadWhole) return {};
    data::TextBlock block;
    std::string text;
    if (input.next(block, 1, 1)) input.parse(block, 0, text);
    return {};
  } catch (const UserError& e) {
    return e.what();
  }
}

double text_bytes(const std::vector<std::string>& paths) {
  constexpr double kUnpacked = 3.2;  // a packed text grows by about this
  double bytes = 0;
  for (const std::string& path : paths)
    bytes += static_cast<double>(real_files().size(path)) *
             (data::compression_of(path) == data::Compression::none ? 1 : kUnpacked);
  return bytes;
}

std::vector<std::string> without(std::vector<std::string> paths, const std::map<std::string, std::string>& aside) {
  std::erase_if(paths, [&](const std::string& path) { return aside.contains(path); });
  return paths;
}

std::string size_in_words(double bytes) {
  return bytes < 1e6 ? fmt::format("{:.0f} kB", std::ceil(1e-3 * bytes)) : fmt::format("{:.1f} MB", 1e-6 * bytes);
}

}  // namespace

config::Config asked_for(const config::Sources& sources) {
  return config::load(sources, [](config::Config& config) {  // for the rules over several keys
    if (config.train.max_steps == 0) config.train.max_steps = 1;
    const config::Origins& origins = config.origins;
    const bool own = origins.known("model.hidden") || origins.known("model.layers");
    if (!own && origins.known("model.heads")) config.model.hidden = 64 * config.model.heads;  // one will be chosen
  });
}

std::optional<TextFolder> find_text(FileSystem& files, const std::string& word, const config::Config& asked,
                                    const Path& run) {
  std::error_code error;
  if (word.empty() || !std::filesystem::is_directory(word, error)) return {};
  const TextFiles found = without_others(files, word, data::expand_paths({word}, kKey), run);
  if (asked.origins.written("data.train"))
    fail_user("{}: data.train names other data; give the folder alone, or data.train with a configuration", word);
  TextFolder text{word, {}, asked.data.eval, {}, 0, {}};
  std::optional<data::RoleSplit> roles;
  if (asked.data.roles == "auto") roles = data::split_by_role(word, found.files);
  std::vector<std::string> train, held_out;
  if (roles) {
    train = roles->train;
    held_out = roles->held_out;
  } else {
    for (const Path& file : found.files) train.push_back(file.string());
  }
  data::InputFormat format = format_of(asked.data);
  format.longest_document = format.most_in_memory = std::numeric_limits<std::int64_t>::max();  // there will be room
  std::map<std::string, std::string> aside;                                                    // with the reason
  for (const std::vector<std::string>* some : {&train, &held_out})
    for (const std::string& file : *some)
      if (std::string why = why_aside(file, format); !why.empty()) aside.emplace(file, std::move(why));
  text.files = without(train, aside);
  if (text.files.empty()) {
    const auto& [file, why] = *aside.begin();
    fail_user("{}: the folder holds no text that can be trained on; of {} the first: {}", word,
              counted(aside.size(), "file"), why);
  }
  text.train = {word};
  if (!aside.empty() || !found.passed.empty() || is_below(run, word)) {  // by their names: a folder would mean all
    text.train = text.files;
    if (text.eval.empty()) text.eval = without(held_out, aside);
  }
  if (!aside.empty())
    text.aside += fmt::format("; {} left aside, the first: {}", counted(aside.size(), "file"), aside.begin()->second);
  if (!found.passed.empty())
    text.aside += fmt::format("; {} of runs and models not read, the first: {}", counted(found.passed.size(), "folder"),
                              found.passed.front().string());
  if (const std::vector<Path> links = links_below(word); !links.empty())
    text.aside += fmt::format("; {} not followed, the first: {}", counted(links.size(), "link to a folder"),
                              links.front().string());
  text.bytes = text_bytes(text.files);
  return text;
}

std::string name_of_text(const std::string& folder) {
  std::error_code error;
  const Path whole = std::filesystem::canonical(folder, error);
  const std::string name = error ? "" : whole.filename().string();
  return name.empty() ? "text" : name;
}

void FirstRun::complete(config::Config& config) const {
  const auto known = [&](std::initializer_list<std::string_view> keys) {
    return std::ranges::any_of(keys, [&](std::string_view key) { return config.origins.known(key); });
  };
  const auto set = [&](std::string_view key, const config::Value& value, const std::string& reason) {
    const std::string place = fmt::format("{}{}", config::kChosen, reason);
    config::assign(*config::find_key(key), value, place, config);
    config.origins.set(key, place, true);
  };
  // A key that is one of several ways to say a thing goes where another of them is said.
  const bool counted_end = known({"train.max_steps", "train.max_tokens", "train.epochs"});
  const bool own_model = known({"model.hidden"});
  const bool warms_up = known({"optim.warmup_steps", "optim.warmup_tokens", "optim.warmup_fraction"});
  for (const FirstSetting& c : choices) {
    if (config.origins.known(c.key)) continue;
    if (counted_end && (c.key == "train.max_hours" || c.key == "train.epochs")) continue;
    if (c.key == "train.fit_hours" && config.train.max_hours == 0) continue;
    if (c.key == "optim.warmup_steps" && warms_up) continue;
    if (c.key == "train.eval_tokens" && known({"train.eval_batches"})) continue;
    if (c.key == "model.ffn" && own_model) continue;
    set(c.key, c.value, c.reason);
  }
  if (!known({"optim.min_lr"}) && config.model.init_from.empty()) {
    set("optim.min_lr", 0.1 * config.optim.lr, "a tenth of optim.lr");
  }
}

namespace {

class FirstRunMaker {
 public:
  FirstRunMaker(const TextFolder& text, config::Sources sources, const FirstRunRequest& request)
      : text_(text), sources_(std::move(sources)), request_(request), asked_(asked_for(sources_)), read_(asked_.data) {}

  FirstRun make() {
    const StopAtOnce stopping("stopped; nothing was trained");
    notes_ = {fmt::format("{}: {} with {} of text to train on{}", text_.folder, counted(text_.files.size(), "file"),
                          size_in_words(text_.bytes), text_.aside)};
    set_end();
    set_memory();
    if (!asked_.model.init_from.empty()) {
      notes_.push_back("the model and its tokenizer are those of model.init_from");
      set("train.sample_every", std::int64_t{100}, "to see what it learns, and at the end");
    } else {
      choose_tokenizer();
      choose_model();
    }
    if (!request_.dry_run || reads_bytes_) set_data();  // a tokenizer that is not there yet reads nothing
    notes_.push_back("every choice stands in the run's config.toml with its reason; key=value changes one");
    return {std::move(choices_), std::move(notes_), std::move(tokenizer_)};
  }

 private:
  void set(std::string_view key, config::Value value, std::string reason) {
    choices_.push_back({key, std::move(value), std::move(reason)});
  }

  void set_end() {
    hours_ = asked_.train.max_hours > 0 ? asked_.train.max_hours : kUsualHours;
    set("train.max_hours", kUsualHours, "ten minutes, since nothing says how long; more hours make a larger model");
    set("train.fit_hours", true, "the steps, and with them the rate's schedule, follow what the hours have room for");
  }

  // Of fewer than 64 documents the last is held out, however long it is: a file of a few hundredths of the text, or the
  // smallest above, is better. Of text as bytes the last twentieth is.
  void set_data() {
    constexpr std::size_t kMostFiles = 63;
    constexpr double kLeastShare = 0.01, kManyDocuments = 1e6;  // of the text; bytes of lines of JSON
    const auto& files = text_.files;
    const auto lines = [](const std::string& file) {
      return data::is_json_lines(file) || data::compression_of(file) != data::Compression::none;
    };
    const bool by_file = text_.eval.empty() && files.size() > 1 && files.size() <= kMostFiles &&
                         !data::has_held_out_files({.train = text_.train}) &&
                         (reads_bytes_ ? std::ranges::any_of(files, lines) : true) &&
                         std::ranges::none_of(files, [&](const std::string& file) {
                           return lines(file) && text_bytes({file}) > kManyDocuments;
                         });
    if (!by_file) {
      set("data.train", text_.train, "the text of the folder that was named");
      if (!text_.eval.empty()) set("data.eval", text_.eval, "called so by their names");
      return;
    }
    std::string held_out;
    for (const std::string& file : files)
      if (text_bytes({file}) >= kLeastShare * text_.bytes &&
          (held_out.empty() || text_bytes({file}) < text_bytes({held_out})))
        held_out = file;
    std::vector<std::string> rest = files;
    std::erase(rest, held_out);
    const double share = text_bytes({held_out}) / text_.bytes;
    set("data.train", rest, "the text of the folder that was named, but for the file that is held out");
    set("data.eval", std::vector{held_out},
        fmt::format("the smallest file with a hundredth of the text or more: {} of it", report::percent(share)));
    notes_.push_back(fmt::format("held out: {}, {} of the text", held_out, report::percent(share)));
  }

  // A file is one document unless a separator says otherwise, and the loader bounds documents by its memory.
  void set_memory() {
    double largest = 0;  // MiB
    for (const std::string& file : text_.files)
      if (!data::is_json_lines(file) && asked_.data.separator.empty())
        largest = std::max(largest, 0x1p-20 * text_bytes({file}));
    constexpr double kRoom = 1.25;
    const auto wanted = static_cast<std::int64_t>(std::ceil(kRoom * largest));
    const std::string why = fmt::format("a file is one document, and the largest has about {:.0f} MiB", largest);
    const auto raise = [&](std::string_view key, std::int64_t& had, std::int64_t to) {
      if (to <= had) return;
      set(key, to, why);
      if (!asked_.origins.known(key)) had = to;
    };
    raise("data.ram_mib", read_.ram_mib, 16 * wanted);
    raise("data.max_document_mib", read_.max_document_mib, wanted);
  }

  void choose_tokenizer() {
    const bool known = asked_.origins.known("data.tokenizer");
    const data::TrainFamily family = data::train_families().front();
    const std::vector<std::string> specials = {"<|endoftext|>"};
    constexpr std::int64_t kEnough = 64 << 20;  // bytes of text for a tokenizer
    const std::string skipping = "data.on_error=skip";
    const TextToCount counting{.inputs = text_.files,
                               .format = format_of(read_),
                               .skip_bad = asked_.data.on_error == "skip",
                               .skipping = skipping,
                               .pieces = !known};
    CountedText counted_text;
    try {
      counted_text = count_text(counting, family, specials, kEnough);
    } catch (const data::NoSuchField& e) {  // the first line of each file has the field
      fail_user("{} ({} passes over such input)", e.what(), skipping);
    }
    if (counted_text.bytes == 0)
      fail_user("{}: the files hold no text{}", text_.folder,
                counted_text.skipped > 0 ? fmt::format("; the first: {}", counted_text.first_skipped) : "");
    if (counted_text.skipped > 0)
      notes_.push_back(fmt::format("{} passed over, the first: {}", counted(counted_text.skipped, "malformed document"),
                                   counted_text.first_skipped));
    const double bytes = static_cast<double>(counted_text.bytes) / std::max(counted_text.share, 1e-9);
    std::int64_t vocabulary = first_vocabulary(bytes);
    std::shared_ptr<const data::Tokenizer> tokenizer;
    if (known) {
      tokenizer = data::open_tokenizer(asked_.data.tokenizer, "data.tokenizer");
    } else if (vocabulary == 0) {
      tokenizer = data::open_tokenizer("bytes", "data.tokenizer");
      reads_bytes_ = true;
      const std::string why =
          fmt::format("{} of text are too little to learn longer tokens from", size_in_words(bytes));
      set("data.tokenizer", std::string("bytes"), why);
      notes_.push_back("the text is read as bytes: " + why);
    } else {
      const auto special = static_cast<std::int64_t>(specials.size());
      const data::TrainedBpe bpe = merge_pieces(counted_text.pieces, vocabulary - special);
      tokenizer_ = data::tokenizer_json_of(bpe, family, specials);
      if (!request_.dry_run)
        set("data.tokenizer", first_tokenizer(request_.folder).string(),
            fmt::format("at most {} tokens, trained on {} of the text: so many suit {} of it", vocabulary,
                        size_in_words(static_cast<double>(counted_text.bytes)), size_in_words(bytes)));
      tokenizer = data::bpe_tokenizer(tokenizer_, "tokenizer.json");
    }
    const auto tokens = static_cast<double>(tokenizer->encode(counted_text.sample).size());
    const double a_byte = tokens / static_cast<double>(std::max<std::size_t>(counted_text.sample.size(), 1));
    text_size_ = {bytes * a_byte, tokenizer->vocabulary()};
    set("model.vocab", text_size_.vocabulary, "that of the tokenizer");
    if (asked_.origins.known("model.vocab") && asked_.model.vocab < text_size_.vocabulary)
      fail_user(
          "model.vocab is {}, but the tokenizer has a vocabulary of {}; leave model.vocab out, or set it to at "
          "least that",
          asked_.model.vocab, text_size_.vocabulary);
    if (vocabulary > 0 || known)
      notes_.push_back(fmt::format("{}: {}, {:.2f} of them a byte, about {} in all",
                                   known ? asked_.data.tokenizer : "a tokenizer was trained on the text",
                                   counted(tokenizer->vocabulary(), "token"), a_byte,
                                   report::count(text_size_.tokens, "token")));
  }

  void choose_model() {
    const auto device = device::open_device(request_.device);
    report::LiveLine line(stderr);
    const auto load = with_keys(sources_);
    std::string problem;
    const MeasureModel measure = [&](const FirstModel& m, std::int64_t step) {
      line.show(fmt::format("measuring a model of {} layers of {}", m.layers, m.hidden));
      FirstPlan plan{m, 1, static_cast<double>(step)};
      perf::KeyValues keys = {"train.max_steps=1000"};
      if (!asked_.origins.known("model.vocab")) keys.push_back(fmt::format("model.vocab={}", text_size_.vocabulary));
      for (const FirstSetting& s : first_settings(plan, text_size_, 0, device->kind()))
        if (!asked_.origins.known(s.key) && (s.key.starts_with("model.") || s.key == "train.seq_len"))
          keys.push_back(fmt::format("{}={}", s.key, config::literal(s.value)));
      const std::int64_t most = device->kind() == device::Kind::cpu ? kCpuMicroBatch : kCardMicroBatch;
      if (!asked_.origins.known("train.batch_size"))
        keys.push_back(fmt::format("train.batch_size={}", std::max<std::int64_t>(1, std::min(step, most) / m.seq_len)));
      constexpr double kSeconds = 1;
      const perf::Measured found = perf::measure(load(keys), *device, {.seconds = kSeconds});
      if (!found.done()) problem = found.problem;
      return found.done() ? found.tokens_per_s : 0;
    };
    const bool own = asked_.origins.known("model.hidden") || asked_.origins.known("model.layers");
    const config::Model& m = asked_.model;
    const double seconds = 3600 * hours_;
    const std::vector<FirstModel> models =
        own ? std::vector<FirstModel>{{m.layers, m.hidden, m.heads, m.ffn, asked_.train.seq_len}}
            : std::vector<FirstModel>(first_models().begin(), first_models().end());
    FirstPlan plan = plan_first_run(models, text_size_, seconds, perf::find_peak(*device).flops, measure);
    line.clear();
    if (plan.tokens_per_s == 0)
      fail_user("{}: {} cannot run here: {}", text_.folder, own ? "the model" : "even a small model", problem);
    const config::Train& t = asked_.train;
    if (asked_.origins.known("train.seq_len")) plan.model.seq_len = t.seq_len;
    if (asked_.origins.known("train.batch_size") && !t.automatic_batch_size) plan.rows = t.batch_size;
    if (asked_.origins.known("train.accumulate")) plan.accumulate = t.accumulate;
    plan = end_as_asked(plan, text_size_,
                        {.steps = asked_.origins.known("train.max_steps") ? static_cast<double>(t.max_steps) : 0,
                         .tokens = static_cast<double>(t.max_tokens),
                         .epochs = t.epochs,
                         .timed = t.max_hours > 0},
                        device->kind());
    for (FirstSetting& s : first_settings(plan, text_size_, hours_, device->kind()))
      if (!own || !s.key.starts_with("model.") || s.key == "model.dropout")
        set(s.key, std::move(s.value), std::move(s.reason));
    notes_.push_back(fmt::format("{}, {} of {}: {} measured here, so that {} have room for {}, {:.3g} times the text{}",
                                 own ? "the model that was asked for" : "a model", counted(plan.model.layers, "layer"),
                                 plan.model.hidden, report::token_rate(plan.tokens_per_s), report::duration(seconds),
                                 report::count(plan.tokens_per_s * seconds, "token"),
                                 plan.tokens_per_s * seconds / std::max(text_size_.tokens, 1.0),
                                 plan.by_text ? "; the text is too little for a larger one" : ""));
  }

  const TextFolder& text_;
  config::Sources sources_;
  const FirstRunRequest& request_;
  config::Config asked_;
  config::Data read_;  // as asked, with the memory that is chosen
  std::string tokenizer_;
  FirstText text_size_;
  bool reads_bytes_ = false;
  double hours_ = kUsualHours;  // for which the model is chosen, whatever ends the run
  std::vector<FirstSetting> choices_;
  std::vector<std::string> notes_;
};

}  // namespace

FirstRun choose_first_run(const TextFolder& text, config::Sources sources, const FirstRunRequest& request) {
  return FirstRunMaker(text, std::move(sources), request).make();
}

void FirstRunEnd::on(const train::Event& event) {
  hear(event, [&](const train::Sampled& e) {
    if (!e.texts.empty()) sample_ = e.texts.front();
  });
}

std::string FirstRunEnd::write(FileSystem& files, const Path& folder, const config::Config& config) const {
  const report::RunRecord run = report::read_run(files, folder);
  const report::RunSummary summary = report::summarise(run, {});
  const Path page = folder / "report.html";
  files.replace(page, report::run_page({run}, {summary}, {}));
  std::string words, begin = "The";
  if (sample_) {
    // Tokens that are bytes end anywhere: a character that the prompt begins belongs to what the model wrote.
    const auto whole = [](std::string_view text) {
      const std::size_t good = data::valid_utf8(text);
      return good + 4 > text.size() ? good : text.size();
    };
    const std::size_t end = whole(sample_->prompt);
    const std::string prompt = sample_->prompt.substr(0, end);
    std::string text = sample_->prompt.substr(end) + sample_->text;
    text.resize(whole(text));
    words += fmt::format("\nThe last sample; the model wrote what follows the |:\n{}|{}\n", prompt, text);
    // A few words of the prompt, without what a shell would read otherwise.
    std::string start;
    for (const char c : std::string_view(prompt).substr(0, 60)) {
      const auto byte = static_cast<unsigned char>(c);
      const bool letter = byte >= 0x80 || std::isalnum(byte) != 0;
      if (letter || (c == ' ' && !start.empty())) start += c;
      if (!letter && c != ' ' && !start.empty()) break;
    }
    start.resize(data::valid_utf8(start));
    while (start.ends_with(' ')) start.pop_back();
    if (!start.empty()) begin = start;
  }
  const config::Train& t = config.train;
  std::vector<std::string> longer;  // twice as long
  if (t.max_hours > 0) longer.push_back(fmt::format("train.max_hours={:.3g}", 2 * t.max_hours));
  if (t.epochs > 0) longer.push_back(fmt::format("train.epochs={:g}", 2 * t.epochs));
  if (t.max_tokens > 0) longer.push_back(fmt::format("train.max_tokens={}", 2 * t.max_tokens));
  if (t.max_steps > 0) longer.push_back(fmt::format("train.max_steps={}", 2 * t.max_steps));
  const std::string name = shell_word(folder.string());
  return words + fmt::format(
                     "\nreport: {}\n\nTo go on:\n"
                     "  redline sample {} --prompt \"{}\"\n"
                     "  redline train --resume --out {} {}\n"
                     "  redline export {} --out {}\n",
                     page.string(), name, begin, name, fmt::join(longer, " "), name,
                     shell_word(folder.string() + "-model"));
}

}  // namespace redline::cli
