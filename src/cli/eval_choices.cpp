// Shows how far the scoring is, and prints how often the model is right.
#include "cli/eval_choices.h"

#include "base/words.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "io/json.h"
#include "report/figures.h"
#include "report/live_line.h"

namespace redline::cli {
namespace {

using infer::ChoiceScore;

struct Named {
  ChoiceScore measure;
  const char *key, *words;  // in the JSON document and on the terminal
};
constexpr Named kMeasures[] = {{ChoiceScore::sum, "accuracy", "accuracy"},
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

}  // namespace

void answer_choices(const infer::Checkpoint& checkpoint, const infer::ChoicesRequest& request, bool json, Ranks& ranks,
                    StopAtOnce& stopping) {
  Loading loading;
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

}  // namespace redline::cli
