// Multiple choice: a model ranks several continuations of a text by their likelihood. docs/hugging_face.md
// writes down how choices become tokens and how they are compared.
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
  std::int64_t answer = 0;  // the right one
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

// Encodes every choice of every question, in their order. Spaces at the end of the question belong to the choice. The
// question alone, and both together, are encoded separately; the question keeps as many tokens as it has alone. A
// UserError names the line of a choice without tokens of its own, or with more than `longest` tokens to predict.
std::vector<ChoiceTokens> tokens_of(const std::vector<Question>& questions, const Encode& encode, const Path& path,
                                    std::int64_t longest);

// The batch for such documents: rows that fit the longest, and enough of them for all, at most `most_rows`.
data::BatchShape shape_for(const std::vector<ChoiceTokens>& documents, std::int64_t most_rows);

struct ScoringProgress {
  std::int64_t done = 0, of = 0, tokens = 0;  // choices of this rank and the ranks beside it; tokens of this rank
  double seconds = 0;                         // since the first choice
};

// The log-probability of each choice given its question, the sum over its tokens. Ranks take batches in turns; rank 0
// gets all sums, other ranks an empty list.
std::vector<double> log_probabilities(const std::vector<ChoiceTokens>& documents, model::Engine& engine,
                                      const std::function<void(const ScoringProgress&)>& progress = {},
                                      io::Communicator* ranks = nullptr);

// How choices are compared: by the sum, by the sum over the choice's bytes, or over its tokens.
enum class ChoiceScore { sum, per_byte, per_token };

struct AnsweredQuestion {
  std::int64_t line = 0, answer = 0;
  std::vector<double> log_probabilities;           // of its choices
  std::vector<std::int64_t> tokens, bytes;         // of its choices
  std::int64_t chosen(ChoiceScore measure) const;  // the likeliest; of equals, the first
};
std::vector<AnsweredQuestion> answered(const std::vector<Question>& questions,
                                       const std::vector<ChoiceTokens>& documents, const std::vector<double>& scores);

struct Accuracy {
  double share = 0;                      // of the questions whose right choice was chosen
  std::optional<double> standard_error;  // of more than one question
};
Accuracy accuracy_of(const std::vector<AnsweredQuestion>& questions, ChoiceScore measure);

struct ChoicesRequest {
  std::string file, tokenizer, precision;  // the last two empty: the model's own and the run's
  std::string device = "auto";
};
// Reads the questions of a file and lets a checkpoint's model answer them. Ranks share the batches; rank 0 gets all
// answers, other ranks an empty list.
std::vector<AnsweredQuestion> answer_questions(const Checkpoint& checkpoint, const ChoicesRequest& request,
                                               const model::LoadProgress& loading,
                                               const std::function<void(const ScoringProgress&)>& progress,
                                               io::Communicator* ranks);

}  // namespace redline::infer
