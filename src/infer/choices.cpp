// Choices are documents of ordinary batches; the losses of the evaluation program, token by token, are all that is
// asked of the model.
#include "infer/choices.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/words.h"
#include "infer/sample.h"
#include "io/json.h"

namespace redline::infer {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 31;
constexpr std::int64_t kRows = 8;      // of a batch, where no run says
constexpr std::int64_t kRowStep = 64;  // rows are multiples of it, so that files alike have one shape

const io::Json* find(const io::Json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto it = object.find(key); it != object.end()) return &*it;
  return nullptr;
}

Question question_of(const io::Json& json, const std::string& where) {
  if (!json.is_object()) fail_user("{}: not a JSON object; a line is one question", where);
  const io::Json *question = find(json, {"question", "query"}), *choices = find(json, {"choices"}),
                 *answer = find(json, {"answer", "gold"});
  if (!question || !question->is_string()) fail_user("{}: \"question\" must be a string", where);
  if (!choices || !choices->is_array() || choices->empty())
    fail_user("{}: \"choices\" must be a list of at least one string", where);
  Question q;
  q.question = question->get<std::string>();
  for (const io::Json& choice : *choices) {
    if (!choice.is_string()) fail_user("{}: choice {} is no string", where, q.choices.size());
    q.choices.push_back(choice.get<std::string>());
    if (q.choices.back().empty()) fail_user("{}: choice {} is empty", where, q.choices.size() - 1);
  }
  if (!answer || !answer->is_number_integer())
    fail_user("{}: \"answer\" must be a whole number, the place of the right choice from 0", where);
  const bool fits = answer->is_number_unsigned() && answer->get<std::uint64_t>() < q.choices.size();
  if (!fits)
    fail_user("{}: \"answer\" is {}, and there are choices from 0 to {}", where, answer->dump(), q.choices.size() - 1);
  q.answer = answer->get<std::int64_t>();
  return q;
}

struct Scored {
  std::int64_t document = 0;
  double sum = 0;
};

// The losses at the tokens before the choice's own: each is that of the token after it.
double sum_of(const std::vector<float>& losses, std::int64_t begin, const ChoiceTokens& d) {
  double sum = 0;
  for (auto i = d.boundary - 1; i + 1 < std::ssize(d.tokens); ++i) sum -= losses[static_cast<std::size_t>(begin + i)];
  return sum;
}

void take(const std::string& words, std::vector<double>& all) {
  for (std::size_t at = 0; at + sizeof(Scored) <= words.size(); at += sizeof(Scored)) {
    Scored s;
    std::memcpy(static_cast<void*>(&s), words.data() + at, sizeof s);
    all.at(static_cast<std::size_t>(s.document)) = s.sum;
  }
}

}  // namespace

std::vector<Question> read_questions(FileSystem& files, const Path& path) {
  if (!files.exists(path)) fail_user("--choices {}: there is no such file", path.string());
  const std::string text = read_at_most(files, path, kMostBytes);
  std::vector<Question> all;
  std::int64_t line = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view words = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++line;
    if (words.find_first_not_of(" \t\r") == words.npos) continue;
    const std::string where = fmt::format("{}:{}", path.string(), line);
    all.push_back(question_of(io::parse_json(words, where), where));
    all.back().line = line;
  }
  if (all.empty()) fail_user("--choices {}: there is no question in it", path.string());
  return all;
}

std::vector<ChoiceTokens> tokens_of(const std::vector<Question>& questions, const Encode& encode, const Path& path,
                                    std::int64_t longest) {
  std::vector<ChoiceTokens> all;
  for (const Question& q : questions) {
    const std::string where = fmt::format("{}:{}", path.string(), q.line);
    const std::size_t last = q.question.find_last_not_of(' ');
    const std::size_t words = last == q.question.npos ? 0 : last + 1;
    const std::int64_t boundary = std::ssize(encode(q.question.substr(0, words)));
    if (boundary == 0) fail_user("{}: the question has no tokens, so that nothing comes before a choice", where);
    for (std::size_t c = 0; c < q.choices.size(); ++c) {
      ChoiceTokens& d = all.emplace_back(ChoiceTokens{encode(q.question + q.choices[c]), boundary});
      if (std::ssize(d.tokens) <= boundary)
        fail_user("{}: choice {} has no token of its own: its letters join with the question's last token", where, c);
      if (std::ssize(d.tokens) - 1 > longest)  // the last token is only predicted
        fail_user("{}: the question with choice {} has {}, and the model's rows have {}; give a shorter one", where, c,
                  counted(d.tokens.size(), "token"), longest);
    }
  }
  return all;
}

data::BatchShape shape_for(const std::vector<ChoiceTokens>& documents, std::int64_t most_rows) {
  std::int64_t longest = 1, shortest = std::numeric_limits<std::int64_t>::max(), all = 0;
  for (const ChoiceTokens& d : documents) {
    const std::int64_t length = std::ssize(d.tokens) - 1;
    longest = std::max(longest, length);
    shortest = std::min(shortest, length);
    all += length;
  }
  const std::int64_t row = (longest + kRowStep - 1) / kRowStep * kRowStep;
  return {std::clamp<std::int64_t>((all + row - 1) / row, 1, most_rows), row, row / shortest + 1};
}

