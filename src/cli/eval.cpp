// redline eval: the loss on held-out data, or answers to multiple choice (--choices).
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/words.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "cli/signals.h"
#include "data/open_corpus.h"
#include "infer/choices.h"
#include "infer/held_out.h"
#include "io/json.h"
#include "report/figures.h"
#include "report/live_line.h"

namespace redline::cli {
namespace {

using infer::ChoiceScore;

struct NamedMeasure {
  ChoiceScore measure;
  const char *key, *words;  // in the JSON document and on the terminal
};
constexpr NamedMeasure kMeasures[] = {{ChoiceScore::sum, "accuracy", "accuracy"},
                                      {ChoiceScore::per_byte, "accuracy_per_byte", "by bytes"},
                                      {ChoiceScore::per_token, "accuracy_per_token", "by tokens"}};

// "scoring, choice 120/400, 3.10k tok/s, eta 12 s"
std::string words_for(const infer::ScoringProgress& p) {
  return fmt::format("scoring, choice {}/{}, {}{}", p.done, p.of,
                     report::token_rate(static_cast<double>(p.tokens) / p.seconds),
                     report::eta(p.seconds, static_cast<double>(p.done), static_cast<double>(p.of)));
}

void print_json_result(const infer::ChoicesRequest& request, const infer::Checkpoint& checkpoint,
                       const std::vector<infer::AnsweredQuestion>& questions) {
  io::Json out = {{"checkpoint", checkpoint.folder.string()},
                  {"average", checkpoint.average},
                  {"choices", request.file},
                  {"questions", questions.size()}};
  for (const auto& [measure, key, words] : kMeasures) {
    const infer::Accuracy a = infer::accuracy_of(questions, measure);
    out[key] = a.share;
    out[std::string(key) + "_stderr"] = a.standard_error ? io::Json(*a.standard_error) : io::Json(nullptr);
  }
  io::Json rows = io::Json::array();
  for (const infer::AnsweredQuestion& q : questions)
    rows.push_back({{"line", q.line},
                    {"answer", q.answer},
                    {"chosen", q.chosen(ChoiceScore::sum)},
                    {"chosen_per_byte", q.chosen(ChoiceScore::per_byte)},
                    {"chosen_per_token", q.chosen(ChoiceScore::per_token)},
                    {"log_probabilities", q.log_probabilities},
                    {"tokens", q.tokens},
                    {"bytes", q.bytes}});
  out["rows"] = std::move(rows);
  print_json(out);
}

void print_result(const infer::ChoicesRequest& request, const infer::Checkpoint& checkpoint,
                  const std::vector<infer::AnsweredQuestion>& questions) {
  print(fmt::format("checkpoint   {}{}\nchoices      {}: {}\n", checkpoint.folder.string(),
                    checkpoint.average ? ", the average of its weights" : "", request.file,
                    counted(questions.size(), "question")));
  for (const auto& [measure, key, words] : kMeasures) {
    if (measure == ChoiceScore::per_token) continue;
    const infer::Accuracy a = infer::accuracy_of(questions, measure);
    const std::string error = a.standard_error ? " ± " + report::plain(*a.standard_error, 4) : "";
    print(fmt::format("{:<12} {}{}\n", words, report::plain(a.share, 4), error));
  }
}

void answer_choices(const infer::Checkpoint& checkpoint, const infer::ChoicesRequest& request, bool json, Ranks& ranks,
                    StopAtOnce& stopping) {
  report::BytesLine loading("loading weights");
  report::LiveLine line(stderr);
  const std::vector<infer::AnsweredQuestion> questions = infer::answer_questions(
      checkpoint, request, loading.progress(),
      [&](const infer::ScoringProgress& p) {
        if (ranks.leads()) line.show(words_for(p));
      },
      ranks.communicator());
  line.clear();
  if (!ranks.leads()) return;
  stopping.hold();
  if (json)
    print_json_result(request, checkpoint, questions);
  else
    print_result(request, checkpoint, questions);
}

struct EvalRequest {
  std::string model, choices;
  infer::HeldOutRequest request;
  bool average = false, json = false;
};

// False: only help was asked for.
bool read_eval_words(const Words& words, EvalRequest& s) {
  ModelWords model;
  Arguments arguments("eval", "loss, perplexity and bits a byte on held-out data, or answers to multiple choice",
                      "MODEL [--data FILES...] [--choices FILE] [--tokens N] [--json]",
                      {"redline eval runs/a", "redline eval runs/a --data notes.txt",
                       "redline eval runs/a --data web=c4.jsonl code=src.jsonl      a loss for each",
                       "redline eval HF_DIR --data shards/ --per-document",
                       "redline eval HF_DIR --data conversations.jsonl --chat auto  the loss of its answers",
                       "redline eval runs/a --choices questions.jsonl               how often it is right"});
  model.declare(arguments);
  arguments.texts(
      "--data", "FILES", s.request.data,
      "a prepared folder, text, .jsonl or .parquet files, or ping: the generated corpus; NAME=PATH makes a set of its "
      "own (default: the run's held-out data)");
  arguments.choice("--chat", "HOW", s.request.chat, {"none", "auto", "chatml", "llama3"},
                   "the loss of answers of conversations: auto (the tokenizer's own template), chatml or llama3 "
                   "(default: the run's data.chat)");
  arguments.text("--choices", "FILE", s.choices,
                 "instead: score the choices of questions, one {\"question\": \"…\", \"choices\": [\"…\", …], "
                 "\"answer\": 0} a line");
  arguments.text("--tokenizer", "NAME", s.request.tokenizer,
                 "for text, and a model that brings none: a tokenizer.json, a sentencepiece .model, a folder with one, "
                 "bytes or ping (default: the model's own)");
  std::int64_t tokens = -1, batches = -1;
  arguments.integer("--tokens", "N", tokens, 0, std::int64_t{1} << 53,
                    "held-out tokens to evaluate, the same ones whatever the batch; 0: all (default: all of --data; "
                    "without --data, the run's train.eval_tokens)");
  arguments.integer("--batches", "N", batches, 0, 1'000'000'000, "the same in batches, whose tokens change with them");
  arguments.integer(
      "--seq-len", "N", s.request.seq_len, 1, 1 << 30,
      "tokens of a row, of which longer documents are cut into pieces: losses of other rows cannot be "
      "compared (default: the run's train.seq_len; of a Hugging Face folder its positions, at most 2048)");
  arguments.average(s.average);
  arguments.flag("--per-document", s.request.per_document,
                 "one document at a time instead of packed: the same figure, slower");
  arguments.device(s.request.device);
  arguments.precision(s.request.precision);
  arguments.json(s.json);
  arguments.exits(kStopped, "stopped by a signal: there is no result");
  if (!arguments.parse(words)) return false;
  s.model = model.model("eval", "data to evaluate it on are given with --data");
  if (tokens >= 0) s.request.tokens = tokens;
  if (batches >= 0) s.request.batches = batches;
  if (s.request.tokens && s.request.batches)
    fail_user("--tokens {} and --batches {} both say how much is evaluated: give one of them", tokens, batches);
  if (!s.choices.empty() && (!s.request.data.empty() || s.request.tokens || s.request.batches ||
                             s.request.seq_len > 0 || s.request.per_document))
    fail_user(
        "--choices {} stands alone: --data, --tokens, --batches, --seq-len and --per-document are about held-out "
        "text",
        s.choices);
  if (!s.request.chat.empty() && s.request.data.empty())
    fail_user("--chat {} is about the .jsonl files of --data; the run's own data are read as they were",
              s.request.chat);
  if (!s.request.tokenizer.empty() && s.choices.empty() && (s.request.data.empty() || s.request.generated()))
    fail_user("--tokenizer {}: only text that --data names becomes tokens; leave it out, or give --data FILES",
              s.request.tokenizer);
  return true;
}

// "evaluating, batch 12/40, 3.10k tok/s, eta 12 s"
std::string words_for(const infer::HeldOutProgress& p) {
  std::string text =
      p.of > 0 ? fmt::format("evaluating, batch {}/{}", p.done, p.of) : fmt::format("evaluating, batch {}", p.done);
  text += ", " + report::token_rate(static_cast<double>(p.tokens) / p.seconds);
  return text + report::eta(p.seconds, std::min(p.share.value_or(0), 1.0), 1);
}

io::Json to_json(const infer::HeldOutResult& set) {
  const model::Evaluation& e = set.evaluation;
  io::Json out = {{"data", set.data},     {"loss", e.loss},        {"perplexity", std::exp(e.loss)},
                  {"pairs", e.pairs},     {"tokens", e.tokens},    {"documents", e.documents},
                  {"batches", e.batches}, {"seq_len", set.seq_len}};
  const bool counted = e.why_no_bytes.empty();
  out["bits_per_byte"] = counted ? io::Json(e.bits_per_byte()) : io::Json(nullptr);
  if (counted)
    out["bytes"] = e.bytes;
  else
    out["bits_per_byte_note"] = e.why_no_bytes;
  return out;
}

void print_set(const infer::HeldOutResult& set) {
  const model::Evaluation& e = set.evaluation;
  print(fmt::format("data         {}: {}, {}, {} with rows of {}\n", set.data, counted(e.documents, "document"),
                    counted(e.tokens, "token"), counted(e.batches, "batch"), counted(set.seq_len, "token")));
  print(
      fmt::format("loss         {}\nperplexity   {}\n", report::plain(e.loss, 4), report::plain(std::exp(e.loss), 3)));
  print(e.why_no_bytes.empty()
            ? fmt::format("bits a byte  {} over {}\n", report::plain(e.bits_per_byte(), 4), counted(e.bytes, "byte"))
            : fmt::format("bits a byte  none: {}\n", e.why_no_bytes));
}

// The figures of the first set also stand at the top of the JSON document.
void print_result(const EvalRequest& s, const infer::Checkpoint& checkpoint,
                  const std::vector<infer::HeldOutResult>& sets) {
  const bool named = sets.size() > 1 || sets[0].name != data::kUnnamedSet;
  if (s.json) {
    io::Json out = {{"checkpoint", checkpoint.folder.string()}, {"average", checkpoint.average}};
    out.update(to_json(sets[0]));
    for (const infer::HeldOutResult& set : sets) {
      if (!named) break;
      io::Json one = {{"name", set.name}};
      one.update(to_json(set));
      out["sets"].push_back(std::move(one));
    }
    return print_json(out);
  }
  print(fmt::format("checkpoint   {}{}\n", checkpoint.folder.string(),
                    checkpoint.average ? ", the average of its weights" : ""));
  for (const infer::HeldOutResult& set : sets) {
    if (named) print(fmt::format("\nset          {}\n", set.name));
    print_set(set);
  }
}

void evaluate(const infer::Checkpoint& checkpoint, const EvalRequest& s, Ranks& ranks, StopAtOnce& stopping) {
  report::BytesLine loading("loading weights");
  report::LiveLine line(stderr);
  const std::vector<infer::HeldOutResult> sets = infer::evaluate_held_out(
      checkpoint, s.request, ranks.communicator(), loading.progress(), [&](const infer::HeldOutProgress& p) {
        if (ranks.leads()) line.show(words_for(p));
      });
  line.clear();
  if (!ranks.leads()) return;
  stopping.hold();
  print_result(s, checkpoint, sets);
}

}  // namespace

int run_eval(const Words& words) {
  EvalRequest s;
  if (!read_eval_words(words, s)) return kDone;
  StopAtOnce stopping("stopped; there is no result");
  Ranks ranks(words);
  return ranks.run([&] {
    infer::use_checkpoint(
        real_files(), s.model,
        [&](const infer::Checkpoint& c) {
          if (s.choices.empty()) return evaluate(c, s, ranks, stopping);
          answer_choices(c, {s.choices, s.request.tokenizer, s.request.precision, s.request.device}, s.json, ranks,
                         stopping);
        },
        s.average);
    return kDone;
  });
}

}  // namespace redline::cli
