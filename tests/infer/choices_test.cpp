// Multiple choice: log-probabilities as transformers gives them (tests/interop/make_choices_oracle.py), the boundary
// between question and choice, how choices are compared, and sentences with the number of the line.
#include "infer/choices.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "infer/sample.h"
#include "io/json.h"
#include "testing/paths.h"
#include "testing/ranks_here.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::infer {
namespace {

using namespace redline::testing;

std::string problem_of(const std::string& text, std::int64_t longest = 64) {
  const TempFolder folder;
  const Path path = folder / "q.jsonl";
  std::ofstream(path, std::ios::binary) << text;
  const auto encode = [](const std::string& words) { return std::vector<std::int32_t>(words.begin(), words.end()); };
  return error_of([&] { tokens_of(read_questions(real_files(), path), encode, path, longest); });
}

TEST(Choices, LogProbabilitiesAreThoseOfTransformers) {
  const Path file = fixture("choices/questions.jsonl");
  const io::Json oracle = io::read_json(real_files(), fixture("choices/oracle.json"));
  const std::vector<Question> questions = read_questions(real_files(), file);
  ASSERT_EQ(questions.size(), 5u);
  const Checkpoint checkpoint = read_checkpoint(real_files(), fixture("llama-mha"));
  const auto device = device::open_device("cpu");
  for (const auto& [name, tokenizer] :
       {std::pair<std::string, std::string>{"bytes", "bytes"}, {"gpt2", fixture("tokenizers/gpt2.tokenizer.json")}}) {
    const Vocabulary vocabulary(real_files(), checkpoint, tokenizer);
    const auto documents = tokens_of(
        questions, [&](const std::string& text) { return vocabulary.encode(text); }, file, checkpoint.max_positions);
    std::vector<std::vector<double>> runs;
    for (const std::int64_t rows : {1, 8}) {  // several batches, and one
      model::LoweringOptions lowering = model::lowering_options(config::Config{}, device::Kind::cpu);
      lowering.training = false;
      lowering.batch = shape_for(documents, rows);
      const auto engine = load_engine(checkpoint, lowering, *device);
      std::int64_t done = 0;
      runs.push_back(log_probabilities(documents, *engine, [&](const ScoringProgress& p) { done = p.done; }));
      EXPECT_EQ(done, std::ssize(documents));
    }
    std::size_t next = 0;
    for (const io::Json& row : oracle.at(name))
      for (const io::Json& expected : row) {
        for (const std::vector<double>& run : runs) EXPECT_NEAR(run.at(next), expected.get<double>(), 1e-4);
        ++next;
      }
    EXPECT_EQ(next, documents.size());
  }
}

// "ab" and "c" as tokens of their own; the letters "bc" are one token where they meet.
TEST(Choices, TheQuestionsOwnTokensEndWhereTheyAreAsMany) {
  const auto encode = [](const std::string& text) {
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool pair = text.substr(i, 2) == "bc";
      ids.push_back(pair ? 1000 : text[i]);
      i += pair;
    }
    return ids;
  };
  const std::vector<Question> questions = {{1, "ab", {"cx", "x"}, 0}, {2, "a  ", {"b"}, 0}};
  const auto documents = tokens_of(questions, encode, "f", 100);
  ASSERT_EQ(documents.size(), 3u);
  EXPECT_EQ(documents[0].tokens, (std::vector<std::int32_t>{'a', 1000, 'x'}));
  EXPECT_EQ(documents[0].boundary, 2);  // the joined token counts as the question's last
  EXPECT_EQ(documents[1].boundary, 2);
  EXPECT_EQ(documents[2].tokens, (std::vector<std::int32_t>{'a', ' ', ' ', 'b'}));
  EXPECT_EQ(documents[2].boundary, 1);  // its spaces are the choice's
  EXPECT_THROW(tokens_of({{1, "ab", {"c"}, 0}}, encode, "f", 100), UserError);
}

