// redline data prepare and redline data stats.
#include <charconv>
#include <limits>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/words.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/config.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "config/load.h"
#include "data/from_config.h"
#include "data/shards/prepare.h"
#include "data/statistics.h"
#include "io/json.h"
#include "model/lowering.h"
#include "program/planner.h"
#include "report/data_stats.h"
#include "report/figures.h"
#include "report/live_line.h"
#include "train/signals.h"

namespace redline::cli {
namespace {

void set_end_token(const std::string& text, data::PrepareSettings& settings) {
  if (text.empty()) return;
  settings.no_end_token = text == "none";
  if (settings.no_end_token) return;
  std::int32_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0)
    fail_user("--end-token takes an id or none, not '{}'", text);
  settings.end_token = id;
}

double per_second(std::int64_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0; }

std::string megabytes_a_second(const data::PrepareProgress& p) {
  return fmt::format("{:.1f} MB/s", per_second(p.text_bytes, p.seconds) / 1e6);
}

// Bytes of the files tell how far it is; what is still in the workers' queue counts as done.
std::string progress_line(const data::PrepareProgress& p) {
  const double share =
      p.bytes_on_disk > 0 ? static_cast<double>(p.bytes_read) / static_cast<double>(p.bytes_on_disk) : 1;
  return fmt::format("{} of {}: {}, {}, {}, {}{}", report::percent(share),
                     report::bytes(static_cast<double>(p.bytes_on_disk)),
                     report::count(static_cast<double>(p.documents), "document"),
                     report::count(static_cast<double>(p.tokens), "token"), megabytes_a_second(p),
                     report::token_rate(per_second(p.tokens, p.seconds)), report::time_left(p.seconds, share));
}

double tokens_per_byte(const data::PrepareProgress& p) {
  return static_cast<double>(p.tokens) / static_cast<double>(std::max<std::int64_t>(p.text_bytes, 1));
}

// Tells the learned share of conversations. Plain text is learned whole, and needs no line.
std::string learned_words(const data::Manifest& m, const data::Split& split) {
  if (m.chat.empty() || split.tokens() == 0) return {};
  const double share = static_cast<double>(split.learned()) / static_cast<double>(split.tokens());
  return fmt::format(" ({} learned, {})", split.learned(), report::percent(share));
}

std::string summary(const data::Prepared& prepared, const Path& out) {
  const data::Manifest& m = prepared.manifest;
  const data::PrepareProgress& p = prepared.total;
  std::string text =
      fmt::format("{}: {}, {}, {:.4f} tokens a byte, {} ids of {}\n", out.string(), counted(p.documents, "document"),
                  counted(p.tokens, "token"), tokens_per_byte(p), data::name_of(m.dtype), m.tokenizer_name);
  for (const auto& [name, split] : {std::pair{"train", &m.train}, {"val", &m.val}})
    text += fmt::format("  {:<6} {}, {}{} in {}\n", name, counted(split->documents(), "document"),
                        counted(split->tokens(), "token"), learned_words(m, *split),
                        counted(split->shards.size(), "shard"));
  text += fmt::format("  {} of text in {} with {}: {}, {}\n", report::bytes(static_cast<double>(p.text_bytes)),
                      report::duration(p.seconds), counted(prepared.threads, "thread"), megabytes_a_second(p),
                      report::token_rate(per_second(p.tokens, p.seconds)));
  if (!m.chat.empty()) text += fmt::format("  conversations written as {}; answers are learned\n", m.chat);
  if (m.beginning && !m.beginning->empty())
    text += fmt::format("  every document begins with token {}\n", fmt::join(*m.beginning, ", "));
  if (m.skipped_empty + m.skipped_malformed + m.skipped_file_ends > 0)
    text +=
        fmt::format("  skipped: {}, {}, the rest of {}\n", counted(m.skipped_empty, "empty document"),
                    counted(m.skipped_malformed, "malformed document"), counted(m.skipped_file_ends, "broken file"));
  for (const std::string& problem : prepared.problems) text += "    " + problem + "\n";
  const std::int64_t bad = m.skipped_malformed + m.skipped_file_ends;
  if (const auto shown = static_cast<std::int64_t>(prepared.problems.size()); bad > shown)
    text += fmt::format("    and {} more\n", bad - shown);
  return text;
}

io::Json json_of(const data::Prepared& prepared, const Path& out) {
  const data::Manifest& m = prepared.manifest;
  const data::PrepareProgress& p = prepared.total;
  const auto split = [&](const data::Split& s) {
    io::Json json = {{"documents", s.documents()}, {"tokens", s.tokens()}, {"shards", s.shards.size()}};
    if (!m.chat.empty()) json["learned"] = s.learned();
    return json;
  };
  return {
      {"folder", out.string()},
      {"documents", p.documents},
      {"tokens", p.tokens},
      {"text_bytes", p.text_bytes},
      {"tokens_per_byte", tokens_per_byte(p)},
      {"dtype", data::name_of(m.dtype)},
      {"tokenizer", m.tokenizer_name},
      {"tokenizer_hash", hex64(m.tokenizer_hash)},
      {"chat", m.chat.empty() ? io::Json(nullptr) : io::Json(m.chat)},
      {"beginning", m.beginning ? io::Json(*m.beginning) : io::Json(nullptr)},
      {"train", split(m.train)},
      {"val", split(m.val)},
      {"skipped", {{"empty", m.skipped_empty}, {"malformed", m.skipped_malformed}, {"file_ends", m.skipped_file_ends}}},
      {"problems", prepared.problems},
      {"seconds", p.seconds},
      {"threads", prepared.threads},
      {"text_mb_per_s", per_second(p.text_bytes, p.seconds) / 1e6},
      {"tokens_per_s", per_second(p.tokens, p.seconds)}};
}

int prepare_shards(const Words& words) {
  Arguments arguments(
      "data prepare", "text to token shards that training reads",
      "--tokenizer T --out DIR INPUT... [--chat HOW] [--val-fraction X] [--json]",
      {"redline data prepare --tokenizer tokenizer.json --out data/wiki wiki/*.jsonl.zst",
       "redline data prepare --tokenizer Qwen3-0.6B/ --chat auto --out data/chat conversations.jsonl",
       "redline data prepare --tokenizer bytes --out data/books --separator '\\n\\n\\n' --val-fraction 0.01 books/",
       "redline data prepare --tokenizer tokenizer.json --out data/web --text-field content 'web/*.parquet'",
       "redline train my.toml data.train=data/wiki    train on what was prepared"});
  data::PrepareSettings settings;
  DocumentWords input;
  std::string out, end_token, roles = "auto", same_input_as;
  std::int64_t threads = 0;
  bool json = false;
  input.declare(arguments);
  arguments.text("--tokenizer", "T", settings.tokenizer,
                 "a tokenizer.json, a sentencepiece .model, a folder with one, bytes or ping");
  arguments.choice(
      "--chat", "HOW", settings.chat, {"none", "auto", "chatml", "llama3"},
      ".jsonl of conversations, of which answers are learned: auto (the tokenizer's own template), chatml or "
      "llama3 (default: none)");
  arguments.choice("--bos", "WHEN", settings.bos, {"none", "auto", "always"},
                   "the token that begins a text, before each document; auto: as the tokenizer's own library has it "
                   "(default: auto)");
  arguments.text("--out", "DIR", out, "the folder to make; a new or an empty one");
  arguments.text("--same-input-as", "DIR", same_input_as,
                 "a folder prepared before: refuse INPUT whose bytes are not those that it was made from");
  arguments.number("--val-fraction", "X", settings.val_fraction, 0, 1,
                   "share of documents for validation (default: 0)");
  arguments.choice("--roles", "HOW", roles, {"auto", "none"},
                   "what names in a folder say: auto (files called val, valid, validation or eval are for validation, "
                   "test files are left out), or none (default: auto)");
  arguments.integer("--shard-tokens", "N", settings.shard_tokens, 1, std::int64_t{1} << 40,
                    "the most tokens of a shard (default: 134217728)");
  arguments.integer("--threads", "N", threads, 0, 4096, "threads that parse and encode, 0: one a core (default: 0)");
  arguments.text("--end-token", "ID", end_token,
                 "the token that closes each document, or none (default: the tokenizer's)");
  arguments.flag("--json", json, "print one JSON document instead of the summary");
  arguments.exits(kStopped, "stopped by a signal: nothing is left of the folder");
  if (!arguments.parse(words)) return kDone;
  if (settings.tokenizer.empty()) fail_user("redline data prepare needs --tokenizer T");
  if (out.empty()) fail_user("redline data prepare needs --out DIR");
  if (input.inputs.empty())
    fail_user("redline data prepare needs INPUT: text files, .jsonl or .parquet files, folders or patterns");
  settings.out = out;
  settings.inputs = input.inputs;
  settings.format = input.format();
  settings.threads = static_cast<int>(threads);
  settings.skip_bad = input.skip_bad();
  settings.roles = roles == "auto";
  set_end_token(end_token, settings);
  if (!same_input_as.empty()) {
    settings.same_input_as = data::read_prepared_folder(same_input_as, "--same-input-as");
    if (settings.same_input_as->manifest.inputs.empty())
      fail_user("--same-input-as {}: an older redline made it, and kept no hashes of its inputs", same_input_as);
  }

  const train::StopSignals signals;
  report::LiveLine line(stderr);
  const data::Prepared prepared = data::prepare(real_files(), settings, signals.caught(),
                                                [&](const data::PrepareProgress& p) { line.show(progress_line(p)); });
  line.clear();
  if (prepared.started_over) line.keep("what an interrupted run had left in " + out + " was removed; started over");
  if (prepared.stopped) {
    line.keep("stopped; nothing is left in " + out);
    return kStopped;
  }
  for (const std::string& sentence : prepared.by_role) log::note("{}", sentence);
  if (json) {
    print_json(json_of(prepared, settings.out));
  } else {
    print(summary(prepared, settings.out));
  }
  return kDone;
}

constexpr std::int64_t kMostTokens = 1 << 24, kMost = std::int64_t{1} << 40;

struct StatsRequest {
  std::vector<std::string> words;
  std::string preset, model, tokenizer, html;
  std::int64_t seq_len = 0, batch_size = 0, buckets = 0, documents = 20'000, sample = 0;
  bool json = false;

