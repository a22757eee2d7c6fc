// Multiple choice: which of some continuations of a text a model holds for the likeliest.
// docs/sampling_and_evaluation.md writes down how choices become tokens and how they are compared.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/batch.h"
#include "infer/load.h"
#include "io/communicator.h"
#include "model/engine.h"

namespace redline::infer {

struct Question {
  std::int64_t line = 0;  // of the file, from 1
  std::string question;
  std::vector<std::string> choices;
  std::int64_t answer = 0;  // which of them is right
};

// One JSON object a line: "question" (or "query"), "choices" and "answer" (or "gold"). Blank lines are passed over. A
// UserError names the line.
std::vector<Question> read_questions(FileSystem& files, const Path& path);

// A question with one of its choices, as tokens.
struct ChoiceTokens {
  std::vector<std::int32_t> tokens;
  std::int64_t boundary = 0;  // the first token that is the choice's
};

using Encode = std::function<std::vector<std::int32_t>(const std::string& text)>;

// Spaces at the end of the question are the choice's. The question and both together are encoded apart; as many tokens
// as the question alone has are the question's. The result has every choice of every question, in their order. A choice
// without tokens of its own, and one that takes more than `longest` tokens to predict, are a UserError that names the
// line.
std::vector<ChoiceTokens> tokens_of(const std::vector<Question>& questions, const Encode& encode, const Path& path,
                                    std::int64_t longest);

// Rows for such documents: as long as the longest needs, and as many as all of them need, up to `most_rows`.
data::BatchShape shape_for(const std::vector<ChoiceTokens>& documents, std::int64_t most_rows);

struct ScoringProgress {
  std::int64_t done = 0, of = 0, tokens = 0;  // choices of this rank and the ranks beside it; tokens of this rank
  double seconds = 0;                         // since the first choice
};

// The log-probability of each choice given its question: the sum over its tokens. Batches go round the ranks; all of
// the sums are rank 0's, other ranks get nothing.
std::vector<double> log_probabilities(const std::vector<ChoiceTokens>& documents, model::Engine& engine,
                                      const std::function<void(const ScoringProgress&)>& progress = {},
                                      io::Communicator* ranks = nullptr);

// How choices are compared: by the sum, by the sum over the choice's bytes, or over its tokens.
enum class Measure { sum, per_byte, per_token };

struct AnsweredQuestion {
  std::int64_t line = 0, answer = 0;
  std::vector<double> log_probabilities;       // of its choices
  std::vector<std::int64_t> tokens, bytes;     // of its choices
  std::int64_t chosen(Measure measure) const;  // the likeliest; of equals, the first
};
std::vector<AnsweredQuestion> answered(const std::vector<Question>& questions,
                                       const std::vector<ChoiceTokens>& documents, const std::vector<double>& scores);

struct Accuracy {
  double share = 0;                      // of the questions whose right choice was chosen
  std::optional<double> standard_error;  // of more than one question
};
Accuracy accuracy_of(const std::vector<AnsweredQuestion>& questions, Measure measure);

struct ChoicesRequest {
  std::string file, tokenizer, precision;  // the last two empty: the model's own and the run's
  std::string device = "auto";
};
// Reads the questions of a file and lets a checkpoint's model answer them. Ranks share the batches; rank 0 has all
// answers, other ranks get nothing.
std::vector<AnsweredQuestion> answer_questions(const Checkpoint& checkpoint, const ChoicesRequest& request,
                                               const model::LoadProgress& loading,
                                               const std::function<void(const ScoringProgress&)>& progress,
                                               io::Communicator* ranks);

}  // namespace redline::infer