TEST(Choices, AreComparedThreeWays) {
  const std::vector<Question> questions = {{1, "q", {"ab", "cdefgh"}, 1}, {2, "q", {"ab", "cd"}, 0}};
  const std::vector<ChoiceTokens> documents = {{{1, 2, 3}, 1}, {{1, 2, 3, 4}, 1}, {{1, 2}, 1}, {{1, 2}, 1}};
  const auto rows = answered(questions, documents, {-2.0, -3.3, -1.0, -1.0});
  EXPECT_EQ(rows[0].chosen(ChoiceScore::sum), 0);
  EXPECT_EQ(rows[0].chosen(ChoiceScore::per_byte), 1);   // -1 and -0.55
  EXPECT_EQ(rows[0].chosen(ChoiceScore::per_token), 0);  // -1 and -1.1
  EXPECT_EQ(rows[1].chosen(ChoiceScore::sum), 0);        // of equals the first
  EXPECT_EQ(accuracy_of(rows, ChoiceScore::sum).share, 0.5);
  EXPECT_DOUBLE_EQ(*accuracy_of(rows, ChoiceScore::sum).standard_error, 0.5);
  EXPECT_EQ(accuracy_of(rows, ChoiceScore::per_byte).share, 1.0);
  EXPECT_FALSE(accuracy_of({rows[0]}, ChoiceScore::sum).standard_error);
}

TEST(Choices, SentencesNameTheLine) {
  const std::string good = R"({"question":"q","choices":["a","b"],"answer":1})";
  EXPECT_EQ(problem_of(good + "\n\n" + R"({"query":"q","choices":["a"],"gold":0})" + "\r\n"), "no error");
  const auto expect = [&](const std::string& line, const std::string& part) {
    EXPECT_TRUE(says(problem_of(good + "\n\n" + line + "\n" + good), {"q.jsonl:3", part}));
  };
  expect(R"({"question":"q","choices":["a")", "JSON");
  expect("[1]", "not a JSON object");
  expect(R"({"choices":["a"],"answer":0})", "\"question\"");
  expect(R"({"question":"q","choices":[],"answer":0})", "at least one");
  expect(R"({"question":"q","choices":["a",2],"answer":0})", "choice 1");
  expect(R"({"question":"q","choices":["a",""],"answer":0})", "empty");
  expect(R"({"question":"q","choices":["a"],"answer":1})", "0 to 0");
  expect(R"({"question":"q","choices":["a"],"answer":-1})", "0 to 0");
  expect(R"({"question":"q","choices":["a"],"answer":"a"})", "whole number");
  expect(R"({"question":"  ","choices":["a"],"answer":0})", "no tokens");
  expect(fmt::format(R"({{"question":"{}","choices":["a"],"answer":0}})", std::string(80, 'x')), "81 tokens");
  EXPECT_TRUE(says(problem_of("\n"), {"no question"}));
}

// Batches go round the ranks, and rank 0 has all of the sums.
TEST(Choices, RanksShareTheWork) {
  const Path file = fixture("choices/questions.jsonl");
  const Checkpoint checkpoint = read_checkpoint(real_files(), fixture("llama-mha"));
  const auto encode = [](const std::string& words) { return std::vector<std::int32_t>(words.begin(), words.end()); };
  std::vector<Question> questions = read_questions(real_files(), file);
  std::erase_if(questions, [](const Question& q) { return q.line == 4; });  // bytes above 127
  const auto documents = tokens_of(questions, encode, file, checkpoint.max_positions);
  const auto scores = [&](io::Communicator* ranks) {
    const auto device = device::open_device("cpu");
    model::LoweringOptions lowering = model::lowering_options(config::Config{}, device::Kind::cpu);
    lowering.training = false;
    lowering.batch = shape_for(documents, 1);
    return log_probabilities(documents, *load_engine(checkpoint, lowering, *device), {}, ranks);
  };
  const std::vector<double> one = scores(nullptr);
  std::vector<std::vector<double>> of_ranks(2);
  const auto errors = RanksHere(2).run(
      [&](io::Communicator& ranks) { of_ranks[static_cast<std::size_t>(ranks.rank())] = scores(&ranks); });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(of_ranks[0], one);
  EXPECT_TRUE(of_ranks[1].empty());
}

}  // namespace
}  // namespace redline::infer