  bool has_model() const { return !preset.empty() || !model.empty(); }
  std::string model_name() const { return model.empty() ? preset : Path(model).stem().string(); }
};

void declare(Arguments& arguments, StatsRequest& given) {
  arguments.words(
      "DATA, key=value", given.words,
      "what data.train takes: a prepared folder, token or text files, .jsonl, .parquet, \"ping\"; then keys to change");
  arguments.integer("--seq-len", "N", given.seq_len, 1, kMostTokens, "tokens of a row (default: those of the model)");
  arguments.integer("--batch-size", "N", given.batch_size, 1, kMostTokens,
                    "rows of a batch, which is what is packed (default: those of the model, or 8)");
  arguments.text("--preset", "NAME", given.preset,
                 "take the rows of a shipped model and count its FLOPs; `redline config --presets` lists them");
  arguments.text("--model", "CONFIG", given.model, "the same for a TOML file");
  arguments.text("--tokenizer", "FILE", given.tokenizer,
                 "for text: a tokenizer.json, a sentencepiece .model, a folder with one, bytes or ping");
  arguments.integer("--buckets", "K", given.buckets, 1, 256,
                    "find the best edges of at most so many buckets (default: as many as are usual)");
  arguments.integer("--documents", "N", given.documents, 1, kMost,
                    "documents of a source without end, such as ping (default: 20000)");
  arguments.integer("--sample", "N", given.sample, 1, kMost,
                    "measure only so many documents, drawn with a fixed seed (default: all)");
  arguments.text("--html", "FILE", given.html, "write a page with plots as well");
  arguments.json(given.json);
  arguments.exits(kStopped, "stopped by a signal: nothing was written");
}

// The configuration that training would have: the model's, or the defaults, with what was given in its place.
config::Config settings_of(const StatsRequest& given) {
  if (!given.preset.empty() && !given.model.empty())
    fail_user("--preset {} and --model {}: one model at a time", given.preset, given.model);
  config::Sources sources{given.model, given.preset, {}};
  std::vector<std::string> data;
  for (const std::string& word : given.words)
    (word.find('=') != word.npos && !real_files().exists(word) ? sources.overrides : data).push_back(word);
  if (data.empty())
    fail_user("redline data stats needs DATA: a prepared folder, text files, a .jsonl, a .parquet, or \"ping\"");
  config::Config c = load_config(sources);
  if (!given.has_model()) c.train.batch_size = 8;
  c.data.train = data;
  if (!c.data.weights.empty())
    log::note("data.weights are left aside: what is measured are the documents of DATA as they stand");
  c.data.weights.clear();
  if (c.data.documents == 0) c.data.documents = given.documents;
  if (!given.tokenizer.empty()) c.data.tokenizer = given.tokenizer;
  if (given.seq_len > 0) c.train.seq_len = given.seq_len;
  if (given.batch_size > 0) c.train.batch_size = given.batch_size;
  if (given.seq_len == 0 && !given.has_model())
    fail_user("redline data stats needs --seq-len N: the tokens of a row, or a model that says (--preset NAME)");
  if (c.train.seq_len > kMost / c.train.batch_size || c.data.max_segments > kMost / c.train.batch_size)
    fail_user("--batch-size {}: a batch of so many rows is more than any machine holds", c.train.batch_size);
  return c;
}

data::ModelCost cost_of(const config::Config& c) {
  model::LoweringOptions options = model::lowering_options(c, device::Kind::cpu);
  options.batch = {1, 64, 1};  // products follow the slots, whatever the shape
  options.accumulate = false;
  const model::LoweredModel lowered = model::lower(c.model, options);
  const program::ModelFlops flops = program::model_flops(lowered.set.find(model::kFirst));
  double per_pair = 0;
  for (const auto& [window, each] : flops.per_pair) {
    REDLINE_CHECK(window == kNoWindow, "pairs of lengths are counted without a window of {}", window);
    per_pair += each;
  }
  return {flops.per_slot_products / static_cast<double>(options.batch.tokens()), per_pair};
}

// "packing, 42.0%, eta 12 s", each stage with its own clock.
class ShowProgress {
 public:
  void operator()(std::string_view doing, double done, double of) {
    if (doing != doing_) {
      doing_ = doing;
      started_ = steady_seconds();
    }
    const double seconds = steady_seconds() - started_;
    line_.show(fmt::format("{}, {}{}", doing, report::percent(of > 0 ? done / of : 1),
                           seconds > 0.5 ? report::eta(seconds, done, of) : ""));
  }

