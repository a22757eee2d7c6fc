// redline data prepare.
#include <charconv>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "base/words.h"
#include "cli/arguments.h"
#include "cli/document_words.h"
#include "cli/output.h"
#include "data/shards/prepare.h"
#include "io/json.h"
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
  const std::string left = share > 0.01 && p.seconds > 1
                               ? ", " + report::duration(p.seconds * (1 - share) / share) + " left"
                               : std::string();
  return fmt::format("{} of {}: {}, {}, {}, {}{}", report::percent(share),
                     report::bytes(static_cast<double>(p.bytes_on_disk)),
                     report::count(static_cast<double>(p.documents), "document"),
                     report::count(static_cast<double>(p.tokens), "token"), megabytes_a_second(p),
                     report::token_rate(per_second(p.tokens, p.seconds)), left);
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
      {"train", split(m.train)},
      {"val", split(m.val)},
      {"skipped", {{"empty", m.skipped_empty}, {"malformed", m.skipped_malformed}, {"file_ends", m.skipped_file_ends}}},
      {"problems", prepared.problems},
      {"seconds", p.seconds},
      {"threads", prepared.threads},
      {"text_mb_per_s", per_second(p.text_bytes, p.seconds) / 1e6},
      {"tokens_per_s", per_second(p.tokens, p.seconds)}};
}

}  // namespace

int run_data_prepare(const Words& words) {
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
  std::string out, end_token;
  std::int64_t threads = 0;
  bool json = false;
  input.declare(arguments);
  arguments.text("--tokenizer", "T", settings.tokenizer,
                 "a tokenizer.json, a sentencepiece .model, a folder with one, bytes or ping");
  arguments.choice(
      "--chat", "HOW", settings.chat, {"none", "auto", "chatml", "llama3"},
      ".jsonl of conversations, of which answers are learned: auto (the tokenizer's own template), chatml or "
      "llama3 (default: none)");
  arguments.text("--out", "DIR", out, "the folder to make; a new or an empty one");
  arguments.number("--val-fraction", "X", settings.val_fraction, 0, 1,
                   "share of documents for validation (default: 0)");
  arguments.integer("--shard-tokens", "N", settings.shard_tokens, 1, std::int64_t{1} << 40,
                    "the most tokens of a shard (default: 134217728)");
  arguments.integer("--threads", "N", threads, 0, 4096, "threads that parse and encode, 0: one a core (default: 0)");
  arguments.text("--end-token", "ID", end_token,
                 "the token that closes each document, or none (default: the tokenizer's)");
  arguments.flag("--json", json, "print one JSON document instead of the summary");
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
  set_end_token(end_token, settings);

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
  if (json) {
    print_json(json_of(prepared, settings.out));
  } else {
    print(summary(prepared, settings.out));
  }
  return kDone;
}

}  // namespace redline::cli