std::vector<double> log_probabilities(const std::vector<ChoiceTokens>& documents, model::Engine& engine,
                                      const std::function<void(const ScoringProgress&)>& progress,
                                      io::Communicator* ranks) {
  const std::int64_t many = ranks ? ranks->ranks() : 1, rank = ranks ? ranks->rank() : 0;
  data::Batch batch(engine.batch_shape());
  std::vector<float> losses(batch.tokens.size());
  std::string mine;  // Scored, one after another
  ScoringProgress so_far{.of = std::ssize(documents)};
  const double start = steady_seconds();
  for (std::size_t next = 0, number = 0; next < documents.size(); ++number) {
    batch.restart();
    const std::size_t first = next;
    for (; next < documents.size(); ++next) {
      const std::vector<std::int32_t>& tokens = documents[next].tokens;
      if (!batch.add(std::span(tokens).first(tokens.size() - 1), tokens.back(), static_cast<std::int64_t>(next))) break;
    }
    batch.finish();
    REDLINE_CHECK(next > first, "a batch of {} tokens holds no choice", batch.tokens.size());
    if (static_cast<std::int64_t>(number) % many == rank) {
      engine.upload(batch);
      engine.evaluate();
      engine.executor().read(engine.lowered().losses, losses);
      for (std::size_t d = first; d < next; ++d) {
        const Scored scored{static_cast<std::int64_t>(d), sum_of(losses, batch.doc_offsets[d - first], documents[d])};
        mine.append(reinterpret_cast<const char*>(&scored), sizeof scored);
      }
      so_far.tokens += batch.real_tokens;
    }
    so_far.done = static_cast<std::int64_t>(next);
    so_far.seconds = steady_seconds() - start;
    if (progress) progress(so_far);
  }
  std::vector<double> all(documents.size());
  if (!ranks) take(mine, all);
  if (ranks) {
    const std::vector<std::string> everybody = ranks->gather(mine);
    for (const std::string& words : everybody) take(words, all);
    if (everybody.empty()) all.clear();
  }
  for (const double sum : all)
    if (!std::isfinite(sum)) fail_user("a choice has the log-probability {}: the model's weights are broken", sum);
  return all;
}

std::int64_t AnsweredQuestion::chosen(ChoiceScore measure) const {
  std::size_t best = 0;
  const auto score = [&](std::size_t c) {
    const std::int64_t over = measure == ChoiceScore::sum ? 1 : measure == ChoiceScore::per_byte ? bytes[c] : tokens[c];
    return log_probabilities[c] / static_cast<double>(over);
  };
  for (std::size_t c = 1; c < log_probabilities.size(); ++c)
    if (score(c) > score(best)) best = c;
  return static_cast<std::int64_t>(best);
}

std::vector<AnsweredQuestion> answered(const std::vector<Question>& questions,
                                       const std::vector<ChoiceTokens>& documents, const std::vector<double>& scores) {
  std::vector<AnsweredQuestion> all;
  std::size_t next = 0;
  for (const Question& q : questions) {
    AnsweredQuestion& a = all.emplace_back(AnsweredQuestion{q.line, q.answer, {}, {}, {}});
    for (const std::string& choice : q.choices) {
      a.log_probabilities.push_back(scores[next]);
      a.tokens.push_back(std::ssize(documents[next].tokens) - documents[next].boundary);
      a.bytes.push_back(std::ssize(choice));
      ++next;
    }
  }
  return all;
}

Accuracy accuracy_of(const std::vector<AnsweredQuestion>& questions, ChoiceScore measure) {
  const auto right = std::ranges::count_if(questions, [&](const auto& q) { return q.chosen(measure) == q.answer; });
  const auto n = static_cast<double>(questions.size());
  Accuracy a{static_cast<double>(right) / n, {}};
  if (n > 1) a.standard_error = std::sqrt(a.share * (1 - a.share) / (n - 1));
  return a;
}

std::vector<AnsweredQuestion> answer_questions(const Checkpoint& checkpoint, const ChoicesRequest& request,
                                               const model::LoadProgress& loading,
                                               const std::function<void(const ScoringProgress&)>& progress,
                                               io::Communicator* ranks) {
  const std::vector<Question> questions = read_questions(real_files(), request.file);
  const Vocabulary vocabulary(real_files(), checkpoint, request.tokenizer);
  const std::vector<ChoiceTokens> documents = tokens_of(
      questions, [&](const std::string& text) { return vocabulary.encode(text); }, request.file,
      checkpoint.max_positions);

  config::Config c = checkpoint.run.value_or(config::Config{});
  if (!request.precision.empty()) c.precision.matmul = request.precision;
  c.train.sample_every = 0;
  const auto device = device::open_device(request.device);
  model::LoweringOptions lowering = model::lowering_options(c, device->kind());
  lowering.training = false;
  lowering.batch = shape_for(documents, checkpoint.run ? c.train.batch_size : kRows);
  const auto engine = load_engine(checkpoint, lowering, *device, loading);
  const std::vector<double> scores = log_probabilities(documents, *engine, progress, ranks);
  if (ranks && ranks->rank() > 0) return {};
  return answered(questions, documents, scores);
}

}  // namespace redline::infer