 private:
  report::LiveLine line_{stderr};
  std::string doing_;
  double started_ = 0;  // on steady_seconds()
};

int length_statistics(const Words& words) {
  Arguments arguments("data stats", "how long documents are, what padding would waste, and what packing saves",
                      "DATA... --seq-len N [key=value ...] [--preset NAME] [--html FILE] [--json]",
                      {"redline data stats ping --seq-len 1024",
                       "redline data stats corpus/ --seq-len 2048 --preset llama-1.36b --html lengths.html",
                       "redline data stats web.jsonl.zst --tokenizer tokenizer.json --seq-len 4096 --sample 100000"});
  StatsRequest given;
  declare(arguments, given);
  if (!arguments.parse(words)) return kDone;
  StopAtOnce stopping("stopped; nothing was written");
  const config::Config c = settings_of(given);
  if (!given.html.empty()) check_output_file("--html", given.html, kPageFile, given.words);

  data::AnalysisSettings settings;
  settings.shape = model::batch_shape(c);
  settings.truncate = c.data.long_documents == "truncate";
  settings.edges = c.data.buckets;
  settings.buckets = given.buckets;
  if (given.has_model()) settings.model = cost_of(c);

  ThreadPool pool;
  data::LengthSurvey survey;
  data::Analysis analysis;
  {
    ShowProgress show;
    settings.progress = std::ref(show);
    const data::CorpusOptions corpus = data::corpus_options(c.data);
    for (const std::string& sentence : data::roles_in_words(corpus)) log::note("{}", sentence);
    survey = data::survey_lengths(corpus, {given.sample, given.documents, settings.progress}, pool);
    analysis = data::analyse(survey, settings, pool);
  }
  const report::DataStats stats{survey, settings, analysis, given.has_model() ? given.model_name() : ""};
  stopping.hold();
  if (!given.html.empty()) real_files().replace(given.html, report::data_stats_page(stats));
  if (given.json) {
    print_json(report::data_stats_json(stats));
    return kDone;
  }
  print(report::data_stats_text(stats, has_blocks()));
  if (!given.html.empty()) print(fmt::format("\npage     {}\n", given.html));
  return kDone;
}

}  // namespace

int run_data(const Words& words) {
  static constexpr Command kCommands[] = {
      {"prepare", "text to token shards", prepare_shards},
      {"stats", "how long documents are, what padding would waste, and what packing saves", length_statistics},
  };
  return run_group({"data",
                    "from text to what training reads",
                    kCommands,
                    {"redline data prepare --tokenizer tokenizer.json --out data/wiki wiki/*.jsonl.zst",
                     "redline data stats data/wiki --seq-len 1024"}},
                   words);
}

}  // namespace redline::cli
