// Reads the questions, has the model score them, and prints how often it is right.
#include "cli/eval_choices.h"

#include "base/clock.h"
#include "base/counted.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "infer/choices.h"
#include "infer/sample.h"
#include "io/json.h"
#include "report/figures.h"
#include "report/live_line.h"

namespace redline::cli {
namespace {

using infer::Measure;

constexpr std::int64_t kRows = 8;  // of a batch, where no run says

struct Named {
  Measure measure;
  const char *key, *words;  // in the JSON document and on the terminal
};
constexpr Named kMeasures[] = {{Measure::sum, "accuracy", "accuracy"},
                               {Measure::per_byte, "accuracy_per_byte", "by bytes"},
                               {Measure::per_token, "accuracy_per_token", "by tokens"}};

// "scoring, choice 120/400, 3.10k tok/s, eta 12 s"
class Progress {
 public:
  void operator()(const infer::ScoringProgress& p) {
    const double seconds = steady_seconds() - start_;
    const double share = static_cast<double>(p.done) / static_cast<double>(p.of);
    line_.show(fmt::format("scoring, choice {}/{}, {}, eta {}", p.done, p.of,
                           report::token_rate(static_cast<double>(p.tokens) / seconds),
                           report::duration(seconds * (1 - share) / share)));
  }
  void clear() { line_.clear(); }

 private:
  report::LiveLine line_{stderr};
  double start_ = steady_seconds();
};

void print_json_result(const ChoicesSettings& s, const infer::Checkpoint& checkpoint,
                       const std::vector<infer::AnsweredQuestion>& questions) {
  io::Json out = {{"checkpoint", checkpoint.folder.string()},
                  {"average", checkpoint.average},
                  {"choices", s.file},
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
                    {"chosen", q.chosen(Measure::sum)},
                    {"chosen_per_byte", q.chosen(Measure::per_byte)},
                    {"chosen_per_token", q.chosen(Measure::per_token)},
                    {"log_probabilities", q.log_probabilities},
                    {"tokens", q.tokens},
                    {"bytes", q.bytes}});
  out["rows"] = std::move(rows);
  print_json(out);
}

void print_result(const ChoicesSettings& s, const infer::Checkpoint& checkpoint,
                  const std::vector<infer::AnsweredQuestion>& questions) {
  if (s.json) return print_json_result(s, checkpoint, questions);
  print(fmt::format("checkpoint   {}{}\nchoices      {}: {}\n", checkpoint.folder.string(),
                    checkpoint.average ? ", the average of its weights" : "", s.file,
                    counted(questions.size(), "question")));
  for (const auto& [measure, key, words] : kMeasures) {
    if (measure == Measure::per_token) continue;
    const infer::Accuracy a = infer::accuracy_of(questions, measure);
    const std::string error = a.standard_error ? " ± " + report::plain(*a.standard_error, 4) : "";
    print(fmt::format("{:<12} {}{}\n", words, report::plain(a.share, 4), error));
  }
}

}  // namespace

void answer_choices(const infer::Checkpoint& checkpoint, const ChoicesSettings& s, Ranks& ranks, StopAtOnce& stopping) {
  const std::vector<infer::Question> questions = infer::read_questions(real_files(), s.file);
  const infer::Vocabulary vocabulary(real_files(), checkpoint, s.tokenizer);
  const std::vector<infer::ChoiceTokens> documents = infer::tokens_of(
      questions, [&](const std::string& text) { return vocabulary.encode(text); }, s.file, checkpoint.max_positions);

  config::Config c = checkpoint.run.value_or(config::Config{});
  if (!s.precision.empty()) c.precision.matmul = s.precision;
  c.train.sample_every = 0;
  const auto device = device::open_device(s.device);
  model::LoweringOptions lowering = model::lowering_options(c, device->kind());
  lowering.training = false;
  lowering.batch = infer::shape_for(documents, checkpoint.run ? c.train.batch_size : kRows);
  Loading loading;
  const auto engine = infer::load_engine(checkpoint, lowering, *device, loading.progress());
  Progress progress;
  const std::vector<double> scores = infer::log_probabilities(
      documents, *engine,
      [&](const infer::ScoringProgress& p) {
        if (ranks.leads()) progress(p);
      },
      ranks.together());
  progress.clear();
  if (!ranks.leads()) return;
  stopping.hold();
  print_result(s, checkpoint, infer::answered(questions, documents, scores));
}

}  // namespace redline::cli
