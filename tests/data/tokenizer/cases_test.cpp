// What other programs make of a text: ids and decoded text of the small fixtures, always, and of the large oracles
// where REDLINE_ORACLES names their folder.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/files.h"
#include "data/tokenizer/tokenizer.h"
#include "io/json.h"
#include "testing/paths.h"

namespace redline::data {
namespace {

// `decoded` is in a case where it is not the text itself.
void check_cases(const Path& tokenizer_file, const Path& cases_file) {
  const auto tokenizer = open_tokenizer(tokenizer_file.string(), "test");
  const auto encoder = tokenizer->encoder();
  const io::Json cases = io::read_json(real_files(), cases_file);
  ASSERT_GT(cases.size(), 50u);
  // Twice with one encoder: the second time its cache answers.
  for (int pass = 0; pass < 2; ++pass) {
    for (const io::Json& one : cases) {
      const auto text = one.at("text").get<std::string>();
      const auto expected = one.at("ids").get<std::vector<std::int32_t>>();
      std::vector<std::int32_t> ids = {-7};
      encoder->append(text, ids);
      ASSERT_EQ(ids.front(), -7);
      ids.erase(ids.begin());
      EXPECT_EQ(ids, expected) << text;
      const std::string decoded = one.contains("decoded") ? one.at("decoded").get<std::string>() : text;
      EXPECT_EQ(tokenizer->decode(ids), decoded);
      for (const std::int32_t id : ids) EXPECT_LT(id, tokenizer->vocabulary());
    }
  }
}

class FixtureTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FixtureTest, EncodesAndDecodesAsTheOriginalDoes) {
  const Path folder = Path(testing::source_folder()) / "tests/fixtures/tokenizers";
  const std::string name = GetParam();
  check_cases(folder / (name + (name == "pieces" ? ".model" : ".tokenizer.json")), folder / (name + ".cases.json"));
}
INSTANTIATE_TEST_SUITE_P(Tokenizers, FixtureTest, ::testing::Values("gpt2", "llama3", "qwen-odd", "o200k", "pieces"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

class OracleTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(OracleTest, EncodesAndDecodesAsTheOriginalDoes) {
  const char* oracles = std::getenv("REDLINE_ORACLES");
  if (oracles == nullptr) GTEST_SKIP() << "REDLINE_ORACLES does not name the folder of the oracles";
  const Path folder = Path(oracles) / "tokenizers";
  if (!real_files().exists(folder)) GTEST_SKIP() << folder.string() << " is not there";
  check_cases(folder / GetParam().second, folder / (std::string(GetParam().first) + ".cases.json"));
}
INSTANTIATE_TEST_SUITE_P(Tokenizers, OracleTest,
                         ::testing::Values(std::pair("gpt2", "gpt2.tokenizer.json"),
                                           std::pair("llama2", "llama2.model")),
                         [](const auto& test) { return std::string(test.param.first); });

}  // namespace
}  // namespace redline::data
